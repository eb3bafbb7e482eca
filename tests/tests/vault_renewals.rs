//! Renewable leases of a real database: renewed as long as that extends them, and replaced when it does not or when the
//! operator has revoked them.

use std::time::Duration;

use cofferdam_tests::database::{Database, LeaseTimes};
use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::list;
use cofferdam_tests::world::World;
use serde_json::json;

/// A session whose server has a database user with these lease times.
fn session(database: &Database, times: LeaseTimes) -> (World, Harness) {
    database.role("agent", times);
    let server = database.with_url(Server::fixture(), "db").allow(&["*"]);
    let world = database.world("agent").server("tools", server).start();
    let harness = world.connected("tools");
    (world, harness)
}

fn lease_ids(database: &Database) -> Vec<String> {
    let bao = &database.bao;
    let path = "sys/leases/lookup/database/creds/agent";
    list(bao, path).iter().map(|id| format!("database/creds/agent/{id}")).collect()
}

/// The time of the last renewal of the only lease.
fn last_renewal(database: &Database) -> String {
    let ids = lease_ids(database);
    assert_eq!(ids.len(), 1, "{ids:?}");
    let facts = database.bao.api("POST", "sys/leases/lookup", json!({"lease_id": ids[0]}));
    facts["data"]["last_renewal"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_lease_is_renewed_as_long_as_that_extends_it() {
    let Some(database) = Database::start() else { return };
    let (_world, mut harness) = session(&database, LeaseTimes { ttl: "6s", max_ttl: "1h" });
    let (users, url) = (database.users(), database.url_in_process());
    for _ in 0..3 {
        let before = last_renewal(&database);
        wait_until("it is renewed once more", || last_renewal(&database) != before);
    }
    // That is longer than the first lease duration; the process kept running.
    assert_eq!((database.users(), database.url_in_process()), (users, url.clone()));
    assert_eq!(database.postgres.log_in(&url), Ok(()));
    assert!(harness.call("env", json!({})).get("result").is_some());
}

#[test]
fn a_lease_that_meets_its_maximum_is_replaced_before_it_ends() {
    let Some(database) = Database::start() else { return };
    let (world, mut harness) = session(&database, LeaseTimes { ttl: "9s", max_ttl: "12s" });
    let first = database.users().pop().unwrap();
    wait_until("there is another user", || {
        let users = database.users();
        assert!(!users.is_empty(), "there was no user for a while");
        // The first renewal extends the lease by less than its TTL, so the lease is replaced and not renewed again.
        let renewals = world.sessions()[0]["credentials"][0]["renewals"].as_u64();
        assert!(renewals.is_some_and(|renewals| renewals <= 1), "{renewals:?}");
        users.iter().any(|user| *user != first)
    });
    wait_until("the first one is gone", || {
        let users = database.users();
        assert!(!users.is_empty(), "there was no user for a while");
        users.iter().all(|user| *user != first)
    });
    // The new process has the new user.
    let url = database.url_in_process();
    assert!(!url.contains(&first), "{first} is still in use");
    assert_eq!(database.postgres.log_in(&url), Ok(()));
    assert!(harness.call("env", json!({})).get("result").is_some());
}

#[test]
fn no_user_is_made_for_a_process_that_keeps_its_own() {
    let Some(database) = Database::start() else { return };
    database.role("agent", LeaseTimes { ttl: "6s", max_ttl: "9s" });
    let server = database.with_url(Server::fixture(), "db").line("replace = \"never\"").allow(&["*"]);
    let world = database.world("agent").server("tools", server).start();
    let mut harness = world.connected("tools");
    let first = database.users();
    assert_eq!(first.len(), 1);
    wait_until("the lease of the only user has ended", || {
        let users = database.users();
        assert!(users.iter().all(|user| first.contains(user)), "a user was made that no process can take");
        users.is_empty()
    });
    let is_made = holds_within(Duration::from_secs(7), || !database.users().is_empty());
    assert!(!is_made, "a user was made that no process can take");
    let shown = world.cofferdam_text(&["sessions"]);
    for words in [", expired", "no new one is made", "the process keeps it (`replace = \"never\"`)"] {
        assert!(shown.contains(words), "{words}\n{shown}");
    }
    // The process serves what needs no database.
    assert!(harness.call("env", json!({})).get("result").is_some());
}

#[test]
fn a_lease_that_the_operator_revoked_is_replaced() {
    let Some(database) = Database::start() else { return };
    let (_world, _harness) = session(&database, LeaseTimes { ttl: "6s", max_ttl: "1h" });
    let first = database.users().pop().unwrap();
    let id = lease_ids(&database).pop().unwrap();
    database.bao.api("POST", "sys/leases/revoke", json!({"lease_id": id, "sync": true}));
    wait_until("there is another user", || database.users().iter().any(|user| *user != first));
}
