//! Tests of the link itself: refusals, goodbyes, silence, clones, memory.

use super::*;

#[test]
fn a_goodbye_leaves_the_outcome_unknown_and_later_requests_refused() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.messages_to_sidecar();
    let goodbye = |retry| {
        Frame::Goodbye(Goodbye { code: "session_ended".into(), message: "the session is over".into(), retry })
    };
    assert_eq!(fixture.sidecar_sends_frame(goodbye(Retry::Never)), ConnectionAction::Close);
    fixture.harness_sends(&request(2, "tools/call"));
    assert_eq!(
        errors(&fixture.lines_to_harness()),
        [pair("1", "outcome_unknown"), pair("2", "session_ended")]
    );

    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.messages_to_sidecar();
    assert_eq!(fixture.sidecar_sends_frame(goodbye(Retry::AfterMs(1))), ConnectionAction::Close);
    fixture.harness_sends(&request(2, "tools/call"));
    assert_eq!(errors(&fixture.lines_to_harness()), [pair("1", "outcome_unknown")]);
    fixture.connect_and_expect(&[(request(2, "tools/call"), PLAIN)]);
}

#[test]
fn another_version_is_reported_and_retried_later() {
    let mut fixture = Fixture::new();
    fixture.harness_sends(&request(1, "initialize"));
    fixture.connect();
    fixture
        .state
        .undecodable(&relay_proto::frame::DecodeError::OtherVersion { ours: 1, theirs: 2 }, fixture.now);
    let lines = fixture.lines_to_harness();
    assert_eq!(errors(&lines), [pair("1", "version_refused")]);
    assert!(lines[0].contains("the shim in the sandbox is older: upgrade it"));
    assert!(!fixture.state.should_connect(fixture.now));
    assert!(fixture.state.should_connect(fixture.now + Duration::from_secs(30)));
}

#[test]
fn a_request_that_may_have_run_twice_is_not_sent_again() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.messages_to_sidecar();
    fixture.lose_connection();
    fixture.connect();
    fixture.welcome(Resumed::Fresh);
    assert_eq!(fixture.messages_to_sidecar(), [(request(1, "tools/call"), sent_as(1))]);
    fixture.lose_connection();
    fixture.connect();
    fixture.welcome(Resumed::Fresh);
    assert_eq!(fixture.messages_to_sidecar(), []);
    assert!(fixture.lines_to_harness()[0].contains("outcome_unknown"));
}

#[test]
fn a_protocol_violation_of_the_sidecar_ends_only_the_link() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.messages_to_sidecar();
    assert_eq!(fixture.sidecar_sends_frame(Frame::Ack(Ack { seq: 99, window: 1 })), ConnectionAction::Close);
    fixture.connect_and_expect(&[(request(1, "tools/call"), sent_as(1))]);
}

#[test]
fn acknowledgements_travel_with_messages_or_alone_after_a_second() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "a"));
    fixture.messages_to_sidecar();
    fixture.sidecar_sends(&result(1));
    assert!(fixture.frames_to_sidecar().is_empty(), "an acknowledgement alone is not written at once");
    fixture.harness_sends(&request(2, "a"));
    assert!(matches!(
        fixture.frames_to_sidecar().as_slice(),
        [Frame::Message(_), Frame::Ack(Ack { seq: 1, .. })]
    ));
    fixture.sidecar_sends(&result(2));
    fixture.wait(1);
    assert!(matches!(fixture.frames_to_sidecar().as_slice(), [Frame::Ack(Ack { seq: 2, .. })]));
}

#[test]
fn silence_leads_to_pings_and_then_to_a_new_connection() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "a"));
    fixture.messages_to_sidecar();
    fixture.wait(41);
    assert_eq!(fixture.frames_to_sidecar(), [Frame::Ping]);
    assert_eq!(fixture.sidecar_sends_frame(Frame::Ping), ConnectionAction::Keep);
    assert_eq!(fixture.frames_to_sidecar(), [Frame::Pong]);
    fixture.wait(100);
    assert!(
        matches!(fixture.state.sidecar.phase, Phase::Down),
        "three heartbeats without a byte received end the connection"
    );
    assert!(fixture.now - fixture.start > Duration::from_secs(60));
}

