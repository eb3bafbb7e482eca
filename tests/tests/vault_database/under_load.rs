//! A minute of queries with users that live for seconds: while they are replaced, no call fails and none runs twice.
//!
//! The server is a real one; its queries are read from PostgreSQL's log. A user lives five seconds from each renewal
//! and ten in all: the second renewal does not extend it, so it is replaced some six seconds after its creation. For
//! each user one call takes longer than the lease: it ends in the process in which it began, while later calls run in
//! the next.
//!
//! A maximum of ten seconds leaves the most time for a replacement. Vault counts whole seconds, renewals are 3.0 to
//! 3.3 s apart, and a renewal that returns less than 4.5 s is the last: of ten seconds, 3.3 to 4 s are left then.
//! With a maximum of eight or eleven a renewal may return five, count as complete, and the next returns one or two.
//! With seven hardly more is left, and no call longer than the lease fits into that lifetime.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cofferdam_tests::database::{Database, LeaseTimes, user_of};
use cofferdam_tests::deadline::{Deadline, PATIENCE, wait_until};
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::leave;
use serde_json::{Value, json};

const BRIEF: LeaseTimes = LeaseTimes { ttl: "5s", max_ttl: "10s" };
const RENEWED: LeaseTimes = LeaseTimes { ttl: "5s", max_ttl: "1h" };

/// How long calls are made.
const LOAD_TIME: Duration = Duration::from_secs(60);
/// Short calls in flight at any time.
const IN_FLIGHT: usize = 8;
/// Seconds that a short call takes in the database, and that a call takes which is longer than a lease.
const SHORT: f64 = 0.4;
const LONGER_THAN_THE_LEASE: f64 = 5.2;
/// The maximum age in seconds of a user for a long call: the lease of an older user would expire before its end.
const MAX_AGE: f64 = 4.0;

#[test]
fn a_minute_of_calls_survives_users_that_live_for_seconds() {
    let Some(database) = Database::start() else { return };
    let (Some(brief), Some(renewed)) = (Server::postgres(), Server::postgres()) else { return };
    database.role("brief", BRIEF);
    database.role("renewed", RENEWED);
    let world = database
        .world("brief")
        .secret("renewed", &user_of("renewed"))
        .server("brief", database.with_url(brief, "db").allow(&["query"]))
        .server("renewed", database.with_url(renewed, "renewed").allow(&["query"]))
        .start();
    let (mut brief, mut renewed) = (Calls::new(&world, "brief"), Calls::new(&world, "renewed"));
    let deadline = Deadline::after(LOAD_TIME);
    std::thread::scope(|threads| {
        threads.spawn(|| renewed.one_after_the_other(&deadline));
        brief.many_at_once(&database, &deadline);
    });

    eprintln!(
        "{} calls, {} of them longer than the lease; {} users; beside them {} calls of one user",
        brief.users_by_call.len(),
        brief.long,
        brief.users().len(),
        renewed.users_by_call.len()
    );
    let executed = database.postgres.executed();
    for calls in [&brief, &renewed] {
        for name in calls.users_by_call.keys() {
            let times =
                executed.iter().filter(|statement| statement.text.contains(&format!("'{name}'"))).count();
            assert_eq!(times, 1, "{name} did not run exactly once");
        }
    }
    assert!(brief.users_by_call.len() >= 300, "fewer than 300 calls: {}", brief.users_by_call.len());
    assert!(brief.users().len() >= 6, "fewer than six users: {:?}", brief.users());
    assert!(brief.long >= 3, "fewer than three calls took longer than the lease: {}", brief.long);
    // A renewable lease is renewed: no process was replaced.
    assert_eq!(renewed.users().len(), 1, "{:?}", renewed.users());
    assert!(renewed.users_by_call.len() >= 5, "{}", renewed.users_by_call.len());

    // Both sessions are open; of the first session's users only the last one is left, or its successor.
    let mut old = brief.users();
    old.remove(&brief.last_user);
    wait_until("the old users are gone", || {
        let there: BTreeSet<String> = database.users().into_iter().chain(database.connected()).collect();
        old.is_disjoint(&there)
    });
    leave(brief.harness);
    leave(renewed.harness);
    wait_until("all users are gone", || database.users().is_empty() && database.connected().is_empty());
}

/// Calls of one harness, each with a name of its own.
struct Calls {
    harness: Harness,
    server: &'static str,
    sent_count: usize,
    in_flight: BTreeMap<String, String>,
    /// The user that ran each call with a response, by the call's name.
    users_by_call: BTreeMap<String, String>,
    last_user: String,
    long: usize,
}

impl Calls {
    #[track_caller]
    fn new(world: &cofferdam_tests::world::World, server: &'static str) -> Self {
        let harness = world.connected(server);
        Self {
            harness,
            server,
            sent_count: 0,
            in_flight: BTreeMap::new(),
            users_by_call: BTreeMap::new(),
            last_user: String::new(),
            long: 0,
        }
    }

    #[track_caller]
    fn many_at_once(&mut self, database: &Database, deadline: &Deadline) {
        let mut long = None;
        let mut known = BTreeSet::new();
        loop {
            while !deadline.is_over() && self.in_flight.len() - usize::from(long.is_some()) < IN_FLIGHT {
                self.send(SHORT);
            }
            if self.in_flight.is_empty() {
                return;
            }
            let (name, user) = self.next_response();
            if long == Some(name) {
                long = None;
                self.long += 1;
            }
            if known.insert(user.clone())
                && long.is_none()
                && !deadline.is_over()
                && database.age(&user) < MAX_AGE
            {
                long = Some(self.send(LONGER_THAN_THE_LEASE));
            }
        }
    }

    #[track_caller]
    fn one_after_the_other(&mut self, deadline: &Deadline) {
        while !deadline.is_over() {
            self.send(LONGER_THAN_THE_LEASE + 2.0);
            self.next_response();
        }
    }

    fn users(&self) -> BTreeSet<String> {
        self.users_by_call.values().cloned().collect()
    }

    fn send(&mut self, seconds: f64) -> String {
        self.sent_count += 1;
        let name = format!("{}-{}", self.server, self.sent_count);
        let sql = format!("SELECT pg_sleep({seconds}), current_user AS user, '{name}' AS call");
        let id = self.harness.send_call("query", json!({"sql": sql}));
        self.in_flight.insert(id.to_string(), name.clone());
        name
    }

    /// Waits for the next response; returns the name of its call and the database user that ran it.
    #[track_caller]
    fn next_response(&mut self) -> (String, String) {
        loop {
            let message = self.harness.next_message_within(PATIENCE);
            if message.get("method").is_some() {
                continue;
            }
            let name =
                self.in_flight.remove(&message["id"].to_string()).expect("each call gets one response");
            assert!(
                message["result"]["isError"] != json!(true),
                "{name} after {}: {message}",
                self.users_by_call.len()
            );
            let rows: Value = serde_json::from_str(&text_of(&message)).expect("this server answers in JSON");
            assert_eq!(rows[0]["call"], *name, "{message}");
            let user = rows[0]["user"].as_str().expect("every query has a user").to_owned();
            self.users_by_call.insert(name.clone(), user.clone());
            self.last_user.clone_from(&user);
            return (name, user);
        }
    }
}
