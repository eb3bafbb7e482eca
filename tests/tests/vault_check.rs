//! `cofferdam check --online` against a real OpenBao: what it finds and prints, and that it leaves nothing behind.

use std::fs;
use std::path::PathBuf;

use cofferdam_tests::openbao::{AppRole, Headers, KvEngine, OpenBao};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    leases, login_token, minter, new_token, prepared, token_role, tokens, world, world_with_vault,
};
use cofferdam_tests::vault_logins::{unwrap, wrap};
use cofferdam_tests::world::{Builder, World};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

#[test]
fn a_check_without_findings_reads_no_secret_and_leaves_no_token() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let world = with_secrets(world(&bao)).prepare();
    let before = tokens(&bao, |_| true).len();
    let printed = assert_check_succeeds(&world);
    for line in [
        "login token-file: a token with `agent`, `default`, `sidecar`, your own token, which is not revoked\n",
        "  ok      update auth/token/create: creates the tokens of sessions\n",
        "  ok      update auth/token/renew-self: renews the login\n",
        "grant dev: a session's token has `agent`\n",
        "  ok      update pki/issue/agent: secret `cert` of server `tools`\n",
        "  ok      read   secret/data/github: secret `github` of server `tools`\n",
    ] {
        assert!(printed.contains(line), "{line}{printed}");
    }
    assert!(printed.contains("unsealed") && printed.ends_with("\nnothing is missing\n"), "{printed}");
    assert_eq!(printed, assert_check_succeeds(&world), "a second check prints something else");
    assert_eq!((tokens(&bao, |_| true).len(), leases(&bao)), (before, 0));
    let login = login_token(&bao);
    assert!(bao.is_live(&login));
    let made = bao.audit().into_iter().filter(|line| line["request"]["path"] == "auth/token/create");
    let made: Vec<Value> = made.filter(|line| line["type"] == "response").collect();
    assert!(
        made.iter().any(|line| line["request"]["data"]["ttl"].is_string()),
        "no token with a TTL was created: {made:?}"
    );
    let requests_to = |path: &str| {
        bao.audit()
            .iter()
            .filter(|line| line["request"]["path"] == path && line["auth"]["metadata"]["grant"] == "dev")
            .count()
    };
    assert_eq!((requests_to("secret/data/github"), requests_to("pki/issue/agent")), (0, 0));
    assert!(requests_to("sys/capabilities-self") > 0, "Vault's audit has no request of the check");
    // Nothing is left of it on this host either.
    assert!(!world.layout().state.join("vault").exists());
}

#[test]
fn the_printed_lines_fix_the_policies_for_every_engine() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, &mut token_role(&["agent"]));
    bao.mount_kv("teams/old", KvEngine::V1);
    bao.write_plain_secret("teams/old", "linear", json!({"key": "CANARY-linear"}));
    bao.policy("agent", &[("nothing", &["read"])]);
    bao.policy("minter", &[("nothing", &["read"])]);
    let builder = with_secrets(world_with_vault(&bao, &auth)).secret("linear", "kv = \"teams/old/linear\"");
    let world = builder.server("linear", Server::fixture().env("KEY", "{linear.key}")).prepare();
    let before = tokens(&bao, |_| true).len();
    let mut policies = [
        ("a policy of the login, which has `default`, `minter`", "minter", String::new()),
        ("the policy `agent` of grant `dev`", "agent", String::new()),
    ];
    let mut rounds = 0;
    loop {
        let (code, printed, stderr) = check_online(&world);
        if code == 0 {
            break;
        }
        assert_eq!(code, 77, "{printed}{stderr}");
        assert!(stderr.contains("hint: add the lines"), "{stderr}");
        rounds += 1;
        // The rounds find the login, then an engine that is not listed, then its version.
        assert!(rounds <= 3, "{printed}");
        for (whose, name, text) in &mut policies {
            let Some(lines) = printed.split(&format!("\nadd to {whose}:\n\n")).nth(1) else { continue };
            text.push_str(lines.split("\nadd to ").next().unwrap());
            bao.policy_text(name, text);
        }
    }
    assert!(rounds >= 2, "the check found nothing to add");
    let [(_, _, minter), (_, _, agent)] = &policies;
    assert!(
        minter.contains("path \"auth/token/create/cofferdam\" {\n  capabilities = [\"update\"]\n}\n"),
        "{minter}"
    );
    for line in [
        "path \"secret/data/github\" {\n",
        "path \"teams/old/linear\" {\n",
        "path \"pki/issue/agent\" {\n  capabilities = [\"update\"]\n",
    ] {
        assert!(agent.contains(line), "{line}{agent}");
    }
    assert_eq!((tokens(&bao, |_| true).len(), leases(&bao)), (before, 0), "a login or token was not revoked");
}

