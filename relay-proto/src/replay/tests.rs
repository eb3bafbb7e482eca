use std::collections::HashSet;

use super::*;
use crate::envelope::read;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id": 0 ,"method":"initialize","params":{"x":[1, 2]}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list"}"#;

/// A record, with methods for what the harness and the server send.
struct Fixture {
    replay: Replay,
}

impl Fixture {
    fn new() -> Self {
        Self { replay: Replay::new("own:") }
    }

    fn initialized() -> Self {
        let mut fixture = Self::new();
        fixture.request_and_response(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        fixture.replay.record_notification(INITIALIZED.as_bytes(), "notifications/initialized");
        fixture
    }

    fn harness_sends(&mut self, message: &str) -> IdValue {
        let envelope = read(message.as_bytes(), Strictness::Envelope).unwrap();
        let Kind::Request { id, method } = envelope.kind else { panic!("not a request: {message}") };
        self.replay.record_request(message.as_bytes(), &id, &method, envelope.body);
        id.value()
    }

    fn request_and_response(&mut self, message: &str, response: &str) {
        self.harness_sends(message);
        self.server_responds(response);
    }

    fn server_responds(&mut self, response: &str) {
        let envelope = read(response.as_bytes(), Strictness::Envelope).unwrap();
        let Kind::Response { id: Some(id), outcome } = envelope.kind else {
            panic!("not a response: {response}")
        };
        self.replay.record_response(&id.value(), outcome, response.as_bytes(), envelope.body);
    }

    fn after_handshake(&mut self) -> Vec<String> {
        let text = |message| match message {
            ReplayMessage::Notification { message, .. }
            | ReplayMessage::Request(OwnRequest { message, .. }) => String::from_utf8(message).unwrap(),
        };
        self.replay.after_handshake().into_iter().map(text).collect()
    }

    /// What the record makes of a response with these tools to our latest `tools/list`.
    fn server_lists_tools(&mut self, tools: &str) -> OwnResponse {
        let id = self.replay.own_tool_list.clone().expect("a tools/list of our own is pending");
        let response = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":{tools}}}}}"#);
        self.replay.read_own_response(response.as_bytes()).expect("a response to our own request")
    }
}

fn subscription(id: u32, uri: &str, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{{"uri":"{uri}"}}}}"#)
}

