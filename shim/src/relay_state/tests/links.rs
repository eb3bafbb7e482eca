//! The link itself: refusals, goodbyes, silence, clones, memory.

use super::*;

#[test]
fn a_goodbye_leaves_the_outcome_unknown_and_later_requests_refused() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    scene.messages_to_sidecar();
    let goodbye = |retry| {
        Frame::Goodbye(Goodbye { code: "session_ended".into(), message: "the session is over".into(), retry })
    };
    assert_eq!(scene.frame(goodbye(Retry::Never)), Connected::Close);
    scene.harness(&request(2, "tools/call"));
    assert_eq!(errors(&scene.lines_to_harness()), [pair("1", "outcome_unknown"), pair("2", "session_ended")]);

    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    scene.messages_to_sidecar();
    assert_eq!(scene.frame(goodbye(Retry::AfterMs(1))), Connected::Close);
    scene.harness(&request(2, "tools/call"));
    assert_eq!(errors(&scene.lines_to_harness()), [pair("1", "outcome_unknown")]);
    scene.connect_and_expect(&[(request(2, "tools/call"), PLAIN)]);
}

#[test]
fn another_version_is_reported_and_retried_later() {
    let mut scene = Scene::new();
    scene.harness(&request(1, "initialize"));
    scene.connect();
    scene.state.undecodable(&relay_proto::frame::DecodeError::OtherVersion { ours: 1, theirs: 2 }, scene.now);
    let lines = scene.lines_to_harness();
    assert_eq!(errors(&lines), [pair("1", "version_refused")]);
    assert!(lines[0].contains("the shim in the sandbox is older: upgrade it"));
    assert!(!scene.state.should_connect(scene.now));
    assert!(scene.state.should_connect(scene.now + Duration::from_secs(30)));
}

#[test]
fn a_request_that_may_have_run_twice_is_not_sent_again() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    scene.messages_to_sidecar();
    scene.lose();
    scene.connect();
    scene.welcome(Resumed::Fresh);
    assert_eq!(scene.messages_to_sidecar(), [(request(1, "tools/call"), sent_as(1))]);
    scene.lose();
    scene.connect();
    scene.welcome(Resumed::Fresh);
    assert_eq!(scene.messages_to_sidecar(), []);
    assert!(scene.lines_to_harness()[0].contains("outcome_unknown"));
}

#[test]
fn a_protocol_violation_of_the_sidecar_ends_only_the_link() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    scene.messages_to_sidecar();
    assert_eq!(scene.frame(Frame::Ack(Ack { seq: 99, window: 1 })), Connected::Close);
    scene.connect_and_expect(&[(request(1, "tools/call"), sent_as(1))]);
}

#[test]
fn acknowledgements_travel_with_messages_or_alone_after_a_second() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "a"));
    scene.messages_to_sidecar();
    scene.sidecar(&result(1));
    assert!(scene.frames().is_empty(), "no write for an acknowledgement alone");
    scene.harness(&request(2, "a"));
    assert!(matches!(scene.frames().as_slice(), [Frame::Message(_), Frame::Ack(Ack { seq: 1, .. })]));
    scene.sidecar(&result(2));
    scene.wait(1);
    assert!(matches!(scene.frames().as_slice(), [Frame::Ack(Ack { seq: 2, .. })]));
}

#[test]
fn silence_leads_to_pings_and_then_to_a_new_connection() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "a"));
    scene.messages_to_sidecar();
    scene.wait(41);
    assert_eq!(scene.frames(), [Frame::Ping]);
    assert_eq!(scene.frame(Frame::Ping), Connected::Keep);
    assert_eq!(scene.frames(), [Frame::Pong]);
    scene.wait(100);
    assert!(matches!(scene.state.sidecar.phase, Phase::Down), "three silent beats");
    assert!(scene.now - scene.start > Duration::from_secs(60));
}

#[test]
fn a_paused_sandbox_does_not_give_up_a_good_connection() {
    let mut scene = Scene::up();
    scene.now += Duration::from_secs(3600);
    assert_eq!(scene.state.tick(scene.now), Connected::Keep);
    assert!(matches!(scene.state.sidecar.phase, Phase::Up(_)));
}

#[test]
fn a_harness_that_does_not_read_does_not_count_as_silence_of_the_sidecar() {
    let mut scene = Scene::up();
    scene.state.harness.output.back().extend_from_slice(&vec![b'x'; MAX_TO_HARNESS + 1]);
    scene.wait(200);
    assert!(
        matches!(scene.state.sidecar.phase, Phase::Up(_)),
        "while nothing is read, silence does not count"
    );
    scene.state.harness.output.clear();
    scene.wait(200);
    assert!(matches!(scene.state.sidecar.phase, Phase::Down), "now it counts");

    scene.state.harness.output.back().extend_from_slice(&vec![b'x'; MAX_TO_HARNESS + 1]);
    scene.now += Duration::from_secs(60);
    scene.connect();
    scene.wait(100);
    assert!(matches!(scene.state.sidecar.phase, Phase::AwaitingWelcome { .. }), "its response may be unread");
    scene.state.harness.output.clear();
    scene.now += Duration::from_secs(10);
    assert_eq!(scene.state.tick(scene.now), Connected::Close);
}