#[test]
fn printed_paths_fit_the_namespace_of_their_policy() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.api("POST", "sys/namespaces/team-a", json!({}));
    let within = |method: &str, path: &str, body: Value| {
        let headers = Headers { namespace: Some("team-a"), ..Headers::default() };
        let answer = bao.call_with(method, path, Some(&bao.root_token), &body, headers);
        assert!((200..300).contains(&answer.status), "{answer:?}");
    };
    within("POST", "sys/mounts/secret", json!({"type": "kv", "options": {"version": "1"}}));
    within(
        "PUT",
        "sys/policies/acl/agent",
        json!({"policy": "path \"other\" { capabilities = [\"read\"] }"}),
    );
    // A token of the outermost namespace, whose policies have to name the inner one.
    bao.policy(
        "outer",
        &[
            ("team-a/auth/token/create", &["update", "sudo"]),
            ("team-a/sys/capabilities-self", &["update"]),
            ("team-a/auth/token/lookup-self", &["read"]),
        ],
    );
    let outer = bao.create_token(new_token(&["outer"]).ttl("10m"));
    let file = write(&bao, "outer", &outer);
    let auth = format!("namespace = \"team-a\"\nauth = {{ method = \"token-file\", path = {file:?} }}");
    let server = Server::fixture().env("TOKEN", "{github.token}");
    let world = world_with_vault(&bao, &auth)
        .secret("github", "kv = \"secret/github\"")
        .server("tools", server)
        .prepare();
    let (code, printed, stderr) = check_online(&world);
    assert_eq!(code, 77, "{printed}{stderr}");
    assert!(
        printed.contains("\nadd to a policy of the login, which has `default`, `outer`:\n\n"),
        "{printed}"
    );
    assert!(printed.contains("path \"team-a/auth/token/revoke-accessor\" {\n"), "{printed}");
    let outer = printed.split("\nadd to ").nth(1).unwrap().split_once(":\n\n").unwrap().1;
    let rest = "path \"team-a/auth/token/create\" { capabilities = [\"update\", \"sudo\"] }\npath \"team-a/sys/capabilities-self\" { capabilities = [\"update\"] }\npath \"team-a/auth/token/lookup-self\" { capabilities = [\"read\"] }\n";
    bao.policy_text("outer", &format!("{outer}{rest}"));
    let (_, printed, _) = check_online(&world);
    assert!(!printed.contains("policy of the login"), "{printed}");
    // A session's token is of the inner namespace, and so are its policies.
    assert!(
        printed.contains("\nadd to the policy `agent` of grant `dev`, in namespace `team-a`:\n\n"),
        "{printed}"
    );
    assert!(
        printed.contains("\npath \"secret/data/github\" {\n") && !printed.contains("path \"team-a/"),
        "{printed}"
    );
}