fn accepted(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

#[test]
fn an_accepted_handshake_is_replayed_under_our_own_id() {
    let mut fixture = Fixture::new();
    fixture.harness_sends(INITIALIZE);
    assert_eq!(fixture.replay.handshake(), None, "the handshake was not accepted yet");
    fixture.server_responds(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    fixture.replay.record_notification(INITIALIZED.as_bytes(), "notifications/initialized");
    let request = fixture.replay.handshake().unwrap();
    let expected = INITIALIZE.replace(" 0 ", &format!(" {} ", request.id));
    assert_eq!(String::from_utf8(request.message).unwrap(), expected);
    assert!(fixture.replay.is_own(&request.id));
    let response = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, request.id);
    assert_eq!(
        fixture.replay.read_own_response(response.as_bytes()),
        Some(OwnResponse::Handshake(Outcome::Result))
    );
    assert_eq!(
        fixture.replay.read_own_response(response.as_bytes()),
        Some(OwnResponse::Nothing),
        "a second response"
    );
    assert_eq!(fixture.after_handshake(), [INITIALIZED]);
}

#[test]
fn a_refused_or_abandoned_handshake_is_not_replayed() {
    let mut fixture = Fixture::new();
    fixture.request_and_response(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":"no"}}"#);
    assert!(!fixture.replay.has_handshake());
    let abandoned = fixture.harness_sends(INITIALIZE);
    fixture.replay.remove_pending(&abandoned);
    fixture.server_responds(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert!(!fixture.replay.has_handshake());
}

#[test]
fn the_latest_settings_follow_the_handshake_and_the_tool_list_comes_last() {
    let mut fixture = Fixture::initialized();
    let level = |id: u32, level: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#)
    };
    fixture.request_and_response(&level(1, "info"), &accepted(1));
    fixture.request_and_response(&level(2, "debug"), &accepted(2));
    fixture.request_and_response(
        &level(3, "nonsense"),
        r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}"#,
    );
    for (id, uri) in [(4, "file:///a"), (5, "file:///b"), (6, "file:///a")] {
        fixture.request_and_response(&subscription(id, uri, "subscribe"), &accepted(id));
    }
    fixture.request_and_response(&subscription(7, r"file:///\u0062", "unsubscribe"), &accepted(7));
    fixture.request_and_response(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    assert_eq!(
        fixture.after_handshake(),
        [
            INITIALIZED.to_owned(),
            level(2, "debug").replace("\"id\":2", "\"id\":\"own:1\""),
            subscription(6, "file:///a", "subscribe").replace("\"id\":6", "\"id\":\"own:2\""),
            LIST.replace("\"l\"", "\"own:3\""),
        ]
    );
}

#[test]
fn settings_without_a_response_yet_are_replayed_too() {
    let mut fixture = Fixture::initialized();
    fixture.request_and_response(&subscription(4, "file:///a", "subscribe"), &accepted(4));
    fixture.request_and_response(&subscription(5, "file:///b", "subscribe"), &accepted(5));
    fixture.harness_sends(&subscription(6, "file:///a", "unsubscribe"));
    fixture.harness_sends(&subscription(7, "file:///c", "subscribe"));
    let uris: Vec<bool> = fixture
        .replay
        .settings()
        .into_iter()
        .map(|message| match message {
            ReplayMessage::Request(OwnRequest { message, .. }) => String::from_utf8(message).unwrap(),
            ReplayMessage::Notification { .. } => panic!("settings are requests"),
        })
        .zip(["file:///b", "file:///c"])
        .map(|(message, uri)| message.contains(uri))
        .collect();
    assert_eq!(uris, [true, true]);
    assert_eq!(fixture.replay.next_id(), IdValue::Text("own:3".into()), "no id is used twice");
}

#[test]
fn tools_are_listed_with_the_harness_s_request_or_a_plain_one() {
    let mut stateless = Fixture::new();
    assert_eq!(stateless.replay.list_tools(), None, "the harness's metadata is unknown");
    let mut fixture = Fixture::initialized();
    let plain = String::from_utf8(fixture.replay.list_tools().unwrap().message).unwrap();
    assert_eq!(plain, LIST.replace("\"l\"", "\"own:1\""));
    let listed = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"_meta":{"x":1}}}"#;
    fixture.request_and_response(listed, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    let own = String::from_utf8(fixture.replay.list_tools().unwrap().message).unwrap();
    assert_eq!(own, listed.replace("\"l\"", "\"own:2\""));
}

#[test]
fn another_handshake_resets_the_settings() {
    let mut fixture = Fixture::initialized();
    fixture.request_and_response(&subscription(4, "file:///a", "subscribe"), &accepted(4));
    fixture.request_and_response(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    fixture.request_and_response(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert_eq!(fixture.after_handshake(), Vec::<String>::new());
}

#[test]
fn changed_tools_are_reported_once_and_their_order_does_not_matter() {
    let mut fixture = Fixture::initialized();
    let (one, two) = (r#"{"name":"one"}"#, r#"{"name":"two"}"#);
    fixture.request_and_response(
        LIST,
        &format!(r#"{{"jsonrpc":"2.0","id":"l","result":{{"tools":[{one},{two}]}}}}"#),
    );
    fixture.replay.after_handshake();
    assert_eq!(fixture.server_lists_tools(&format!("[{two}, {one}]")), OwnResponse::Nothing);
    fixture.replay.after_handshake();
    assert_eq!(fixture.server_lists_tools(&format!("[{one}]")), OwnResponse::ToolsChanged);
    fixture.replay.after_handshake();
    assert_eq!(fixture.server_lists_tools(&format!("[{one}]")), OwnResponse::Nothing);
    assert_eq!(fixture.replay.tools_changed(), [notice::tools_changed()]);
}

#[test]
fn a_request_for_a_later_page_of_tools_is_not_recorded() {
    let mut fixture = Fixture::initialized();
    let page = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"cursor":"x"}}"#;
    fixture.request_and_response(page, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    assert_eq!(fixture.after_handshake(), [INITIALIZED]);
}

#[test]
fn a_stateless_harness_is_notified_of_changed_tools_on_its_listeners() {
    let mut fixture = Fixture::new();
    fixture.request_and_response(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    fixture.replay.after_handshake();
    assert_eq!(fixture.server_lists_tools("[1]"), OwnResponse::ToolsChanged);
    assert!(fixture.replay.tools_changed().is_empty(), "no listener");
    let listen = |id: &str, filter: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"notifications":{filter}}}}}"#
        )
    };
    fixture.harness_sends(&listen("\"prompts\"", r#"{"promptsListChanged":true}"#));
    let listener = fixture.harness_sends(&listen("\"listen:0\"", r#"{"toolsListChanged":true}"#));
    assert_eq!(fixture.replay.tools_changed(), [notice::tools_changed_for(b"\"listen:0\"")]);
    fixture.replay.remove_pending(&listener);
    assert!(fixture.replay.tools_changed().is_empty(), "no listener any more");
}

#[test]
fn a_handshake_is_recorded_whatever_else_is_pending() {
    for uri in ["short".into(), "x".repeat(MAX_BYTES / 8)] {
        let mut fixture = Fixture::new();
        for id in 1..=MAX_PENDING as u32 + 1 {
            fixture.harness_sends(&subscription(id, &uri, "subscribe"));
        }
        fixture.harness_sends(INITIALIZE);
        assert!(fixture.replay.has_open_handshake());
        assert!(fixture.replay.recorded_bytes() <= MAX_BYTES && fixture.replay.pending.len() <= MAX_PENDING);
        fixture.server_responds(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        assert!(fixture.replay.has_handshake());
    }
}

#[test]
fn the_record_is_bounded() {
    let mut fixture = Fixture::initialized();
    for id in 0..2000 {
        fixture.request_and_response(&subscription(id, &format!("file:///{id}"), "subscribe"), &accepted(id));
    }
    assert_eq!(fixture.replay.subscriptions.len(), MAX_SUBSCRIPTIONS);
    let long = "x".repeat(3000);
    for id in 0..2000 {
        fixture.harness_sends(&subscription(id, &format!("file:///{long}{id}"), "subscribe"));
        assert!(fixture.replay.recorded_bytes() <= MAX_BYTES && fixture.replay.pending.len() <= MAX_PENDING);
    }
    let mut fixture = Fixture::initialized();
    let long = "x".repeat(MAX_BYTES / 4);
    for (id, uri) in [(1, "file:///a"), (2, "file:///b"), (3, &long)] {
        fixture.request_and_response(&subscription(id, uri, "subscribe"), &accepted(id));
    }
    for id in 4..40 {
        fixture.harness_sends(&subscription(id, &format!("{long}{id}"), "unsubscribe"));
        assert!(fixture.replay.recorded_bytes() <= MAX_BYTES);
    }
    let message = subscription(40, "", "unsubscribe").len();
    let room = MAX_BYTES - HANDSHAKE_BYTES - fixture.replay.recorded_bytes() - message;
    fixture.harness_sends(&subscription(40, &"z".repeat(room), "unsubscribe"));
    fixture.harness_sends(&subscription(42, "file:///b", "unsubscribe"));
    let uris: Vec<&str> = fixture.replay.subscriptions.iter().map(|(uri, _)| &**uri).collect();
    assert_eq!(
        uris,
        ["file:///a", &long],
        "file:///b must be removed at once: there is no space to wait for the response"
    );
    let mut fixture = Fixture::initialized();
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"x":"{}"}}}}"#,
        "y".repeat(MAX_BYTES)
    );
    fixture.request_and_response(&large, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert!(!fixture.replay.has_handshake(), "the previous handshake must not remain either");
}

