//! Tokens that may not do everything, and a Vault that cannot be used: nothing is changed, and the reason is said.

use std::fs;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::output_of;
use cofferdam_tests::vault::new_token;
use cofferdam_tests::world::World;

use super::support::{set_up, state_of, world, world_at, world_with_login};

/// Runs the command with a token whose policy gets the printed lines, until nothing is missing; returns the rounds.
#[track_caller]
fn grant_what_is_missing(world: &World, bao: &OpenBao, token: &str, arguments: &[&str]) -> usize {
    let before = state_of(bao);
    let mut policy = String::new();
    for round in 0..3 {
        let run = set_up(world, token, arguments);
        let Some((_, lines)) =
            run.printed.split_once("\nadd to a policy of your token, in the namespace of [vault]:\n\n")
        else {
            run.assert_code(0);
            return round;
        };
        assert_eq!(run.code, 77, "{}", run.stderr);
        assert!(run.printed.contains("  MISSING "), "{}", run.printed);
        let mut now = state_of(bao);
        now.insert("sys/policies/acl/operator".into(), before["sys/policies/acl/operator"].clone());
        assert_eq!(now, before, "something was changed although a permission is missing");
        policy.push_str(lines);
        bao.policy_text("operator", &policy);
    }
    panic!("permissions are still missing");
}

#[test]
fn missing_permissions_are_all_named_and_the_printed_lines_suffice() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    bao.policy("operator", &[("nothing", &["read"])]);
    let token = bao.create_token(new_token(&["operator"]).ttl("10m"));
    let run = set_up(&world, &token, &["--dry-run"]).assert_code(77).assert_fails_with("nothing was changed");
    for line in [
        "  MISSING read   sys/mounts: lists the secrets engines\n",
        "  MISSING read   sys/policy/agent-dev: reads the policy `agent-dev`\n",
        "  MISSING update sys/policy/agent-dev: makes the policy `agent-dev`\n",
        "  MISSING update sys/auth/approle: makes the login method `auth/approle/`\n",
    ] {
        assert!(run.printed.contains(line), "{line}{}", run.printed);
    }
    // The first round finds everything but the credentials of a role that cannot be read.
    let rounds = grant_what_is_missing(&world, &bao, &token, &["--yes"]);
    assert!((1..=2).contains(&rounds), "{rounds} rounds");
    bao.policy("operator", &[("nothing", &["read"])]);
    let rounds = grant_what_is_missing(&world, &bao, &token, &["--remove", "--yes"]);
    assert_eq!(rounds, 1);
}

#[test]
fn a_token_that_is_refused_is_said_to_be() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let token = bao.create_token(new_token(&["default"]).ttl("10m"));
    let revoke = bao.call("POST", "auth/token/revoke-self", Some(&token), &serde_json::Value::Null);
    assert_eq!(revoke.status, 204);
    set_up(&world, &token, &["--yes"])
        .assert_code(77)
        .assert_fails_with("Vault does not accept the token from the environment variable VAULT_TOKEN");
    set_up(&world, "two words", &["--yes"]).assert_code(66).assert_fails_with("not allowed in a token");
}

#[test]
fn tokens_come_from_the_environment_or_the_file_of_a_login() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let run = |variables: &[(&str, &str)]| {
        let mut command = world.cofferdam_command();
        command.envs(variables.iter().copied()).args(["vault", "setup", "--dry-run", "-c"]);
        // Without a controlling terminal nothing can be asked.
        let mut detached = cofferdam_tests::process::command("/usr/bin/setsid");
        detached.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        detached
            .arg("--wait")
            .arg(command.get_program())
            .args(command.get_args())
            .arg(&world.layout().config);
        let output = output_of(detached, "cofferdam vault setup");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, stderr) = run(&[]);
    assert!(code == 66 && stderr.contains("hint: set VAULT_TOKEN or BAO_TOKEN"), "{stderr}");
    let (code, printed, _) = run(&[("BAO_TOKEN", &bao.root_token)]);
    assert!(
        code == 0 && printed.contains("your token: from the environment variable BAO_TOKEN"),
        "{printed}"
    );
    // A token of another Vault is not sent.
    let before = bao.audit().len();
    let (code, _, stderr) = run(&[("VAULT_TOKEN", &bao.root_token), ("VAULT_ADDR", "http://127.0.0.1:9")]);
    assert!(code == 78 && stderr.contains("VAULT_TOKEN is not used"), "{stderr}");
    assert_eq!(bao.audit().len(), before);
    fs::write(world.layout().root().join(".vault-token"), &bao.root_token).unwrap();
    let (code, printed, _) = run(&[]);
    assert!(code == 0 && printed.contains("/.vault-token`, with `root`"), "{printed}");
}

#[test]
fn a_vault_that_cannot_be_used_has_its_exit_code() {
    let Some(bao) = OpenBao::configured() else { return };
    let approle =
        "auth = { method = \"approle\", role-id-file = \"role-id\", secret-id-file = \"secret-id\" }";
    let other = Authority::new().write(bao.directory.path(), "other-ca");
    let lines = format!("ca-file = {other:?}\n{approle}");
    let wrong_authority = world_with_login(&bao.tls_address(), &lines).prepare();
    set_up(&wrong_authority, &bao.root_token, &["--yes"])
        .assert_code(69)
        .assert_fails_with("hint: check that Vault is up");
    let ca = &bao.tls.as_ref().unwrap().ca_file;
    let right_authority =
        world_with_login(&bao.tls_address(), &format!("ca-file = {ca:?}\n{approle}")).prepare();
    set_up(&right_authority, &bao.root_token, &["--dry-run"]).assert_code(0);
    let nowhere = world_at("http://127.0.0.1:9").prepare();
    set_up(&nowhere, &bao.root_token, &["--yes"])
        .assert_code(69)
        .assert_fails_with("Vault cannot be reached");
    let none = World::new().server("tools", cofferdam_tests::server::Server::fixture()).prepare();
    set_up(&none, &bao.root_token, &["--yes"]).assert_code(78).assert_fails_with("has no [vault]");
    let world = world(&bao).prepare();
    // No terminal to confirm at.
    set_up(&world, &bao.root_token, &[]).assert_code(64).assert_fails_with("hint: give --yes");
    bao.seal();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(69).assert_fails_with("hint: unseal Vault");
}