#[test]
fn a_paused_sandbox_does_not_close_a_working_connection() {
    let mut fixture = Fixture::up();
    fixture.now += Duration::from_secs(3600);
    assert_eq!(fixture.state.tick(fixture.now), ConnectionAction::Keep);
    assert!(matches!(fixture.state.sidecar.phase, Phase::Up(_)));
}

#[test]
fn a_harness_that_does_not_read_does_not_count_as_silence_of_the_sidecar() {
    let mut fixture = Fixture::up();
    fixture.state.harness.output.back().extend_from_slice(&vec![b'x'; MAX_TO_HARNESS + 1]);
    fixture.wait(200);
    assert!(
        matches!(fixture.state.sidecar.phase, Phase::Up(_)),
        "while nothing is read, silence does not count"
    );
    fixture.state.harness.output.clear();
    fixture.wait(200);
    assert!(matches!(fixture.state.sidecar.phase, Phase::Down), "while the harness reads, silence counts");

    fixture.state.harness.output.back().extend_from_slice(&vec![b'x'; MAX_TO_HARNESS + 1]);
    fixture.now += Duration::from_secs(60);
    fixture.connect();
    fixture.wait(100);
    assert!(
        matches!(fixture.state.sidecar.phase, Phase::AwaitingWelcome { .. }),
        "the Welcome may wait to be read"
    );
    fixture.state.harness.output.clear();
    fixture.now += Duration::from_secs(10);
    assert_eq!(fixture.state.tick(fixture.now), ConnectionAction::Close);
}

#[test]
fn a_refused_clone_reconnects_without_the_link() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.messages_to_sidecar();
    fixture.lose_connection();
    fixture.harness_sends(&request(2, "tools/call"));
    fixture.connect();
    let (code, message) = ("clone_refused".into(), "another shim has this link".into());
    let refusal = Refusal { code, message, retry: Retry::AfterMs(5000) };
    assert_eq!(fixture.sidecar_sends_frame(Frame::Refusal(refusal)), ConnectionAction::Close);
    assert!(!fixture.state.should_connect(fixture.now + Duration::from_millis(4999)));
    fixture.now += Duration::from_secs(5);
    fixture.state.sidecar.connected(Proof::Socket, fixture.now);
    fixture.decoder = Decoder::new();
    let frames = fixture.frames_to_sidecar();
    assert!(matches!(frames.as_slice(), [Frame::Hello(Hello { resume: None, .. })]), "{frames:?}");
    fixture.welcome(Resumed::Fresh);
    assert_eq!(
        fixture.messages_to_sidecar(),
        [(request(1, "tools/call"), sent_as(1)), (request(2, "tools/call"), PLAIN)]
    );
    assert!(fixture.lines_to_harness().is_empty());
}

#[test]
fn a_link_without_a_usable_id_is_refused() {
    for link in [String::new(), "l".repeat(65)] {
        let mut fixture = Fixture::new();
        fixture.connect();
        let welcome = Welcome { link, ..fixture.welcome_frame(Resumed::Fresh) };
        assert_eq!(fixture.sidecar_sends_frame(Frame::Welcome(welcome)), ConnectionAction::Close);
        assert!(matches!(fixture.state.sidecar.phase, Phase::Down));
    }
}

#[test]
fn a_connection_without_a_welcome_is_closed_after_10_seconds() {
    let mut fixture = Fixture::new();
    fixture.connect();
    fixture.now += Duration::from_secs(10);
    assert_eq!(fixture.state.tick(fixture.now), ConnectionAction::Close);
    assert!(matches!(fixture.state.sidecar.phase, Phase::Down));
}