#[test]
fn tokens_that_cannot_be_created_are_reported_with_the_next_step() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    // A login that may create tokens, but lacks the policies that they should have.
    let poor = bao.create_token(new_token(&["sidecar"]).ttl("10m"));
    let file = write(&bao, "poor", &poor);
    let auth = format!("auth = {{ method = \"token-file\", path = {file:?} }}");
    let (code, printed, _) = check_online(&with_secrets(world_with_vault(&bao, &auth)).prepare());
    assert_eq!(code, 77, "{printed}");
    assert!(printed.contains("  WRONG   send POST `auth/token/create` to Vault"), "{printed}");
    assert!(printed.contains("next: log in with `agent` too, or set `token-role` in [vault]"), "{printed}");
    // A role that allows other policies, then no role at all.
    let auth = minter(&bao, &mut token_role(&["other"]));
    let world = with_secrets(world_with_vault(&bao, &auth)).prepare();
    let (code, printed, _) = check_online(&world);
    assert!(
        code == 77
            && printed.contains("next: add `agent` to `allowed_policies` of the token role `cofferdam`"),
        "{printed}"
    );
    bao.delete_token_role("cofferdam");
    bao.policy(
        "minter",
        &[
            ("auth/token/create/cofferdam", &["update"]),
            ("auth/token/revoke-accessor", &["update"]),
            ("auth/token/roles/cofferdam", &["read"]),
        ],
    );
    let (code, printed, _) = check_online(&world);
    assert!(
        code == 77
            && printed.contains(
                "next: create it: `bao write auth/token/roles/cofferdam allowed_policies=agent renewable=false`"
            ),
        "{printed}"
    );
    // A token with limited uses is not used for the checks.
    let counted = bao.create_token(new_token(&["sidecar", "agent"]).num_uses(9_u64));
    fs::write(&file, counted).unwrap();
    let auth = format!("auth = {{ method = \"token-file\", path = {file:?} }}");
    let (code, printed, _) = check_online(&with_secrets(world_with_vault(&bao, &auth)).prepare());
    assert!(code == 77 && printed.contains("can be used for 7 more requests"), "{printed}");
}

#[test]
fn paths_without_an_engine_are_reported_although_the_policy_allows_them() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.policy("agent", &[("*", &["read", "update"])]);
    let server =
        Server::fixture().env("A", "{gone.password}").env("B", "{cert.private_key}").env("C", "{who.token}");
    let world = world(&bao)
        .secret("gone", "vault = \"databse/creds/readonly\"")
        .secret("cert", "kv = \"pki/issue/agent\"")
        .secret("who", "vault = \"identity/oidc/token/agent\"")
        .server("tools", server)
        .prepare();
    let (code, printed, _) = check_online(&world);
    assert_eq!(code, 77, "{printed}");
    for line in [
        "  WRONG   nothing is mounted at `databse/creds/readonly`\n",
        "  WRONG   `kv = \"pki/issue/agent\"` (secret `cert` of server `tools`) is in an engine of type `pki`\n",
        "  WRONG   `identity/oidc/token/agent` needs a token with an entity, but the session's token has none\n",
    ] {
        assert!(printed.contains(line), "{line}{printed}");
    }
    assert!(!printed.contains("MISSING") && !printed.contains("\nadd to "), "{printed}");
}

#[test]
fn for_tokens_without_the_default_policy_its_lines_are_printed() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, token_role(&["agent"]).token_no_default_policy(true).orphan(true));
    let world = with_secrets(world_with_vault(&bao, &auth)).prepare();
    let before = tokens(&bao, |_| true).len();
    let (code, printed, _) = check_online(&world);
    assert_eq!(code, 77, "{printed}");
    assert!(
        printed.contains("path \"sys/capabilities-self\" {\n  capabilities = [\"update\"]\n}\n"),
        "{printed}"
    );
    bao.policy(
        "agent",
        &[
            ("secret/data/github", &["read"]),
            ("pki/issue/agent", &["update"]),
            ("sys/capabilities-self", &["update"]),
        ],
    );
    let (code, printed, _) = check_online(&world);
    assert_eq!(code, 77, "{printed}");
    for path in ["auth/token/lookup-self", "auth/token/revoke-self", "sys/leases/renew"] {
        assert!(printed.contains(&format!("path \"{path}\" {{\n")), "{path}: {printed}");
    }
    assert_eq!(
        tokens(&bao, |_| true).len(),
        before,
        "a token that cannot revoke itself was not revoked by its accessor"
    );
}

