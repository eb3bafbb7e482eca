//! Single schedules that the random ones do not reach, or do not look at closely enough.

use std::io;
use std::sync::{Condvar, Mutex};

use super::*;

/// The first tool answers at once.
const NOW: u8 = 0;
/// The third answers after some seconds.
const LATE: u8 = 2;
/// The last one answers with more than is scrubbed on the link's own task.
const LARGE: u8 = 12;

impl Life {
    pub(super) fn responses(&self) -> Vec<usize> {
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

#[tokio::test(start_paused = true)]
async fn a_large_response_is_scrubbed_by_a_worker_and_not_overtaken() {
    let mut life = Life::new(Retry::Never);
    life.call(LARGE, MaybeRan::No);
    life.until_responses(&[1]).await;
    life.pass(Duration::from_millis(100)).await;
    assert_eq!(life.arrived, ["1", "notifications/after"]);
    assert!(life.fixture.audit().contains("\"redactions\":1"), "{}", life.fixture.audit());
}

/// A disk that takes no records while it is closed.
#[derive(Clone, Default)]
struct Disk(Arc<(Mutex<bool>, Condvar)>);

impl Disk {
    fn set_closed(&self, is_closed: bool) {
        *self.0.0.lock().unwrap() = is_closed;
        self.0.1.notify_all();
    }

    fn life(&self) -> Life {
        let configuration = server_configuration(Retry::Never);
        let disk = self.clone();
        let sync = move |_: &std::fs::File| {
            drop(disk.0.1.wait_while(disk.0.0.lock().unwrap(), |is_closed| *is_closed).unwrap());
            Ok(())
        };
        let fixture = Fixture::with_sync("audit-sync = \"call\"", &configuration, sync);
        Life::in_fixture(fixture, Retry::Never)
    }
}

impl Life {
    /// The audit's threads are not on the test's clock.
    pub(super) async fn until_responses(&mut self, expected: &[usize]) {
        let mut turns = 0;
        while self.responses() != expected {
            turns += 1;
            assert!(turns < 100_000, "{:?}", self.responses());
            self.pass(Duration::from_millis(1)).await;
        }
    }

    async fn is_described(&mut self) -> bool {
        let (reply, described) = oneshot::channel();
        self.commands.send(Command::Describe(reply)).await.unwrap();
        self.pass(Duration::from_millis(1)).await;
        described.await.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_audits_disk_is_slow_only_new_calls_wait() {
    let disk = Disk::default();
    let mut life = disk.life();
    life.call(LATE, MaybeRan::No);
    while life.seen.runs(1) == 0 {
        life.pass(Duration::ZERO).await;
    }
    disk.set_closed(true);
    life.call(NOW, MaybeRan::No);
    life.pass(Duration::from_secs(4)).await;
    assert_eq!(life.responses(), [1, 0], "the response that was under way arrives");
    assert!(life.is_described().await, "a command is answered");
    assert_eq!(life.seen.runs(2), 0, "nothing is sent before its decision is on the disk");
    disk.set_closed(false);
    life.until_responses(&[1, 1]).await;
    assert_eq!((life.seen.runs(2), life.seen.violations()), (1, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_recorded_in_time_is_refused_and_its_late_record_says_so() {
    let disk = Disk::default();
    let mut life = disk.life();
    disk.set_closed(true);
    life.call(NOW, MaybeRan::No);
    life.pass(Duration::from_secs(9)).await;
    assert_eq!(life.responses(), [0]);
    life.pass(Duration::from_secs(2)).await;
    assert_eq!(life.responses(), [1], "refused after ten seconds");
    life.call(NOW, MaybeRan::No);
    life.pass(Duration::from_millis(1)).await;
    assert_eq!(life.responses(), [1, 1], "the next one is refused at once");
    disk.set_closed(false);
    let mut turns = 0;
    while !life.fixture.audit().contains("\"result\":\"refused\"") {
        turns += 1;
        assert!(turns < 10_000, "{}", life.fixture.audit());
        life.pass(Duration::from_millis(30)).await;
    }
    life.call(NOW, MaybeRan::No);
    life.until_responses(&[1, 1, 1]).await;
    assert_eq!([1, 2, 3].map(|call| life.seen.runs(call)), [0, 0, 1]);
}