#[test]
fn the_buffer_of_a_long_message_is_reused_and_freed_after_a_second() {
    let mut fixture = Fixture::up();
    let receive_long_message = |fixture: &mut Fixture| {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":"{}"}}"#, "y".repeat(100_000));
        let (first, last) = line.split_at(50_000);
        for (piece, more) in [(first, More::Follows), (last, More::Last)] {
            fixture.sent += 1;
            let flags = PartFlags { more, maybe_ran: PLAIN };
            let part = Part { seq: fixture.sent, flags, bytes: piece.into() };
            assert_eq!(fixture.sidecar_sends_frame(Frame::Message(part)), ConnectionAction::Keep);
        }
        let location = fixture.state.harness.output.waiting().as_ptr();
        assert_eq!(fixture.lines_to_harness(), [line]);
        location
    };
    assert_eq!(receive_long_message(&mut fixture), receive_long_message(&mut fixture));
    fixture.wait(2);
    assert_eq!(fixture.state.harness.output.take_spare().capacity(), 0);
    fixture.frames_to_sidecar();
    assert!(
        fixture.state.deadline().unwrap() > fixture.now + Duration::from_secs(10),
        "only the heartbeat is due"
    );
}

#[test]
fn reading_stops_while_too_much_is_queued() {
    let mut fixture = Fixture::new();
    let big =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"x":"{}"}}}}"#, "y".repeat(MAX_BACKLOG));
    fixture.harness_sends(&big);
    assert!(!fixture.state.harness.accepts_lines());
    fixture.wait(60);
    assert!(fixture.state.harness.accepts_lines(), "the error response to the request makes room");

    let mut fixture = Fixture::up();
    fixture.sidecar_sends(&format!(r#"{{"jsonrpc":"2.0","method":"m","params":"{}"}}"#, "y".repeat(60_000)));
    assert!(fixture.state.harness.accepts_frames());
    fixture.state.harness.output.back().extend_from_slice(&vec![0; MAX_TO_HARNESS]);
    assert!(!fixture.state.harness.accepts_frames() && !fixture.state.harness.accepts_lines());
}

/// A laptop slept for a week: whatever the shim was doing, each request gets one response, and a request that was answered
/// with "did not run" does not run later.
#[test]
fn after_a_clock_jump_every_request_still_gets_one_response() {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    for phase in ["down", "awaiting Welcome", "up", "lost"] {
        let mut fixture = if ["up", "lost"].contains(&phase) { Fixture::up() } else { Fixture::new() };
        if phase == "awaiting Welcome" {
            fixture.connect();
        }
        for id in 1..=3 {
            fixture.harness_sends(&request(id, "tools/call"));
        }
        fixture.frames_to_sidecar();
        if phase == "lost" {
            fixture.lose_connection();
        }
        fixture.now += WEEK;
        for _ in 0..3 {
            let _ = fixture.state.tick(fixture.now);
        }
        let responses = errors(&fixture.lines_to_harness());
        let expected = |code| (1..=3).map(|id: u32| pair(&id.to_string(), code)).collect::<Vec<_>>();
        match phase {
            // The connection may still work.
            "up" => assert_eq!(responses, []),
            "lost" => assert_eq!(responses, expected("outcome_unknown")),
            _ => assert_eq!(responses, expected("relay_unavailable"), "{phase}"),
        }
        if phase == "up" {
            (1..=3).for_each(|id| fixture.sidecar_sends(&result(id)));
            assert_eq!(fixture.lines_to_harness().len(), 3);
        }
        if phase == "down" || phase == "awaiting Welcome" {
            if phase == "down" {
                fixture.connect();
            } else {
                fixture.lose_connection();
                fixture.now += WEEK;
                fixture.connect();
            }
            fixture.welcome(Resumed::Fresh);
            assert_eq!(fixture.messages_to_sidecar(), [], "{phase}");
        }
    }
}