#[test]
fn a_sibling_gets_handshake_and_settings_and_no_tool_list() {
    let mut fixture = Fixture::initialized();
    fixture.request_and_response(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    fixture.request_and_response(
        &subscription(7, "file:///a", "subscribe"),
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
    );
    fixture.harness_sends(&subscription(8, "file:///b", "subscribe"));
    let mut sibling = Fixture { replay: fixture.replay.for_sibling() };
    let handshake = sibling.replay.handshake().expect("a sibling replays the handshake");
    assert!(fixture.replay.is_own(&handshake.id));
    let sent = sibling.after_handshake();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0], INITIALIZED);
    assert!(sent[1].contains("file:///a"), "{sent:?}");
    assert!(sibling.replay.own_tool_list.is_none());
    assert!(Replay::new("own:").for_sibling().handshake().is_none(), "the stateless era has no handshake");
}

#[test]
fn a_sibling_gets_a_handshake_that_has_no_response_yet() {
    let mut fixture = Fixture::new();
    fixture.harness_sends(INITIALIZE);
    assert!(fixture.replay.handshake().is_none());
    let mut sibling = Fixture { replay: fixture.replay.for_sibling() };
    assert!(sibling.replay.handshake().is_some());
    assert_eq!(sibling.after_handshake(), [INITIALIZED]);
}

/// A process is sent requests of its replay and of the server's: see [`Replay::is_sent_to_siblings`].
#[test]
fn siblings_never_use_the_same_id() {
    let server = Fixture::initialized().replay;
    let mut sibling = server.for_sibling();
    let handshake = sibling.handshake().expect("a sibling replays the handshake").id;
    let ids = HashSet::from([handshake, server.next_id(), sibling.next_id(), server.next_id()]);
    assert_eq!(ids.len(), 4, "{ids:?}");
}
