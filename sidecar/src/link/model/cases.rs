//! Fixed schedules that the random ones do not reach, or do not check closely enough.

use std::io;

use super::*;

/// The index of a tool that responds at once.
const NOW: u8 = 0;

impl ModelLink {
    pub(super) fn responses(&self) -> Vec<usize> {
        self.requests.values().map(|request| request.responses).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_audit_does_not_delay_later_ones() {
    let mut model = ModelLink::new(Retry::Never);
    let permit =
        model.session.acquire_lookup_permit().await.expect("no other audit look-up holds the permit");
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
    let _permit =
        model.session.acquire_lookup_permit().await.expect("no other audit look-up holds the permit");
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
    let permit =
        model.session.acquire_lookup_permit().await.expect("no other audit look-up holds the permit");
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
    let configuration = server_configuration(Retry::Never, "ask");
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

    pub(super) async fn answers_describe(&mut self) -> bool {
        let (reply, described) = oneshot::channel();
        self.commands.send(Command::Describe(reply)).await.unwrap();
        self.pass(Duration::from_millis(1)).await;
        described.await.is_ok()
    }
}
