//! A session's database user works during the session and cannot log in after it, however the session ended.

use cofferdam_tests::database::{Database, LONG};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::leave;
use serde_json::json;

use crate::support::{assert_login_refused, connect_and_check_login, start_world};

#[test]
fn a_real_server_queries_a_real_database_with_its_own_user() {
    let Some(database) = Database::start() else { return };
    let Some(server) = Server::postgres() else { return };
    database.role("agent", LONG);
    let server = database.with_url(server, "db").allow(&["query"]);
    let world = database.world("agent").server("database", server).capturing().start();
    let mut harness = world.connected("database");
    let url = database.url_in_process();
    let password = url.split(['/', ':', '@']).nth(4).unwrap();
    let answer = harness
        .call_text("query", json!({"sql": format!("SELECT current_user, 6 * 7 AS n, '{password}' AS p")}));
    assert!(answer.contains("\"n\": 42"), "{answer}");
    assert!(answer.contains("[redacted:db.password]"), "{answer}");
    let users = database.users();
    assert_eq!(users.len(), 1, "{users:?}");
    assert!(answer.contains(&users[0]), "{users:?}: {answer}");
    assert_eq!(database.postgres.log_in(&url), Ok(()));
    world.assert_secret_not_leaked(password);
    leave(harness);
    wait_until("the user is gone", || database.users().is_empty());
    assert_login_refused(&database, &url);
    assert!(database.connected().is_empty());
}

#[test]
fn after_a_killed_shim_no_database_user_is_left() {
    let Some(database) = Database::start() else { return };
    let world = start_world(&database, |builder| builder.relay("resume-grace = \"1s\""));
    let (mut harness, url) = connect_and_check_login(&database, &world);
    harness.kill9();
    wait_until("the user is gone", || database.users().is_empty());
    assert_login_refused(&database, &url);
}

#[test]
fn after_a_stopped_sidecar_no_database_user_is_left() {
    let Some(database) = Database::start() else { return };
    let mut world = start_world(&database, |builder| builder);
    let (_harness, url) = connect_and_check_login(&database, &world);
    world.stop_sidecar();
    assert_login_refused(&database, &url);
    assert!(database.users().is_empty());
}

#[test]
fn database_users_of_a_killed_sidecar_cannot_log_in_after_the_next_start() {
    let Some(database) = Database::start() else { return };
    let mut world = start_world(&database, |builder| builder);
    let (harness, url) = connect_and_check_login(&database, &world);
    world.kill9_sidecar();
    drop(harness);
    assert_eq!(database.postgres.log_in(&url), Ok(()), "the user was revoked without a sidecar");
    world.start_sidecar();
    wait_until("the user is gone", || database.users().is_empty());
    assert_login_refused(&database, &url);
}

#[test]
fn users_of_a_database_that_is_down_are_pending_and_removed_later() {
    let Some(mut database) = Database::start() else { return };
    let world = start_world(&database, |builder| builder);
    let (_harness, url) = connect_and_check_login(&database, &world);
    database.postgres.stop();
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let printed = world.cofferdam_text(&["kill", &session]);
    // Vault has revoked the token; its leases wait for the database.
    assert!(printed.contains("Vault token: revoked after "), "{printed}");
    assert!(printed.contains(" of `db`: pending (Vault is still revoking it)"), "{printed}");
    let end = world.audit().into_iter().rfind(|record| record["event"] == "link_end").unwrap();
    assert!(end["detail"].as_str().unwrap().contains("leases: 0 revoked, 1 pending"), "{end}");
    database.postgres.up();
    assert_eq!(database.postgres.log_in(&url), Ok(()), "a user whose revocation is pending cannot log in");
    wait_until("the user is gone", || database.users().is_empty());
    assert_login_refused(&database, &url);
    wait_until("the sidecar logs the revocation", || {
        world.log().contains("a session's credentials in Vault are revoked")
    });
}
