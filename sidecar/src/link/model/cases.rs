//! Fixed schedules that the random ones do not reach, or do not check closely enough.

use std::io;
use std::sync::{Condvar, Mutex};

use super::*;

/// The index of a tool that responds at once.
const NOW: u8 = 0;
/// The index of a tool that responds after three seconds.
const LATE: u8 = 2;
/// The index of a tool with a response so large that a worker thread scrubs it.
const LARGE: u8 = 12;

impl ModelLink {
    pub(super) fn responses(&self) -> Vec<usize> {
        self.requests.values().map(|request| request.responses).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_audit_does_not_delay_later_ones() {
    let mut model = ModelLink::new(Retry::Never);
    let permit = model.session.lookup_permit().await.expect("nothing else searches");
    model.call(NOW, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 1 }));
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    assert_eq!(model.responses(), [0, 1], "the later request is answered first");
    drop(permit);
    // The search finds no decision about the earlier message, so it was never sent.
    while model.responses() != [1, 1] {
        model.pass(Duration::from_millis(1)).await;
    }
    assert_eq!((model.log.runs(1), model.log.runs(2)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_search_of_the_audit_that_takes_too_long_leaves_the_outcome_unknown() {
    let mut model = ModelLink::new(Retry::Never);
    let _permit = model.session.lookup_permit().await.expect("nothing else searches");
    model.call(NOW, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 1 }));
    model.pass(Duration::from_secs(1)).await;
    assert_eq!(model.responses(), [0]);
    model.pass(Duration::from_secs(2)).await;
    assert_eq!((model.responses(), model.log.runs(1)), (vec![1], 0));
    assert!(model.fixture.audit().contains("\"rule\":\"maybe-ran\""));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_audit_can_be_cancelled_and_its_id_is_in_use() {
    let mut model = ModelLink::new(Retry::Never);
    let permit = model.session.lookup_permit().await.expect("nothing else searches");
    model.call(NOW, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 1 }));
    model.pass(Duration::from_millis(1)).await;
    let (_, again) = model.message(1, NOW);
    model.shim.push(again.as_bytes(), MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    assert_eq!(
        (model.responses(), model.responses_without_id),
        (vec![0], 1),
        "refused, because the id is in use"
    );
    model.cancel(1).await;
    drop(permit);
    model.pass(Duration::from_secs(3)).await;
    assert_eq!((model.responses(), model.log.runs(1)), (vec![0], 0));
}

/// The decision is in the file, but a power failure could lose it: the call is not made, and the audit says so.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_written_but_not_synced_refuses_its_call() {
    let configuration = server_configuration(Retry::Never);
    let fixture = Fixture::with_sync("audit-sync = \"call\"", &configuration, |_| {
        Err(io::Error::other("the disk is gone"))
    });
    let mut model = ModelLink::in_fixture(fixture, Retry::Never);
    model.call(NOW, MaybeRan::No);
    // The audit's sync thread runs in real time.
    while model.responses() != [1] {
        model.pass(Duration::from_millis(1)).await;
    }
    model.pass(Duration::from_millis(100)).await;
    assert_eq!((model.log.runs(1), model.script.started()), (0, 0), "nothing was sent or started");
    let audit = model.fixture.audit();
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
    let mut model = ModelLink::new(Retry::Never);
    model.call(LARGE, MaybeRan::No);
    model.until_responses(&[1]).await;
    model.pass(Duration::from_millis(100)).await;
    assert_eq!(model.arrived, ["1", "notifications/after"]);
    assert!(model.fixture.audit().contains("\"redactions\":1"), "{}", model.fixture.audit());
}

/// A disk whose sync blocks while [`Self::set_blocked`] is on, but not for longer than [`BLOCKED_AT_MOST`]: then it
/// fails, so that a link which wrongly waits for it makes its test fail instead of hang.
#[derive(Clone, Default)]
struct Disk(Arc<(Mutex<bool>, Condvar)>);

/// In real time, also where tokio's is paused. The tests need a fraction of a second.
const BLOCKED_AT_MOST: Duration = Duration::from_secs(20);

impl Disk {
    fn set_blocked(&self, is_blocked: bool) {
        *self.0.0.lock().unwrap() = is_blocked;
        self.0.1.notify_all();
    }

    fn model_link(&self) -> ModelLink {
        let configuration = server_configuration(Retry::Never);
        let disk = self.clone();
        let sync = move |_: &std::fs::File| {
            let blocked = disk.0.0.lock().unwrap();
            let waited = disk.0.1.wait_timeout_while(blocked, BLOCKED_AT_MOST, |is_blocked| *is_blocked);
            match waited.unwrap().1.timed_out() {
                true => Err(io::Error::other("the test's disk was blocked for too long")),
                false => Ok(()),
            }
        };
        let fixture = Fixture::with_sync("audit-sync = \"call\"", &configuration, sync);
        ModelLink::in_fixture(fixture, Retry::Never)
    }
}

impl ModelLink {
    /// Passes time until these responses arrived. The audit's threads run in real time.
    pub(super) async fn until_responses(&mut self, expected: &[usize]) {
        let mut turns = 0;
        while self.responses() != expected {
            turns += 1;
            assert!(turns < 100_000, "{:?}", self.responses());
            self.pass(Duration::from_millis(1)).await;
        }
    }

    async fn answers_describe(&mut self) -> bool {
        let (reply, described) = oneshot::channel();
        self.commands.send(Command::Describe(reply)).await.unwrap();
        self.pass(Duration::from_millis(1)).await;
        described.await.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_audits_disk_is_slow_only_new_calls_wait() {
    let disk = Disk::default();
    let mut model = disk.model_link();
    model.call(LATE, MaybeRan::No);
    while model.log.runs(1) == 0 {
        model.pass(Duration::ZERO).await;
    }
    disk.set_blocked(true);
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_secs(4)).await;
    assert_eq!(model.responses(), [1, 0], "the response of the earlier call arrives");
    assert!(model.answers_describe().await, "a command is answered");
    // Its decision is written after that of the call before it, not instead of it.
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    assert_eq!(
        [2, 3].map(|call| model.log.runs(call)),
        [0, 0],
        "nothing is sent before its decision is on the disk"
    );
    disk.set_blocked(false);
    model.until_responses(&[1, 1, 1]).await;
    assert_eq!([2, 3].map(|call| model.log.runs(call)), [1, 1]);
    assert_eq!(model.log.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_recorded_in_time_is_refused_and_its_late_record_says_so() {
    let disk = Disk::default();
    let mut model = disk.model_link();
    disk.set_blocked(true);
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_secs(9)).await;
    assert_eq!(model.responses(), [0]);
    model.pass(Duration::from_secs(2)).await;
    assert_eq!(model.responses(), [1], "refused after ten seconds");
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    assert_eq!(model.responses(), [1, 1], "the next call is refused at once");
    disk.set_blocked(false);
    let mut turns = 0;
    while !model.fixture.audit().contains("\"result\":\"refused\"") {
        turns += 1;
        assert!(turns < 10_000, "{}", model.fixture.audit());
        model.pass(Duration::from_millis(30)).await;
    }
    model.call(NOW, MaybeRan::No);
    model.until_responses(&[1, 1, 1]).await;
    assert_eq!([1, 2, 3].map(|call| model.log.runs(call)), [0, 0, 1]);
}
