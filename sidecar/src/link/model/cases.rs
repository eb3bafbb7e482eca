//! Single schedules that the random ones do not reach, or do not look at closely enough.

use std::io;

use super::*;

/// The first tool answers at once.
const NOW: u8 = 0;

impl Life {
    fn responses(&self) -> Vec<usize> {
        self.requests.values().map(|request| request.responses).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_audit_does_not_hold_up_later_ones() {
    let mut life = Life::new(Retry::Never);
    let permit = life.session.lookup_permit().await.expect("nothing else searches");
    life.call(NOW, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 1 }));
    life.call(NOW, MaybeRan::No);
    life.pass(Duration::from_millis(1)).await;
    assert_eq!(life.responses(), [0, 1], "the later request overtakes");
    drop(permit);
    // The search is over: the audit knows no such message, so it never left.
    while life.responses() != [1, 1] {
        life.pass(Duration::from_millis(1)).await;
    }
    assert_eq!((life.seen.runs(1), life.seen.runs(2)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_search_of_the_audit_that_takes_too_long_leaves_the_outcome_unknown() {
    let mut life = Life::new(Retry::Never);
    let _permit = life.session.lookup_permit().await.expect("nothing else searches");
    life.call(NOW, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 1 }));
    life.pass(Duration::from_secs(1)).await;
    assert_eq!(life.responses(), [0]);
    life.pass(Duration::from_secs(2)).await;
    assert_eq!((life.responses(), life.seen.runs(1)), (vec![1], 0));
    assert!(life.fixture.audit().contains("\"rule\":\"maybe-ran\""));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_audit_can_be_cancelled_and_its_id_is_in_use() {
    let mut life = Life::new(Retry::Never);
    let permit = life.session.lookup_permit().await.expect("nothing else searches");
    life.call(NOW, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 1 }));
    life.pass(Duration::from_millis(1)).await;
    let (_, again) = life.message(1, NOW);
    life.shim.push(again.as_bytes(), MaybeRan::No);
    life.pass(Duration::from_millis(1)).await;
    assert_eq!((life.responses(), life.nameless), (vec![0], 1), "refused, because the id is in use");
    life.cancel(1).await;
    drop(permit);
    life.pass(Duration::from_secs(3)).await;
    assert_eq!((life.responses(), life.seen.runs(1)), (vec![0], 0));
}

/// The decision is in the file, but a power failure could take it away again: the call is not made, and the audit says so.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_written_but_not_synced_refuses_its_call() {
    let configuration = server_configuration(Retry::Never);
    let fixture = Fixture::with_sync("audit-sync = \"call\"", &configuration, |_| {
        Err(io::Error::other("the disk is gone"))
    });
    let mut life = Life::in_fixture(fixture, Retry::Never);
    life.call(NOW, MaybeRan::No);
    // The audit's sync thread is not on the test's clock.
    while life.responses() != [1] {
        life.pass(Duration::from_millis(1)).await;
    }
    life.pass(Duration::from_millis(100)).await;
    assert_eq!((life.seen.runs(1), life.script.started()), (0, 0), "nothing was sent or started");
    let audit = life.fixture.audit();
    let line = |kind: &str| {
        let found = audit.lines().find(|line| line.contains(kind) && line.contains("\"tool\":\"now\""));
        found.unwrap_or_else(|| panic!("no {kind} in {audit}")).to_owned()
    };
    assert!(line("\"kind\":\"decision\"").contains("\"verdict\":\"allow\""));
    let outcome = line("\"kind\":\"outcome\"");
    assert!(
        outcome.contains("\"result\":\"refused\"") && outcome.contains("\"code\":\"server_unavailable\"")
    );
}
