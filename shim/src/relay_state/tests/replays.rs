//! Tests of fresh links: what is replayed to the new server process, and that requests of the old process are cancelled.

use super::*;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

impl Fixture {
    /// A link whose harness made its handshake, as request 1.
    fn initialized() -> Self {
        let mut fixture = Self::up();
        fixture.harness_sends(&request(1, "initialize"));
        fixture.sidecar_sends(&result(1));
        fixture.harness_sends(INITIALIZED);
        fixture.messages_to_sidecar();
        fixture.lines_to_harness();
        fixture
    }

    /// Loses the link and opens a new one.
    fn replace_link(&mut self) {
        self.lose_connection();
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
const ELICITATION_RESPONSE: &str = r#"{"jsonrpc":"2.0","id":"cofferdam-l-1","result":{"action":"accept"}}"#;

#[test]
fn on_a_fresh_link_the_handshake_is_first_and_requests_that_may_have_run_are_marked() {
    let mut fixture = Fixture::initialized();
    fixture.harness_sends(&request(2, "tools/call"));
    fixture.harness_sends(&request(3, "tools/call"));
    fixture.messages_to_sidecar();
    fixture.sidecar_sends(&result(3));
    fixture.lines_to_harness();
    fixture.lose_connection();
    fixture.harness_sends(&request(4, "tools/call"));
    fixture.connect();
    fixture.welcome(Resumed::Fresh);
    assert_eq!(
        fixture.messages_to_sidecar(),
        [(replayed(1), PLAIN)],
        "everything else waits for the response to the handshake"
    );
    fixture.harness_sends(&request(5, "tools/call"));
    assert_eq!(fixture.messages_to_sidecar(), []);
    fixture.sidecar_sends(&own_result(1, "{}"));
    assert_eq!(
        fixture.messages_to_sidecar(),
        [
            (INITIALIZED.to_owned(), PLAIN),
            (request(2, "tools/call"), sent_as(3)),
            (request(4, "tools/call"), PLAIN),
            (request(5, "tools/call"), PLAIN),
        ]
    );
    fixture.sidecar_sends(&result(4));
    assert_eq!(fixture.lines_to_harness(), [result(4)], "the response to the handshake is not forwarded");
}

#[test]
fn settings_are_replayed_and_changed_tools_are_reported() {
    let mut fixture = Fixture::initialized();
    let level = r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#;
    let watch = r#"{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"file:///a"}}"#;
    for (line, response) in
        [(level, result(2)), (watch, result(3)), (&request(4, "tools/list"), listing("4", "[1]"))]
    {
        fixture.harness_sends(line);
        fixture.sidecar_sends(&response);
    }
    fixture.messages_to_sidecar();
    fixture.lines_to_harness();
    let mut handshake = 1;
    for (tools, expected) in [("[1]", vec![]), ("[1,2]", vec![notice::tools_changed()]), ("[1,2]", vec![])] {
        fixture.replace_link();
        assert_eq!(fixture.messages_to_sidecar(), [(replayed(handshake), PLAIN)]);
        fixture.sidecar_sends(&own_result(handshake, "{}"));
        let renamed = |line: &str, id: u32, number| {
            (line.replace(&format!("\"id\":{id}"), &format!("\"id\":{}", own_id(number))), PLAIN)
        };
        assert_eq!(
            fixture.messages_to_sidecar(),
            [
                (INITIALIZED.to_owned(), PLAIN),
                renamed(level, 2, handshake + 1),
                renamed(watch, 3, handshake + 2),
                renamed(&request(4, "tools/list"), 4, handshake + 3),
            ]
        );
        fixture.sidecar_sends(&own_result(handshake + 1, "{}"));
        fixture.sidecar_sends(&own_result(handshake + 2, "{}"));
        fixture.sidecar_sends(&listing(&own_id(handshake + 3), tools));
        let expected: Vec<String> =
            expected.into_iter().map(|line| String::from_utf8(line).unwrap()).collect();
        assert_eq!(fixture.lines_to_harness(), expected, "{tools}");
        handshake += 4;
    }
}

#[test]
fn in_the_stateless_era_tools_are_compared_and_listeners_reopened() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/list"));
    fixture.sidecar_sends(&listing("1", "[1]"));
    let listen = r#"{"jsonrpc":"2.0","id":"listen:0","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}"#;
    fixture.harness_sends(listen);
    fixture.messages_to_sidecar();
    fixture.lines_to_harness();
    for number in 1..4 {
        fixture.replace_link();
        let list_request =
            request(1, "tools/list").replace("\"id\":1", &format!("\"id\":{}", own_id(number)));
        assert_eq!(
            fixture.messages_to_sidecar(),
            [(list_request, PLAIN), (listen.to_owned(), PLAIN)],
            "on link {number}"
        );
        fixture.sidecar_sends(&listing(&own_id(number), &format!("[{number},0]")));
        assert_eq!(fixture.lines_to_harness()[0].as_bytes(), notice::tools_changed_for(b"\"listen:0\""));
    }
}

#[test]
fn a_server_that_refuses_the_replay_gets_no_request_and_the_next_request_retries() {
    let mut fixture = Fixture::initialized();
    fixture.harness_sends(&request(2, "tools/call"));
    fixture.messages_to_sidecar();
    fixture.lose_connection();
    fixture.harness_sends(&request(3, "tools/call"));
    fixture.connect();
    fixture.welcome(Resumed::Fresh);
    assert_eq!(fixture.only_message_to_sidecar(), replayed(1));
    fixture.sidecar_sends(
        r#"{"jsonrpc":"2.0","id":"cofferdam-shim:replay:1","error":{"code":-32050,"message":"credential_unavailable: it did not run: no file","data":{"code":"credential_unavailable"}}}"#,
    );
    let lines = fixture.lines_to_harness();
    assert_eq!(errors(&lines), [pair("2", "outcome_unknown"), pair("3", "credential_unavailable")]);
    assert!(lines[1].contains("credential_unavailable: it did not run: no file"), "{}", lines[1]);
    for _ in 0..1000 {
        fixture
            .harness_sends(&format!(r#"{{"jsonrpc":"2.0","method":"x","params":"{}"}}"#, "y".repeat(2000)));
    }
    assert!(fixture.state.harness.accepts_lines(), "notifications without a receiver do not pile up");
    assert_eq!(fixture.messages_to_sidecar(), []);
    fixture.harness_sends(&request(4, "tools/call"));
    assert_eq!(fixture.only_message_to_sidecar(), replayed(2));
    fixture.sidecar_sends(&own_result(2, "{}"));
    assert_eq!(
        fixture.messages_to_sidecar(),
        [(INITIALIZED.to_owned(), PLAIN), (request(4, "tools/call"), PLAIN)]
    );
}

#[test]
fn a_new_handshake_of_the_harness_is_not_preceded_by_a_replay() {
    let mut fixture = Fixture::initialized();
    fixture.harness_sends(&request(2, "initialize"));
    fixture.messages_to_sidecar();
    fixture.replace_link();
    assert_eq!(fixture.messages_to_sidecar(), [(request(2, "initialize"), PLAIN)]);
}

#[test]
fn after_a_temporary_refusal_the_handshake_is_still_replayed() {
    let mut fixture = Fixture::initialized();
    fixture.lose_connection();
    fixture.connect();
    fixture
        .state
        .undecodable(&relay_proto::frame::DecodeError::OtherVersion { ours: 1, theirs: 2 }, fixture.now);
    fixture.now += Duration::from_secs(30);
    fixture.connect();
    fixture.welcome(Resumed::Fresh);
    assert_eq!(fixture.only_message_to_sidecar(), replayed(1));
}

#[test]
fn server_requests_survive_a_resume() {
    let mut fixture = Fixture::initialized();
    fixture.sidecar_sends(ELICITATION);
    assert_eq!(fixture.lines_to_harness(), [ELICITATION]);
    fixture.lose_connection();
    fixture.harness_sends(ELICITATION_RESPONSE);
    fixture.connect();
    fixture.welcome(Resumed::Resumed);
    assert_eq!(fixture.only_message_to_sidecar(), ELICITATION_RESPONSE);
    assert!(fixture.lines_to_harness().is_empty(), "nothing was cancelled");
    fixture.harness_sends(ELICITATION_RESPONSE);
    assert_eq!(fixture.messages_to_sidecar(), [], "a second response is dropped");
}

#[test]
fn requests_of_a_dead_server_are_cancelled_once_and_late_responses_dropped() {
    let mut fixture = Fixture::initialized();
    fixture.sidecar_sends(ELICITATION);
    fixture.sidecar_sends(&ELICITATION.replace("l-1", "l-2"));
    let withdrawn =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"cofferdam-l-2"}}"#;
    fixture.sidecar_sends(withdrawn);
    fixture.lines_to_harness();
    fixture.replace_link();
    let cancelled = notice::cancelled(br#""cofferdam-l-1""#, "the server that asked is gone");
    assert_eq!(fixture.lines_to_harness(), [String::from_utf8(cancelled).unwrap()]);
    assert_eq!(fixture.only_message_to_sidecar(), replayed(1));
    fixture.sidecar_sends(&own_result(1, "{}"));
    fixture.messages_to_sidecar();
    fixture.harness_sends(ELICITATION_RESPONSE);
    assert_eq!(fixture.messages_to_sidecar(), [], "the response is not sent to the new process");
    fixture.replace_link();
    assert!(fixture.lines_to_harness().is_empty(), "the request is cancelled only once");
}

#[test]
fn a_harness_cannot_use_the_shims_own_ids() {
    let mut fixture = Fixture::initialized();
    fixture.harness_sends(r#"{"jsonrpc":"2.0","id":"cofferdam-shim:replay:1","method":"tools/list"}"#);
    assert_eq!(errors(&fixture.lines_to_harness()), [pair("null", "message_malformed")]);
    assert_eq!(fixture.messages_to_sidecar(), []);
}
