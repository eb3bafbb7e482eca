//! Single schedules of calls: ids, starts, limits, cancellation, credit, the end of a link.

use std::fs::File;

use super::*;

/// The first tool answers at once.
const NOW: u8 = 0;
/// This one after three seconds.
const LATE: u8 = 2;
const NEVER: u8 = 3;
const EXIT: u8 = 4;
const LARGE: u8 = 12;

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Life {
    /// Its process 0 runs, and answered a first call.
    pub(super) async fn running(configuration: &str) -> Self {
        let configuration = format!("{}\n{configuration}", server_configuration(Retry::Never));
        let mut life = Self::in_fixture(Fixture::with_server("", &configuration), Retry::Never);
        life.call(NOW, MaybeRan::No);
        life.pass(MOMENT).await;
        assert_eq!(life.responses(), [1]);
        // So long that a crash is not the first step of a crash loop.
        life.pass(20 * SECOND).await;
        life
    }

    /// The calls and the notifications that a process took, in order.
    pub(super) fn taken_by(&self, process: usize) -> Vec<String> {
        let what = |taken: &Taken| match &taken.id {
            Some(id) => format!("{} {id}", taken.method.as_deref().unwrap_or_default()),
            None => taken.method.clone().unwrap_or_default(),
        };
        self.script.taken_by(process).iter().map(what).collect()
    }

    /// The methods of notifications that the harness heard, in order.
    pub(super) fn notifications(&self) -> Vec<&str> {
        self.arrived.iter().map(String::as_str).filter(|what| what.starts_with("notifications/")).collect()
    }

    fn outcomes(&self, tool: &str) -> Vec<(String, String)> {
        outcomes::of_tool(&self.fixture.audit(), tool)
    }
}

fn outcome(result: &str, code: &str) -> (String, String) {
    (result.into(), code.into())
}

