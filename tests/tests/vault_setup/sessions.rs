//! From an empty Vault to a session with a tool call, and what the command leaves on this host.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use cofferdam_tests::database::{Database, LONG, user_of};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::postgres::{OWNER_PASSWORD, Postgres};
use cofferdam_tests::server::{Server, environment};
use cofferdam_tests::vault::{leave, session_tokens, tokens};
use serde_json::{Value, json};

use super::support::{CANARY, changes_since, file, files_with, set_up, state_of, world, write_value};

#[test]
fn an_empty_vault_becomes_a_working_session() {
    let Some(postgres) = Postgres::start() else { return };
    let Some(bao) = OpenBao::configured() else { return };
    postgres.query("CREATE TABLE made (name text PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())");
    let database = Database { bao, postgres };
    let bao = &database.bao;
    let server = Server::fixture().env("TOKEN", "{github.token}").allow(&["*"]);
    let builder = world(bao).secret("db", &user_of("agent"));
    let mut world = builder.server("tools", database.with_url(server, "db")).prepare();
    // What the command cannot make is named; the check at the end finds the engine missing.
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(77)
        .assert_prints("secret `db` needs an engine that serves `database/creds/agent`\n    next: enable")
        .assert_prints(
            "secret `github`: `team/github` has no value yet\n    next: bao kv put team/github token=-, which reads the value from stdin",
        )
        .assert_prints("  WRONG   nothing is mounted at `database/creds/agent`\n");
    bao.mount("database", "database");
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_prints("`database/creds/agent` needs the role `database/roles/agent`, which does not exist");
    database.connect(OWNER_PASSWORD);
    database.role("agent", LONG);
    write_value(bao);
    let run = set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    assert!(
        run.printed.ends_with("nothing is missing\n") && !run.printed.contains("left to you"),
        "{}",
        run.printed
    );
    let before = tokens(bao, |_| true).len();
    world.start_sidecar();
    let mut harness = world.connected("tools");
    let shown = harness.call("env", json!({})).to_string();
    assert!(shown.contains("TOKEN=[redacted:github.token]"), "{shown}");
    let process = world.fixture_processes("tools")[0];
    assert!(environment(process).contains(&format!("TOKEN={CANARY}\0")), "the server has no secret");
    assert_eq!(database.postgres.log_in(&database.url_in_process()), Ok(()));
    let made = session_tokens(bao);
    assert!(
        made.iter().all(|token| token["policies"] == json!(["agent-dev"])) && !made.is_empty(),
        "{made:?}"
    );
    leave(harness);
    world.wait_until("the session's credentials are revoked", || {
        database.users().is_empty() && session_tokens(bao).is_empty()
    });
    world.stop_sidecar();
    assert_eq!(tokens(bao, |_| true).len(), before, "a token is left");
}

#[test]
fn policies_allow_exactly_what_the_configuration_needs() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    let paths = |policy: &str| {
        let text = bao.api("GET", &format!("sys/policies/acl/{policy}"), Value::Null);
        let text = text["data"]["policy"].as_str().unwrap().to_owned();
        let paths = text.lines().filter_map(|line| line.strip_prefix("path \"")?.strip_suffix("\" {"));
        paths.map(str::to_owned).collect::<Vec<_>>()
    };
    let own = ["auth/token/lookup-self", "auth/token/revoke-self", "sys/capabilities-self"];
    assert_eq!(paths("agent-dev"), [&own[..], &["team/data/github"]].concat());
    let sidecar = [
        "auth/token/create/sessions",
        "auth/token/lookup-self",
        "auth/token/renew-self",
        "auth/token/revoke-accessor",
        "auth/token/revoke-self",
        "sys/capabilities-self",
        "sys/leases/lookup",
    ];
    assert_eq!(paths("cofferdam"), sidecar);
    let role = &bao.api("GET", "auth/token/roles/sessions", Value::Null)["data"];
    assert_eq!(
        (&role["allowed_policies"], &role["token_no_default_policy"]),
        (&json!(["agent-dev"]), &json!(true))
    );
}

#[test]
fn a_second_run_changes_nothing() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nmade: policy `agent-dev`\n");
    let (state, audit) = (state_of(&bao), bao.audit().len());
    let files = ["role-id", "secret-id"].map(|name| fs::read(file(&world, name)).unwrap());
    set_up(&world, &bao.root_token, &["--dry-run"]).assert_code(0).assert_prints("\nnothing to do\n");
    assert_eq!(changes_since(&bao, audit), Vec::<String>::new());
    let run = set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    assert!(!run.printed.contains("made: ") && !run.printed.contains("  + "), "{}", run.printed);
    assert_eq!(state_of(&bao), state);
    assert_eq!(["role-id", "secret-id"].map(|name| fs::read(file(&world, name)).unwrap()), files);
}

#[test]
fn a_dry_run_changes_neither_vault_nor_this_host() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let state = state_of(&bao);
    let audit = bao.audit().len();
    let entries = || {
        let mut names: Vec<_> =
            fs::read_dir(world.layout().root()).unwrap().flatten().map(|entry| entry.path()).collect();
        names.extend(fs::read_dir(&world.layout().state).unwrap().flatten().map(|entry| entry.path()));
        names.sort();
        names
    };
    let files = entries();
    set_up(&world, &bao.root_token, &["--dry-run"])
        .assert_code(0)
        .assert_prints("policy `agent-dev`: new\n  + # What sessions of the grant `dev` may do.")
        .assert_prints("token role `sessions`: new\n  + allowed_policies = agent-dev\n")
        .assert_prints("\nnothing was changed: this is a dry run\n");
    assert_eq!(changes_since(&bao, audit), Vec::<String>::new());
    assert!(bao.audit().len() > audit, "the dry run did not look at Vault");
    assert_eq!(state_of(&bao), state);
    assert_eq!(entries(), files);
}

#[test]
fn credentials_are_in_their_files_only() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let operator = bao.create_token(cofferdam_tests::vault::new_token(&["root"]).ttl("10m"));
    set_up(&world, &operator, &["--yes"]).assert_code(0);
    for name in ["role-id", "secret-id"] {
        let path = file(&world, name);
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
        let credential = fs::read_to_string(&path).unwrap();
        assert!(credential.len() >= 32, "{name} is short");
        assert_eq!(files_with(world.layout().root(), &credential), [path], "{name}");
    }
    assert_eq!(files_with(world.layout().root(), &operator), Vec::<std::path::PathBuf>::new());
    let record = world.layout().state.join("vault-setup.json");
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600);
}
