//! Starting and ending processes: calls that wait for a start, the replayed handshake, backoff.

use super::*;
use crate::scripted::{Reaction, Reading, Start};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_start_are_sent_once_and_in_order() {
    let mut fixture = LinkFixture::new();
    fixture.script.queue_start(Start::RunAfter(5 * SECOND));
    let ids = [0; 3].map(|_| fixture.call("echo", Duration::ZERO));
    for id in ids {
        assert_eq!(fixture.wait_for_outcome(id).await, answered_by(0));
    }
    assert_eq!(fixture.calls_received_by(0), ids);
    let (script, _) = fixture.finish().await;
    assert_eq!(script.started(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_refuses_the_waiting_calls_and_the_next_start_is_delayed() {
    let mut fixture = LinkFixture::new();
    for _ in 0..3 {
        fixture.script.queue_start(Start::FailAfter(SECOND, launch_error()));
    }
    for _ in 0..2 {
        // There is no delay after the first failure.
        let result = fixture.call_and_wait("echo").await;
        assert!(
            matches!(&result, CallResult::Refused(Code::ServerUnavailable, why) if why.contains("its program cannot be started")),
            "{result:?}"
        );
    }
    let refused = fixture.call_and_wait("echo").await;
    assert!(
        matches!(&refused, CallResult::Refused(Code::ServerUnavailable, why) if why.contains("keeps failing")),
        "{refused:?}"
    );
    fixture.run_for(SECOND).await;
    assert!(matches!(fixture.call_and_wait("echo").await, CallResult::Refused(..)), "the third start fails");
    fixture.run_for(2 * SECOND).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn after_an_exit_received_calls_are_unknown_and_queued_ones_did_not_run() {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    let received = fixture.call("echo", 60 * SECOND);
    fixture.until("the call is received", |fixture| fixture.calls_received_by(0) == [received]).await;
    fixture.script.set_reading(0, Reading::PartOfOne);
    let begun = fixture.call("echo", Duration::ZERO);
    let queued = fixture.call("echo", Duration::ZERO);
    fixture.run_for(SECOND).await;
    fixture.script.exit(0);
    assert!(matches!(
        fixture.wait_for_outcome(queued).await,
        CallResult::Refused(Code::ServerUnavailable, _)
    ));
    assert!(
        !fixture.results.contains_key(&received),
        "calls that did not run are reported before those that may have run"
    );
    assert!(matches!(fixture.wait_for_outcome(received).await, CallResult::Unknown(_)));
    assert!(matches!(fixture.wait_for_outcome(begun).await, CallResult::Unknown(_)));
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_process_gets_the_handshake_and_the_settings_before_any_call() {
    let mut fixture = LinkFixture::new();
    fixture.make_handshake().await;
    let level = fixture.request("logging/setLevel", r#"{"level":"debug"}"#, None);
    fixture.wait_for_outcome(level).await;
    fixture.script.exit(0);
    fixture.until("the process is gone", |fixture| ended(&fixture.script, 0)).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    let expected = ["initialize", "notifications/initialized", "logging/setLevel", "tools/call"];
    assert_eq!(methods(&fixture.script.received_by(1)), expected);
    let own = fixture.script.received_by(1)[0].id.clone().unwrap();
    assert!(own.starts_with(r#""cofferdam-replay-"#), "{own}");
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_refuses_the_repeated_handshake_is_ended_and_the_call_did_not_run() {
    let script = Script::responding(|received| match (received.method.as_deref(), received.process) {
        (Some("initialize"), 1..) => {
            let id = received.id.as_deref().unwrap();
            vec![Reaction::Write(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"no"}}}}"#
            ))]
        }
        _ => answer_after_wait(received),
    });
    let mut fixture = LinkFixture::with(script, &SERVER);
    fixture.make_handshake().await;
    fixture.script.exit(0);
    fixture.until("the process is gone", |fixture| ended(&fixture.script, 0)).await;
    let refused = fixture.call_and_wait("echo").await;
    assert!(
        matches!(&refused, CallResult::Refused(Code::ServerUnavailable, why) if why.contains("handshake")),
        "{refused:?}"
    );
    fixture.until("the process is ended", |fixture| ended(&fixture.script, 1)).await;
    assert_eq!(fixture.calls_received_by(1), [0; 0]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_answer_the_repeated_handshake_is_ended() {
    let script = Script::responding(|received| match (received.method.as_deref(), received.process) {
        (Some("initialize"), 1) => Vec::new(),
        _ => answer_after_wait(received),
    });
    let mut fixture = LinkFixture::with(script, &SERVER);
    fixture.make_handshake().await;
    // Long enough that a crash does not count as a failed start.
    fixture.run_for(20 * SECOND).await;
    fixture.script.exit(0);
    fixture.until("the process is gone", |fixture| ended(&fixture.script, 0)).await;
    let refused = fixture.call_and_wait("echo").await;
    assert!(
        matches!(&refused, CallResult::Refused(Code::ServerUnavailable, why) if why.contains("in time")),
        "{refused:?}"
    );
    fixture.until("the process is ended", |fixture| ended(&fixture.script, 1)).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(2));
    fixture.finish().await;
}

/// Asserts that a process of this script is ended by the start timeout, with an unknown outcome of the first request.
async fn assert_start_times_out(script: Script) {
    let mut fixture = LinkFixture::with(script, &SERVER);
    let id = fixture.request("initialize", "{}", None);
    let unknown = fixture.wait_for_outcome(id).await;
    assert!(
        matches!(&unknown, CallResult::Unknown(why) if why.contains("server-start-timeout")),
        "{unknown:?}"
    );
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_never_answers_its_first_request_is_ended() {
    assert_start_times_out(Script::responding(|_| Vec::new())).await;
}

#[tokio::test(start_paused = true)]
async fn output_that_is_no_answer_does_not_end_the_start_timeout() {
    let log_message = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    let script = Script::responding(move |_| vec![Reaction::Write(log_message.into())]);
    assert_start_times_out(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_is_dead_before_the_next_one_starts() {
    let mut fixture = LinkFixture::new();
    fixture.script.set_end_delay(2 * SECOND);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.script.exit(0);
    fixture.until("the exit is noticed", |fixture| fixture.script.log().contains(&Entry::Exited(0))).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    let log = fixture.script.log();
    let at = |wanted: &Entry| log.iter().position(|entry| entry == wanted);
    assert!(at(&Entry::Ended(0)).unwrap() < at(&Entry::Started(1)).unwrap(), "{log:?}");
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_that_waits_for_a_start_is_never_sent() {
    let mut fixture = LinkFixture::new();
    fixture.script.queue_start(Start::RunAfter(SECOND));
    let cancelled = fixture.call("echo", Duration::ZERO);
    let other = fixture.call("echo", Duration::ZERO);
    fixture.parked.retain(|(_, call, _)| call.as_ref().is_none_or(|(id, _)| *id != cancelled));
    assert_eq!(fixture.wait_for_outcome(other).await, answered_by(0));
    assert_eq!(fixture.calls_received_by(0), [other]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_too_large_ends_its_call() {
    let script = Script::responding(|received| match received.id.as_deref() {
        Some(id) => vec![Reaction::Oversize(Some(id.as_bytes().into()))],
        None => Vec::new(),
    });
    let mut fixture = LinkFixture::with(script, &SERVER);
    assert_eq!(fixture.call_and_wait("echo").await, CallResult::Answered("too large".into()));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_cannot_be_read_refuses_the_call_with_credential_unavailable() {
    let setup = Setup { key: "{other.value}", scope_tools: &[], ..SERVER };
    let mut fixture = LinkFixture::with(Script::default(), &setup);
    let refused = fixture.call_and_wait("echo").await;
    assert!(matches!(&refused, CallResult::Refused(Code::CredentialUnavailable, _)), "{refused:?}");
    assert_eq!(fixture.script.started(), 0);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_never_ends_does_not_delay_the_end_of_the_link() {
    let mut fixture = LinkFixture::new();
    fixture.script.queue_start(Start::Never);
    fixture.call("echo", Duration::ZERO);
    fixture.run_for(SECOND).await;
    let began = Instant::now();
    fixture.finish().await;
    assert!(began.elapsed() <= 5 * SECOND);
}
