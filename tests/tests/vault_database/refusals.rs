//! When no database user can be created, the refusal names secret and server, other links continue, and no restart is
//! needed.

use cofferdam_tests::database::{Database, LONG};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::postgres::OWNER_PASSWORD;
use cofferdam_tests::server::Server;
use serde_json::{Value, json};

use crate::support::{connect_and_check_login, start_world, with_fixture};

#[test]
fn a_deleted_database_role_refuses_the_next_process_and_affects_no_other_server() {
    let Some(database) = Database::start() else { return };
    let world = start_world(&database, |builder| builder.server("other", Server::fixture().allow(&["*"])));
    let (mut harness, _) = connect_and_check_login(&database, &world);
    let mut other = world.connected("other");
    let delete = async |client: &_| vaultrs::database::role::delete(client, "database", "agent").await;
    database.bao.operator("delete the role", delete);
    assert!(harness.call("echo", json!({"text": "still here"})).get("result").is_some());
    let refused = world.shim("tools").initialize();
    assert_refused(&refused, "`tools`");
    // The attempt left no user behind.
    assert_eq!(database.users().len(), 1);
    assert!(other.call("echo", json!({"text": "unharmed"})).get("result").is_some());
    database.role("agent", LONG);
    wait_until("the server starts", || world.shim("tools").initialize().get("result").is_some());
}

#[test]
fn an_engine_that_cannot_log_in_is_refused_and_recovers_without_a_restart() {
    let Some(database) = Database::start() else { return };
    database.role("agent", LONG);
    database.connect("not-the-password-of-the-owner");
    let world = with_fixture(&database).start();
    let mut harness = world.shim("tools");
    let refused = harness.initialize();
    assert_refused(&refused, "`tools`");
    let address = database.postgres.listens_at.to_string();
    for hidden in ["not-the-password", "user=", &address] {
        assert!(!refused.to_string().contains(hidden), "{hidden}: {refused}");
    }
    assert!(world.log().contains(&address), "the log does not have Vault's message");
    assert!(database.users().is_empty() && world.fixture_processes("tools").is_empty());
    database.connect(OWNER_PASSWORD);
    wait_until("the server starts", || harness.initialize().get("result").is_some());
    assert_eq!(database.postgres.log_in(&database.url_in_process()), Ok(()));
}

#[track_caller]
fn assert_refused(answer: &Value, server: &str) {
    assert_eq!(refusal_of(answer), "credential_unavailable");
    assert!(!answer.to_string().contains("database/creds"), "{answer}");
    for word in ["the secret `db`", server, "tried again in "] {
        assert!(answer.to_string().contains(word), "{word}: {answer}");
    }
}