#[test]
fn a_wrapping_token_is_looked_up_and_not_unwrapped() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    minter(&bao, &mut token_role(&["agent"]));
    let wrap = |path: &str| wrap(&bao, path, &json!({}));
    let good = wrap("auth/approle/role/sidecar/secret-id");
    let file = write(&bao, "wrap", &good);
    let role_id = bao.directory.path().join("role-id");
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {file:?}, secret-id-wrapped = true, role = \"sidecar\" }}\n\
         token-role = \"cofferdam\""
    );
    let world = with_secrets(world_with_vault(&bao, &auth)).prepare();
    let printed = assert_check_succeeds(&world);
    assert!(printed.contains("by `auth/approle/role/sidecar/secret-id` as expected"), "{printed}");
    assert!(
        printed.contains("NOT CHECKED: what the policies allow")
            && printed.ends_with("\nnothing is missing, as far as it was checked\n"),
        "{printed}"
    );
    // Created by another role: it is not unwrapped either.
    bao.app_role("other", &mut AppRole::default());
    let foreign = wrap("auth/approle/role/other/secret-id");
    write(&bao, "wrap", &foreign);
    let (code, _, stderr) = check_online(&world);
    assert!(
        code == 77 && stderr.contains("was not made by `auth/approle/role/sidecar/secret-id`"),
        "{stderr}"
    );
    for wrap in [good, foreign] {
        let opened = unwrap(&bao, &wrap);
        assert!(opened["secret_id"].is_string(), "the check had unwrapped it: {opened:?}");
    }
    let (code, _, stderr) = check_online(&world);
    assert!(code == 77 && stderr.contains("is spent") && stderr.contains("deliver a new wrap"), "{stderr}");
}

#[test]
fn a_check_that_cannot_reach_or_use_vault_reports_the_reason() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let ready = with_secrets(world(&bao)).prepare();
    let login = bao.directory.path().join("token");
    fs::write(&login, "s.anunknowntokenofthisvault").unwrap();
    let (code, _, stderr) = check_online(&ready);
    assert!(
        code == 77 && stderr.contains("GET `auth/token/lookup-self`") && stderr.contains("\nhint: "),
        "{stderr}"
    );
    fs::remove_file(&login).unwrap();
    let (code, _, stderr) = check_online(&ready);
    assert!(code == 66 && stderr.contains(&login.display().to_string()), "{stderr}");
    bao.seal();
    let (code, printed, stderr) = check_online(&ready);
    assert!(
        code == 69 && printed.contains(", sealed") && stderr.contains("hint: unseal Vault"),
        "{printed}{stderr}"
    );
    bao.process.signal(Signal::SIGKILL);
    let (code, _, stderr) = check_online(&ready);
    assert!(
        code == 69 && stderr.contains("Vault") && stderr.contains("hint: check that Vault is up"),
        "{stderr}"
    );
    let none = World::new().server("tools", Server::fixture()).prepare();
    assert!(assert_check_succeeds(&none).contains("vault: none is configured"));
}

/// One server with a key-value secret and a certificate.
fn with_secrets(builder: Builder) -> Builder {
    let server = Server::fixture().env("TOKEN", "{github.token}").file("key.pem", "{cert.private_key}");
    builder
        .secret("github", "kv = \"secret/github\"")
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("tools", server)
}

/// The check's exit code, stdout and stderr. Asserts that no token is in them.
#[track_caller]
fn check_online(world: &World) -> (i32, String, String) {
    let output = world.cofferdam(&["check", "--online"]);
    let [printed, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("the output is UTF-8"));
    for text in [&printed, &stderr] {
        let is_token = |word: &str| {
            word.split("s.")
                .skip(1)
                .any(|tail| tail.bytes().take_while(u8::is_ascii_alphanumeric).count() >= 20)
        };
        assert!(!text.split_whitespace().any(is_token), "the output contains a token: {text}");
        assert!(!text.contains("CANARY"), "{text}");
    }
    (output.status.code().expect("it ends by itself"), printed, stderr)
}

#[track_caller]
fn assert_check_succeeds(world: &World) -> String {
    let (code, printed, stderr) = check_online(world);
    assert_eq!(code, 0, "{printed}{stderr}");
    printed
}

fn write(bao: &OpenBao, name: &str, text: &str) -> PathBuf {
    let path = bao.directory.path().join(name);
    fs::write(&path, text).expect("a temporary directory is writable");
    path
}
