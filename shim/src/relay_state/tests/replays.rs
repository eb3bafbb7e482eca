//! A new server process behind a fresh link: what is replayed to it, and what becomes of the old one's requests.

use super::*;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

impl Scene {
    /// A link whose harness made its handshake, as request 1.
    fn initialized() -> Self {
        let mut scene = Self::up();
        scene.harness(&request(1, "initialize"));
        scene.sidecar(&result(1));
        scene.harness(INITIALIZED);
        scene.messages_to_sidecar();
        scene.lines_to_harness();
        scene
    }

    /// The old link is lost and a new one made.
    fn replace_link(&mut self) {
        self.lose();
        self.connect();
        self.welcome(Resumed::Fresh);
    }

    /// The one message that reaches the sidecar now.
    fn only_message_to_sidecar(&mut self) -> String {
        let sent = self.messages_to_sidecar();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0].0.clone()
    }
}

fn own_id(number: u32) -> String {
    format!("\"cofferdam-shim:replay:{number}\"")
}

fn replayed(number: u32) -> String {
    request(1, "initialize").replace("\"id\":1", &format!("\"id\":{}", own_id(number)))
}

fn own_result(number: u32, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, own_id(number))
}

fn listing(id: &str, tools: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":{tools}}}}}"#)
}

const ELICITATION: &str =
    r#"{"jsonrpc":"2.0","id":"cofferdam-l-1","method":"elicitation/create","params":{}}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"cofferdam-l-1","result":{"action":"accept"}}"#;

#[test]
fn on_a_fresh_link_the_handshake_is_first_and_requests_that_may_have_run_are_marked() {
    let mut scene = Scene::initialized();
    scene.harness(&request(2, "tools/call"));
    scene.harness(&request(3, "tools/call"));
    scene.messages_to_sidecar();
    scene.sidecar(&result(3));
    scene.lines_to_harness();
    scene.lose();
    scene.harness(&request(4, "tools/call"));
    scene.connect();
    scene.welcome(Resumed::Fresh);
    assert_eq!(scene.messages_to_sidecar(), [(replayed(1), PLAIN)], "everything else waits for its answer");
    scene.harness(&request(5, "tools/call"));
    assert_eq!(scene.messages_to_sidecar(), []);
    scene.sidecar(&own_result(1, "{}"));
    assert_eq!(
        scene.messages_to_sidecar(),
        [
            (INITIALIZED.to_owned(), PLAIN),
            (request(2, "tools/call"), sent_as(3)),
            (request(4, "tools/call"), PLAIN),
            (request(5, "tools/call"), PLAIN),
        ]
    );
    scene.sidecar(&result(4));
    assert_eq!(scene.lines_to_harness(), [result(4)], "the response to the handshake is not forwarded");
}

#[test]
fn settings_are_replayed_and_changed_tools_are_reported() {
    let mut scene = Scene::initialized();
    let level = r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#;
    let watch = r#"{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"file:///a"}}"#;
    for (line, answer) in
        [(level, result(2)), (watch, result(3)), (&request(4, "tools/list"), listing("4", "[1]"))]
    {
        scene.harness(line);
        scene.sidecar(&answer);
    }
    scene.messages_to_sidecar();
    scene.lines_to_harness();
    let mut handshake = 1;
    for (tools, expected) in [("[1]", vec![]), ("[1,2]", vec![notice::tools_changed()]), ("[1,2]", vec![])] {
        scene.replace_link();
        assert_eq!(scene.messages_to_sidecar(), [(replayed(handshake), PLAIN)]);
        scene.sidecar(&own_result(handshake, "{}"));
        let renamed = |line: &str, id: u32, number| {
            (line.replace(&format!("\"id\":{id}"), &format!("\"id\":{}", own_id(number))), PLAIN)
        };
        assert_eq!(
            scene.messages_to_sidecar(),
            [
                (INITIALIZED.to_owned(), PLAIN),
                renamed(level, 2, handshake + 1),
                renamed(watch, 3, handshake + 2),
                renamed(&request(4, "tools/list"), 4, handshake + 3),
            ]
        );
        scene.sidecar(&own_result(handshake + 1, "{}"));
        scene.sidecar(&own_result(handshake + 2, "{}"));
        scene.sidecar(&listing(&own_id(handshake + 3), tools));
        let expected: Vec<String> =
            expected.into_iter().map(|line| String::from_utf8(line).unwrap()).collect();
        assert_eq!(scene.lines_to_harness(), expected, "{tools}");
        handshake += 4;
    }
}

#[test]
fn in_the_stateless_era_tools_are_compared_and_listeners_reopened() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/list"));
    scene.sidecar(&listing("1", "[1]"));
    let listen = r#"{"jsonrpc":"2.0","id":"listen:0","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}"#;
    scene.harness(listen);
    scene.messages_to_sidecar();
    scene.lines_to_harness();
    for number in 1..4 {
        scene.replace_link();
        let asked = request(1, "tools/list").replace("\"id\":1", &format!("\"id\":{}", own_id(number)));
        assert_eq!(
            scene.messages_to_sidecar(),
            [(asked, PLAIN), (listen.to_owned(), PLAIN)],
            "on link {number}"
        );
        scene.sidecar(&listing(&own_id(number), &format!("[{number},0]")));
        assert_eq!(scene.lines_to_harness()[0].as_bytes(), notice::tools_changed_for(b"\"listen:0\""));
    }
}