#[test]
fn a_refused_clone_reconnects_without_the_link() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    scene.messages_to_sidecar();
    scene.lose();
    scene.harness(&request(2, "tools/call"));
    scene.connect();
    let (code, message) = ("clone_refused".into(), "another has this link".into());
    let refusal = Refusal { code, message, retry: Retry::AfterMs(5000) };
    assert_eq!(scene.frame(Frame::Refusal(refusal)), Connected::Close);
    assert!(!scene.state.should_connect(scene.now + Duration::from_millis(4999)));
    scene.now += Duration::from_secs(5);
    scene.state.sidecar.connected(Proof::Socket, scene.now);
    scene.decoder = Decoder::new();
    let frames = scene.frames();
    assert!(matches!(frames.as_slice(), [Frame::Hello(Hello { resume: None, .. })]), "{frames:?}");
    scene.welcome(Resumed::Fresh);
    assert_eq!(
        scene.messages_to_sidecar(),
        [(request(1, "tools/call"), sent_as(1)), (request(2, "tools/call"), PLAIN)]
    );
    assert!(scene.lines_to_harness().is_empty());
}

#[test]
fn a_link_without_a_usable_id_is_refused() {
    for link in [String::new(), "l".repeat(65)] {
        let mut scene = Scene::new();
        scene.connect();
        let welcome = Welcome { link, ..scene.a_welcome(Resumed::Fresh) };
        assert_eq!(scene.frame(Frame::Welcome(welcome)), Connected::Close);
        assert!(matches!(scene.state.sidecar.phase, Phase::Down));
    }
}

#[test]
fn a_silent_sidecar_is_given_up_after_10_seconds() {
    let mut scene = Scene::new();
    scene.connect();
    scene.now += Duration::from_secs(10);
    assert_eq!(scene.state.tick(scene.now), Connected::Close);
    assert!(matches!(scene.state.sidecar.phase, Phase::Down));
}

#[test]
fn the_buffer_of_a_long_message_is_reused_and_freed_after_a_second() {
    let mut scene = Scene::up();
    let long_one = |scene: &mut Scene| {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":"{}"}}"#, "y".repeat(100_000));
        let (first, last) = line.split_at(50_000);
        for (piece, more) in [(first, More::Follows), (last, More::Last)] {
            scene.sent += 1;
            let flags = PartFlags { more, maybe_ran: PLAIN };
            let part = Part { seq: scene.sent, flags, bytes: piece.into() };
            assert_eq!(scene.frame(Frame::Message(part)), Connected::Keep);
        }
        let location = scene.state.harness.output.waiting().as_ptr();
        assert_eq!(scene.lines_to_harness(), [line]);
        location
    };
    assert_eq!(long_one(&mut scene), long_one(&mut scene));
    scene.wait(2);
    assert_eq!(scene.state.harness.output.take_spare().capacity(), 0);
    scene.frames();
    assert!(
        scene.state.deadline().unwrap() > scene.now + Duration::from_secs(10),
        "only the heartbeat is due"
    );
}

#[test]
fn reading_stops_while_too_much_is_queued() {
    let mut scene = Scene::new();
    let big =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"x":"{}"}}}}"#, "y".repeat(MAX_BACKLOG));
    scene.harness(&big);
    assert!(!scene.state.harness.accepts_lines());
    scene.wait(60);
    assert!(scene.state.harness.accepts_lines(), "its answer makes room");

    let mut scene = Scene::up();
    scene.sidecar(&format!(r#"{{"jsonrpc":"2.0","method":"m","params":"{}"}}"#, "y".repeat(60_000)));
    assert!(scene.state.harness.accepts_frames());
    scene.state.harness.output.back().extend_from_slice(&vec![0; MAX_TO_HARNESS]);
    assert!(!scene.state.harness.accepts_frames() && !scene.state.harness.accepts_lines());
}

/// A laptop that slept for a week: whatever the shim was doing, each request has one answer, and a request
/// that was answered as not run does not run later.
#[test]
fn after_a_clock_jump_every_request_still_gets_one_answer() {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    for phase in ["down", "greeting", "up", "lost"] {
        let mut scene = if ["up", "lost"].contains(&phase) { Scene::up() } else { Scene::new() };
        if phase == "greeting" {
            scene.connect();
        }
        for id in 1..=3 {
            scene.harness(&request(id, "tools/call"));
        }
        scene.frames();
        if phase == "lost" {
            scene.lose();
        }
        scene.now += WEEK;
        for _ in 0..3 {
            let _ = scene.state.tick(scene.now);
        }
        let answers = errors(&scene.lines_to_harness());
        let expected = |code| (1..=3).map(|id: u32| pair(&id.to_string(), code)).collect::<Vec<_>>();
        match phase {
            // The connection may still work.
            "up" => assert_eq!(answers, []),
            "lost" => assert_eq!(answers, expected("outcome_unknown")),
            _ => assert_eq!(answers, expected("relay_unavailable"), "{phase}"),
        }
        if phase == "up" {
            (1..=3).for_each(|id| scene.sidecar(&result(id)));
            assert_eq!(scene.lines_to_harness().len(), 3);
        }
        if phase == "down" || phase == "greeting" {
            if phase == "down" {
                scene.connect();
            } else {
                scene.lose();
                scene.now += WEEK;
                scene.connect();
            }
            scene.welcome(Resumed::Fresh);
            assert_eq!(scene.messages_to_sidecar(), [], "{phase}");
        }
    }
}
