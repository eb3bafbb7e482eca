//! Decisions that wait for a slow disk: only new calls wait, they keep their order, and none is lost or made twice.

use std::io;
use std::sync::{Condvar, Mutex};

use cofferdam_secrets::{Material, ReadId, Secret};
use zeroize::Zeroizing;

use super::calls::outcome;
use super::*;

/// The index of a tool that responds at once.
const NOW: u8 = 0;
/// The index of a tool that responds after three seconds.
const LATE: u8 = 2;

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
        self.model_link_with("")
    }

    /// `top` is added at the top of the configuration.
    fn model_link_with(&self, top: &str) -> ModelLink {
        let configuration = server_configuration(Retry::Never, "ask");
        let disk = self.clone();
        let sync = move |_: &std::fs::File| {
            let blocked = disk.0.0.lock().unwrap();
            let waited = disk.0.1.wait_timeout_while(blocked, BLOCKED_AT_MOST, |is_blocked| *is_blocked);
            match waited.unwrap().1.timed_out() {
                true => Err(io::Error::other("the test's disk was blocked for too long")),
                false => Ok(()),
            }
        };
        let fixture = Fixture::with_sync(&format!("audit-sync = \"call\"\n{top}"), &configuration, sync);
        ModelLink::in_fixture(fixture, Retry::Never)
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
    assert!(model.answers_describe().await, "a command was not answered");
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

#[tokio::test(start_paused = true)]
async fn of_calls_that_were_refused_for_a_slow_disk_only_recorded_ones_get_an_outcome() {
    let disk = Disk::default();
    // Ten records at once: five calls with their outcomes.
    let mut model = disk.model_link_with("limits.audit-session-records-per-second = 1");
    disk.set_blocked(true);
    (0..6).for_each(|_| model.call(NOW, MaybeRan::No));
    model.pass(Duration::from_secs(11)).await;
    assert_eq!(model.responses(), [1; 6]);
    disk.set_blocked(false);
    let mut turns = 0;
    while model.outcomes("now").len() < 5 {
        turns += 1;
        assert!(turns < 10_000, "{}", model.fixture.audit());
        model.pass(Duration::from_millis(30)).await;
    }
    model.pass(Duration::from_secs(1)).await;
    assert_eq!(model.outcomes("now"), vec![outcome("refused", "server_unavailable"); 5]);
    assert_eq!(outcomes::missing(&model.fixture.audit()), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_id_is_refused_after_a_slow_disk_as_it_is_without_one() {
    let disk = Disk::default();
    let mut model = disk.model_link();
    disk.set_blocked(true);
    model.call(NOW, MaybeRan::No);
    let ((again, _), message) = model.message(1, NOW);
    model.shim.push(message.as_bytes(), MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    disk.set_blocked(false);
    model.until_responses(&[1]).await;
    model.pass(Duration::from_millis(1)).await;
    assert_eq!((model.responses_without_id, model.log.runs(1), model.log.runs(again)), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_link_that_ends_before_its_decisions_are_on_the_disk_refuses_their_calls() {
    let disk = Disk::default();
    let mut model = disk.model_link();
    disk.set_blocked(true);
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    assert_eq!(model.end().await.calls_unanswered, 1);
    assert_eq!(model.outcomes("now"), [outcome("refused", "session_ended")]);
    disk.set_blocked(false);
    assert_eq!(model.log.runs(1), 0);
}

/// Gives the server's secret the value of another read in Vault, with this id.
fn hold_read(model: &ModelLink, request_id: &str) {
    let value = Secret::new(Zeroizing::new(format!("the-value-of-{request_id}").into_bytes()));
    let mut material = Material::without_lease([("value".to_owned(), value)].into());
    material.read_id = Some(Arc::new(ReadId { hash: None, request_id: request_id.to_owned() }));
    model.session.credentials.hold(&"token".parse().expect("a name"), material);
}

/// The secret changes while the decision waits for the disk, so the call runs with another read than its decision names.
#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_call_that_waited_for_a_slow_disk_names_the_read_that_the_call_used() {
    let disk = Disk::default();
    let mut model = disk.model_link();
    hold_read(&model, "vault-request-1");
    model.call(NOW, MaybeRan::No);
    model.until_responses(&[1]).await;
    disk.set_blocked(true);
    model.call(NOW, MaybeRan::No);
    model.pass(Duration::from_millis(1)).await;
    hold_read(&model, "vault-request-2");
    model.pass(Duration::from_secs(5)).await;
    assert_eq!((model.script.started(), model.log.runs(2)), (2, 0), "another process has taken over");
    disk.set_blocked(false);
    model.until_responses(&[1, 1]).await;
    model.pass(Duration::from_secs(1)).await;
    let audit = model.fixture.audit();
    let records = |kind: &str, read: &str| {
        let is_one = |line: &&str| line.contains(&format!("\"kind\":\"{kind}\"")) && line.contains(read);
        audit.lines().filter(is_one).count()
    };
    assert_eq!(records("decision", "vault-request-1"), 2, "{audit}");
    assert_eq!(records("outcome", "vault-request-2"), 1, "{audit}");
}