#[test]
fn a_server_that_refuses_the_replay_gets_no_request_and_the_next_request_retries() {
    let mut scene = Scene::initialized();
    scene.harness(&request(2, "tools/call"));
    scene.messages_to_sidecar();
    scene.lose();
    scene.harness(&request(3, "tools/call"));
    scene.connect();
    scene.welcome(Resumed::Fresh);
    assert_eq!(scene.only_message_to_sidecar(), replayed(1));
    scene.sidecar(
        r#"{"jsonrpc":"2.0","id":"cofferdam-shim:replay:1","error":{"code":-32050,"message":"credential_unavailable: it did not run: no file","data":{"code":"credential_unavailable"}}}"#,
    );
    let lines = scene.lines_to_harness();
    assert_eq!(errors(&lines), [pair("2", "outcome_unknown"), pair("3", "credential_unavailable")]);
    assert!(lines[1].contains("credential_unavailable: it did not run: no file"), "{}", lines[1]);
    for _ in 0..1000 {
        scene.harness(&format!(r#"{{"jsonrpc":"2.0","method":"x","params":"{}"}}"#, "y".repeat(2000)));
    }
    assert!(scene.state.harness.accepts_lines(), "notifications without a receiver do not pile up");
    assert_eq!(scene.messages_to_sidecar(), []);
    scene.harness(&request(4, "tools/call"));
    assert_eq!(scene.only_message_to_sidecar(), replayed(2));
    scene.sidecar(&own_result(2, "{}"));
    assert_eq!(
        scene.messages_to_sidecar(),
        [(INITIALIZED.to_owned(), PLAIN), (request(4, "tools/call"), PLAIN)]
    );
}

#[test]
fn a_new_handshake_of_the_harness_is_not_preceded_by_a_replay() {
    let mut scene = Scene::initialized();
    scene.harness(&request(2, "initialize"));
    scene.messages_to_sidecar();
    scene.replace_link();
    assert_eq!(scene.messages_to_sidecar(), [(request(2, "initialize"), PLAIN)]);
}

#[test]
fn a_temporary_refusal_keeps_the_replay_record() {
    let mut scene = Scene::initialized();
    scene.lose();
    scene.connect();
    scene.state.undecodable(&relay_proto::frame::DecodeError::OtherVersion { ours: 1, theirs: 2 }, scene.now);
    scene.now += Duration::from_secs(30);
    scene.connect();
    scene.welcome(Resumed::Fresh);
    assert_eq!(scene.only_message_to_sidecar(), replayed(1));
}

#[test]
fn server_requests_survive_a_resume() {
    let mut scene = Scene::initialized();
    scene.sidecar(ELICITATION);
    assert_eq!(scene.lines_to_harness(), [ELICITATION]);
    scene.lose();
    scene.harness(ANSWER);
    scene.connect();
    scene.welcome(Resumed::Resumed);
    assert_eq!(scene.only_message_to_sidecar(), ANSWER);
    assert!(scene.lines_to_harness().is_empty(), "nothing was cancelled");
    scene.harness(ANSWER);
    assert_eq!(scene.messages_to_sidecar(), [], "it was answered already");
}

#[test]
fn requests_of_a_dead_server_are_cancelled_once_and_late_responses_dropped() {
    let mut scene = Scene::initialized();
    scene.sidecar(ELICITATION);
    scene.sidecar(&ELICITATION.replace("l-1", "l-2"));
    let withdrawn =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"cofferdam-l-2"}}"#;
    scene.sidecar(withdrawn);
    scene.lines_to_harness();
    scene.replace_link();
    let cancelled = notice::cancelled(br#""cofferdam-l-1""#, "the server that asked is gone");
    assert_eq!(scene.lines_to_harness(), [String::from_utf8(cancelled).unwrap()]);
    assert_eq!(scene.only_message_to_sidecar(), replayed(1));
    scene.sidecar(&own_result(1, "{}"));
    scene.messages_to_sidecar();
    scene.harness(ANSWER);
    assert_eq!(scene.messages_to_sidecar(), [], "it is not given to the new process");
    scene.replace_link();
    assert!(scene.lines_to_harness().is_empty(), "it is cancelled only once");
}

#[test]
fn a_harness_cannot_use_the_shims_own_ids() {
    let mut scene = Scene::initialized();
    scene.harness(r#"{"jsonrpc":"2.0","id":"cofferdam-shim:replay:1","method":"tools/list"}"#);
    assert_eq!(errors(&scene.lines_to_harness()), [pair("null", "message_malformed")]);
    assert_eq!(scene.messages_to_sidecar(), []);
}