#[tokio::test(start_paused = true)]
async fn a_second_request_under_an_id_in_use_is_refused_and_does_not_end_the_first() {
    // The first one is in flight, in the same chunk as the second, or waits for its process.
    for (first, between, start) in
        [(2, MOMENT, Duration::ZERO), (2, Duration::ZERO, Duration::ZERO), (1, MOMENT, 2 * SECOND)]
    {
        let mut life = match start {
            Duration::ZERO => Life::running("").await,
            _ => Life::new(Retry::Never),
        };
        life.script.then(Start::RunAfter(start));
        life.call(LATE, MaybeRan::No);
        if !between.is_zero() {
            life.pass(between).await;
        }
        let ((again, _), message) = life.message(first, NOW);
        life.shim.push(message.as_bytes(), MaybeRan::No);
        life.pass(SECOND).await;
        assert_eq!((life.nameless, life.requests[&first].responses), (1, 0));
        life.pass(5 * SECOND).await;
        assert_eq!((life.requests[&first].responses, life.seen.runs(again)), (1, 0));
        assert!(life.requests[&first].answer.contains("late"), "{}", life.requests[&first].answer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_at_once_is_answered_at_once() {
    let mut life = Life::new(Retry::Never);
    for _ in 0..2 {
        life.call(EXIT, MaybeRan::No);
        life.pass(MOMENT).await;
    }
    life.call(NOW, MaybeRan::No);
    life.pass(MOMENT).await;
    assert_eq!((life.responses(), life.script.started()), (vec![1, 1, 1], 2));
    let answer = &life.requests[&3].answer;
    assert!(answer.contains("server_unavailable") && answer.contains("it did not run"), "{answer}");
    life.pass(SECOND).await;
    assert_eq!(life.outcomes("now"), [outcome("refused", "server_unavailable")]);
}

#[tokio::test(start_paused = true)]
async fn an_exit_ends_the_calls_in_flight_at_once() {
    let mut life = Life::running("").await;
    life.call(NEVER, MaybeRan::No);
    life.pass(MOMENT).await;
    life.script.exit(0);
    life.pass(MOMENT).await;
    assert_eq!(life.responses(), [1, 1]);
    assert!(life.requests[&2].answer.contains("outcome_unknown"), "{}", life.requests[&2].answer);
    life.pass(SECOND).await;
    assert_eq!(life.outcomes("never"), [outcome("outcome_unknown", "outcome_unknown")]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_refuses_the_waiting_calls_at_once() {
    let mut life = Life::new(Retry::Never);
    life.script.then(Start::FailAfter(2 * SECOND, StartError::LimitReached(LimitReached::Processes)));
    life.call(NOW, MaybeRan::No);
    life.pass(SECOND).await;
    assert_eq!(life.responses(), [0]);
    life.pass(SECOND + MOMENT).await;
    assert_eq!((life.responses(), life.seen.runs(1)), (vec![1], 0));
    assert!(life.requests[&1].answer.contains("it did not run"), "{}", life.requests[&1].answer);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_start_is_refused_at_its_deadline() {
    let mut life = Life::new(Retry::Never);
    life.script.then(Start::Never);
    life.call(NOW, MaybeRan::No);
    life.pass(CALL_TIMEOUT - SECOND).await;
    assert_eq!(life.responses(), [0]);
    life.pass(2 * SECOND).await;
    assert_eq!(life.responses(), [1]);
    assert!(life.requests[&1].answer.contains("server_unavailable"), "{}", life.requests[&1].answer);
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_start_count_among_those_in_flight() {
    // Received one by one, and together.
    for between in [MOMENT, Duration::ZERO] {
        let limit = "limits.requests-in-flight = 2";
        let fixture = Fixture::with_sync(limit, &server_configuration(Retry::Never), File::sync_data);
        let mut life = Life::in_fixture(fixture, Retry::Never);
        life.script.then(Start::RunAfter(5 * SECOND));
        for _ in 0..3 {
            life.call(NOW, MaybeRan::No);
            if !between.is_zero() {
                life.pass(between).await;
            }
        }
        life.pass(SECOND).await;
        assert_eq!(life.responses(), [0, 0, 1]);
        let answer = &life.requests[&3].answer;
        assert!(answer.contains("too many requests wait"), "{answer}");
        life.pass(5 * SECOND).await;
        assert_eq!((life.responses(), life.seen.runs(3)), (vec![1, 1, 1], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_that_waited_for_a_start_is_never_sent_and_frees_its_id_at_once() {
    let mut life = Life::new(Retry::Never);
    life.script.then(Start::RunAfter(2 * SECOND));
    life.call(NEVER, MaybeRan::No);
    life.pass(MOMENT).await;
    // The next request under this id comes together with the cancellation.
    let cancelled = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    life.shim.push(cancelled.as_bytes(), MaybeRan::No);
    let (_, message) = life.message(1, NOW);
    life.shim.push(message.as_bytes(), MaybeRan::No);
    life.pass(5 * SECOND).await;
    assert_eq!((life.responses(), life.nameless), (vec![1], 0));
    assert_eq!((life.seen.runs(1), life.seen.runs(2)), (0, 1));
    assert_eq!(life.taken_by(0), ["tools/call 1"], "the server was never sent what was cancelled");
    assert_eq!(life.outcomes("never"), [outcome("cancelled", "")]);
}

#[tokio::test(start_paused = true)]
async fn the_server_is_told_that_a_call_was_cancelled() {
    let mut life = Life::running("").await;
    life.call(NEVER, MaybeRan::No);
    life.pass(MOMENT).await;
    life.cancel(2).await;
    life.pass(SECOND).await;
    assert_eq!(life.taken_by(0)[1..], ["tools/call 2", "notifications/cancelled"]);
    assert_eq!(life.outcomes("never"), [outcome("cancelled", "")]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_link_gives_every_call_an_outcome_and_counts_those_without_an_answer() {
    for (start, expected) in [
        (Start::RunAfter(Duration::ZERO), outcome("outcome_unknown", "session_ended")),
        (Start::Never, outcome("refused", "session_ended")),
    ] {
        let mut life = Life::new(Retry::Never);
        life.script.then(start);
        life.call(NEVER, MaybeRan::No);
        life.pass(MOMENT).await;
        let (ended, has_ended) = oneshot::channel();
        let end = Command::End { reason: EndReason::Killed, ended };
        assert!(life.commands.send(end).await.is_ok());
        assert_eq!(has_ended.await.expect("the link ends").calls_unanswered, 1);
        assert_eq!(life.outcomes("never"), [expected]);
    }
}

/// Messages that a server does not take are held by the shim, not by the sidecar.
#[tokio::test(start_paused = true)]
async fn a_shim_gets_no_credit_while_too_much_waits_for_its_server() {
    for is_running in [false, true] {
        let mut life = match is_running {
            true => Life::running("").await,
            false => Life::new(Retry::Never),
        };
        life.script.then(Start::RunAfter(5 * SECOND));
        if is_running {
            life.script.read(0, Reading::Nothing);
        }
        let padding = "x".repeat(600 * 1024);
        for _ in 0..3 {
            let id = life.requests.len() as u64 + 1;
            let (call, message) = life.message(id, NOW);
            life.send(
                id,
                call,
                message.replace("\"call\"", &format!("\"p\":\"{padding}\",\"call\"")),
                MaybeRan::No,
            );
        }
        life.pass(3 * SECOND).await;
        assert!(!life.shim.is_acknowledged(), "running: {is_running}");
        if is_running {
            life.script.read(0, Reading::Everything);
        }
        life.pass(5 * SECOND).await;
        assert!(life.shim.is_acknowledged() && life.responses().iter().all(|count| *count == 1));
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_start_are_sent_in_order() {
    let mut life = Life::new(Retry::Never);
    life.script.then(Start::RunAfter(2 * SECOND));
    life.call(NOW, MaybeRan::No);
    life.pass(MOMENT).await;
    life.notify();
    life.call(NOW, MaybeRan::No);
    life.pass(5 * SECOND).await;
    assert_eq!(life.taken_by(0), ["tools/call 1", "notifications/roots/list_changed", "tools/call 2"]);
}

#[tokio::test(start_paused = true)]
async fn an_exit_during_the_repeated_handshake_refuses_the_waiting_calls() {
    let mut life = Life::new(Retry::Never);
    life.request("initialize", r#"{"protocolVersion":"2025-11-25","capabilities":{},"exit_again":1}"#);
    life.pass(20 * SECOND).await;
    life.script.exit(0);
    life.pass(MOMENT).await;
    life.call(NOW, MaybeRan::No);
    life.pass(MOMENT).await;
    assert_eq!((life.responses(), life.seen.runs(2), life.script.started()), (vec![1, 1], 0, 2));
    assert!(life.requests[&2].answer.contains("it did not run"), "{}", life.requests[&2].answer);
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_call_that_was_not_answered_in_time_stays_in_use() {
    let mut life = Life::running("").await;
    life.call(NEVER, MaybeRan::No);
    life.pass(CALL_TIMEOUT + SECOND).await;
    assert_eq!(life.responses(), [1, 1]);
    let ((again, _), message) = life.message(2, NOW);
    life.shim.push(message.as_bytes(), MaybeRan::No);
    life.pass(SECOND).await;
    assert_eq!((life.nameless, life.seen.runs(again)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_harness_is_notified_that_requests_of_an_exited_server_are_cancelled() {
    let mut life = Life::running("").await;
    life.answers_server = false;
    life.request("tools/call", r#"{"name":"asks","arguments":{"call":CALL}}"#);
    life.pass(MOMENT).await;
    life.script.exit(0);
    life.pass(MOMENT).await;
    assert_eq!(life.notifications(), ["notifications/cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_larger_than_the_harness_takes_is_not_relayed() {
    let limit = "limits.message-bytes = \"64KiB\"";
    let fixture = Fixture::with_sync(limit, &server_configuration(Retry::Never), File::sync_data);
    let mut life = Life::in_fixture(fixture, Retry::Never);
    life.call(LARGE, MaybeRan::No);
    life.until_responses(&[1]).await;
    assert!(life.requests[&1].answer.contains("message_too_large"), "{}", life.requests[&1].answer);
}

/// The session's budget in the audit is used up.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_not_written_refuses_its_call() {
    let limit = "limits.audit-session-bytes = \"16KiB\"";
    let fixture = Fixture::with_sync(limit, &server_configuration(Retry::Never), File::sync_data);
    let mut life = Life::in_fixture(fixture, Retry::Never);
    for _ in 0..20 {
        life.call(NOW, MaybeRan::No);
        life.pass(MOMENT).await;
    }
    assert_eq!(life.responses(), [1; 20]);
    let refused = |id: &u64| life.requests[id].answer.contains("could not be recorded");
    let (refused, made): (Vec<u64>, Vec<u64>) = (1..=20).partition(refused);
    assert!(!refused.is_empty() && !made.is_empty(), "{refused:?} {made:?}");
    assert!(
        made.iter().all(|call| life.seen.runs(*call) == 1)
            && refused.iter().all(|call| life.seen.runs(*call) == 0)
    );
    assert_eq!(life.seen.violations(), [""; 0]);
}
