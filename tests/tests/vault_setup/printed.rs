//! The set-up as text: the printed commands do what the command does.

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::vault::write_file;
use cofferdam_tests::vault_logins::{service_account, signed_web_token};
use cofferdam_tests::world::World;
use serde_json::{Value, json};

use super::logins::assert_session_works;
use super::support::{set_up, state_of, world, world_with_login};

/// Runs a script with `bao` on the path, and the root token.
#[track_caller]
fn run_script(bao: &OpenBao, script: &str) {
    let program = Tool::OpenBao.path().expect("its server runs");
    let mut shell = command("/bin/sh");
    shell.env_clear().env("HOME", bao.directory.path()).env("BAO_TOKEN", &bao.root_token);
    shell.env(
        "PATH",
        format!("{}:/usr/bin:/bin", program.parent().expect("a program is in a directory").display()),
    );
    shell.args(["-c", script]);
    let output = output_of(shell, "the printed commands");
    assert!(output.status.success(), "{}\n{script}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_printed_commands_set_up_an_empty_vault() {
    for auth in [
        "auth = { method = \"approle\", role-id-file = \"role-id\", secret-id-file = \"secret-id\" }\ntoken-role = \"sessions\"",
        "auth = { method = \"approle\", mount = \"teams/login\", role-id-file = \"a b/role-id\", secret-id-file = \"secret-id\", secret-id-wrapped = true, role = \"box\" }",
    ] {
        let Some(bao) = OpenBao::configured() else { return };
        let world = world_with_login(&bao.address(), auth).prepare();
        std::fs::create_dir(world.layout().root().join("a b")).unwrap();
        let script = world.cofferdam_text(&["vault", "setup", "--print", "bao"]);
        run_script(&bao, &script);
        world.cofferdam_text(&["check", "--online"]);
        let by_commands = without_times(state_of(&bao));
        // The command finds everything as it would make it.
        set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
        assert_eq!(without_times(state_of(&bao)), by_commands);
        // The script can be run again.
        run_script(&bao, &script);
    }
}

/// The login method is not there before either. That it has to know who issues tokens is left to the operator.
#[test]
fn the_printed_commands_set_up_logins_with_web_tokens_and_service_accounts() {
    let web_token: fn(&OpenBao) -> String = |bao| {
        let claims = json!({"iss": "https://ci.internal", "sub": "sidecar-1", "aud": ["vault"], "iat": 1_700_000_000_u64, "nbf": 1_700_000_000_u64, "exp": 4_000_000_000_u64});
        signed_web_token(bao, &claims)
    };
    let account: fn(&OpenBao) -> String = |bao| service_account(bao, &["default"]);
    // With what Vault does not return of the method's configuration.
    let logins =
        [("jwt", web_token, json!({})), ("kubernetes", account, json!({"token_reviewer_jwt": "reviewer"}))];
    for (method, token, unread) in logins {
        let Some(bao) = OpenBao::dev() else { return };
        let token_file = write_file(&bao, "token", &token(&bao));
        let auth = format!(
            "auth = {{ method = \"{method}\", role = \"sidecar\", jwt-file = {token_file:?} }}\ntoken-role = \"sessions\""
        );
        // What the operator has to configure again is kept.
        let mut issuer = bao.api("GET", &format!("auth/{method}/config"), Value::Null)["data"].clone();
        bao.api("DELETE", &format!("sys/auth/{method}"), Value::Null);
        let mut world = world_with_login(&bao.address(), &auth).prepare();
        let script = world.cofferdam_text(&["vault", "setup", "--print", "bao"]);
        run_script(&bao, &script);
        for (key, value) in unread.as_object().expect("it is an object") {
            issuer[key] = value.clone();
        }
        bao.api("POST", &format!("auth/{method}/config"), issuer);
        world.cofferdam_text(&["check", "--online"]);
        let by_commands = without_times(state_of(&bao));
        assert!(by_commands.contains_key(&format!("auth/{method}/role/sidecar")), "{by_commands:?}");
        // The command finds everything as it would make it.
        set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
        assert_eq!(without_times(state_of(&bao)), by_commands);
        // The script can be run again, and what it made is enough for a session.
        run_script(&bao, &script);
        assert_session_works(&mut world, &bao);
    }
}

#[test]
fn the_printed_text_has_everything_for_terraform() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).secret("db", "vault = \"database/creds/agent\"");
    let world =
        world.server("db", Server::fixture().env("PASSWORD", "{db.password}").allow(&["*"])).prepare();
    let text = world.cofferdam_text(&["vault", "setup", "--print", "terraform"]);
    for part in [
        "resource \"vault_mount\" \"team\" {\n",
        "resource \"vault_policy\" \"agent-dev\" {\n",
        "resource \"vault_token_auth_backend_role\" \"sessions\" {\n",
        "resource \"vault_auth_backend\" \"approle\" {\n",
        "resource \"vault_approle_auth_backend_role\" \"cofferdam\" {\n",
        "# secret `db` needs an engine that serves `database/creds/agent`",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn commands_in_the_text_for_terraform_are_quoted_for_a_shell() {
    let auth = "auth = { method = \"approle\", role-id-file = \"a b/role-id\", secret-id-file = \"it's\" }";
    let world = world_with_login("http://127.0.0.1:8200", auth).prepare();
    let root = world.layout().root().display();
    let text = world.cofferdam_text(&["vault", "setup", "--print", "terraform"]);
    for place in [format!("role-id >'{root}/a b/role-id'\n"), format!("secret-id >'{root}/it'\\''s'\n")] {
        assert!(text.contains(&place), "{place}\n{text}");
    }
}

#[test]
fn each_grant_gets_its_own_secrets_only() {
    let server = |secret: &str| Server::fixture().env("TOKEN", &format!("{{{secret}.token}}")).allow(&["*"]);
    let world = |policies_of_b: &str| {
        World::new()
            .line("[vault]\naddress = \"http://127.0.0.1:8200\"\nauth = { method = \"token-file\", path = \"token\" }\ntoken-role = \"sessions\"")
            .grant("vault-policies = [\"common\", \"only-a\"]")
            .granting(&["one", "both"])
            .secret("one", "kv = \"team/one\"")
            .secret("two", "kv = \"team/two\"")
            .secret("both", "kv = \"team/both\"")
            .server("one", server("one"))
            .server("two", server("two"))
            .server("both", server("both"))
            .grant(&format!("[grants.b]\nservers = [\"two\", \"both\"]\nvault-policies = {policies_of_b}"))
            .prepare()
    };
    let text = world("[\"common\", \"only-b\"]").cofferdam_text(&["vault", "setup", "--print", "bao"]);
    let policy = |name: &str| {
        let text = text.split_once(&format!("bao policy write {name} - <<'END'\n")).expect(&text).1;
        text.split_once("END\n").unwrap().0.to_owned()
    };
    assert!(
        policy("only-a").contains("team/data/one") && !policy("only-a").contains("team/data/two"),
        "{text}"
    );
    assert!(
        policy("only-b").contains("team/data/two") && !policy("only-b").contains("team/data/one"),
        "{text}"
    );
    assert!(policy("common").contains("team/data/both"), "{text}");
    assert!(
        !policy("common").contains("team/data/one") && !policy("common").contains("team/data/two"),
        "{text}"
    );
    // Grants that share their only policy share their secrets, and that is said.
    let text = world("[\"common\"]").cofferdam_text(&["vault", "setup", "--print", "bao"]);
    assert!(
        text.contains("`team/data/two` will be allowed to grant `dev` too, which does not need it"),
        "{text}"
    );
    // The name of the login's policy cannot be that of a grant's.
    let output = world("[\"cofferdam\"]").cofferdam(&["vault", "setup", "--print", "bao"]);
    assert_eq!(output.status.code(), Some(64));
}

/// Without times and identifiers that differ in each server, and without the number of secret-ids.
fn without_times(
    state: std::collections::BTreeMap<String, Value>,
) -> std::collections::BTreeMap<String, Value> {
    let relevant = |(path, mut value): (String, Value)| {
        if let Some(members) = value.as_object_mut() {
            members.remove("modified");
        }
        (!path.ends_with("secret-ids")).then_some((path, value))
    };
    state.into_iter().filter_map(relevant).collect()
}
