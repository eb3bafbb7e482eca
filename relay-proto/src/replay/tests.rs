use std::collections::HashSet;

use super::*;
use crate::envelope::read;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id": 0 ,"method":"initialize","params":{"x":[1, 2]}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list"}"#;

/// A replay record, a harness and a server that accepts or not.
struct Scene {
    replay: Replay,
}

impl Scene {
    fn new() -> Self {
        Self { replay: Replay::new("own:") }
    }

    fn initialized() -> Self {
        let mut scene = Self::new();
        scene.requests(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        scene.replay.notification(INITIALIZED.as_bytes(), "notifications/initialized");
        scene
    }

    fn sends(&mut self, message: &str) -> IdValue {
        let envelope = read(message.as_bytes(), Strictness::Envelope).unwrap();
        let Kind::Request { id, method } = envelope.kind else { panic!("a request: {message}") };
        self.replay.request(message.as_bytes(), &id, &method, envelope.body);
        id.value()
    }

    fn requests(&mut self, message: &str, answer: &str) {
        self.sends(message);
        self.answers(answer);
    }

    fn answers(&mut self, answer: &str) {
        let envelope = read(answer.as_bytes(), Strictness::Envelope).unwrap();
        let Kind::Response { id: Some(id), outcome } = envelope.kind else { panic!("a response: {answer}") };
        self.replay.answered(&id.value(), outcome, answer.as_bytes(), envelope.body);
    }

    fn settings(&mut self) -> Vec<String> {
        let text = |message| match message {
            ReplayMessage::Notification { message, .. }
            | ReplayMessage::Request(OwnRequest { message, .. }) => String::from_utf8(message).unwrap(),
        };
        self.replay.settings().into_iter().map(text).collect()
    }

    /// What a response with these tools to our latest list request means.
    fn lists_tools(&mut self, tools: &str) -> OwnResponse {
        let asked = self.replay.own_tool_list.clone().expect("the tools were listed");
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":{{"tools":{tools}}}}}"#);
        self.replay.read_own_response(answer.as_bytes()).expect("a response to our own request")
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
    let mut scene = Scene::new();
    scene.sends(INITIALIZE);
    assert_eq!(scene.replay.handshake(), None, "it was not accepted yet");
    scene.answers(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    scene.replay.notification(INITIALIZED.as_bytes(), "notifications/initialized");
    let request = scene.replay.handshake().unwrap();
    let expected = INITIALIZE.replace(" 0 ", &format!(" {} ", request.id));
    assert_eq!(String::from_utf8(request.message).unwrap(), expected);
    assert!(scene.replay.is_own(&request.id));
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, request.id);
    assert_eq!(
        scene.replay.read_own_response(answer.as_bytes()),
        Some(OwnResponse::Handshake(Outcome::Result))
    );
    assert_eq!(scene.replay.read_own_response(answer.as_bytes()), Some(OwnResponse::Nothing), "once");
    assert_eq!(scene.settings(), [INITIALIZED]);
}

#[test]
fn a_refused_or_abandoned_handshake_is_not_replayed() {
    let mut scene = Scene::new();
    scene.requests(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":"no"}}"#);
    assert!(!scene.replay.has_handshake());
    let abandoned = scene.sends(INITIALIZE);
    scene.replay.forget(&abandoned);
    scene.answers(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert!(!scene.replay.has_handshake());
}

#[test]
fn settings_follow_the_handshake_in_their_order_and_the_tools_come_last() {
    let mut scene = Scene::initialized();
    let level = |id: u32, level: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#)
    };
    scene.requests(&level(1, "info"), &accepted(1));
    scene.requests(&level(2, "debug"), &accepted(2));
    scene.requests(&level(3, "nonsense"), r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}"#);
    for (id, uri) in [(4, "file:///a"), (5, "file:///b"), (6, "file:///a")] {
        scene.requests(&subscription(id, uri, "subscribe"), &accepted(id));
    }
    scene.requests(&subscription(7, r"file:///\u0062", "unsubscribe"), &accepted(7));
    scene.requests(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    assert_eq!(
        scene.settings(),
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
    let mut scene = Scene::initialized();
    scene.requests(&subscription(4, "file:///a", "subscribe"), &accepted(4));
    scene.requests(&subscription(5, "file:///b", "subscribe"), &accepted(5));
    scene.sends(&subscription(6, "file:///a", "unsubscribe"));
    scene.sends(&subscription(7, "file:///c", "subscribe"));
    let uris: Vec<bool> = scene
        .replay
        .preferences()
        .into_iter()
        .map(|message| match message {
            ReplayMessage::Request(OwnRequest { message, .. }) => String::from_utf8(message).unwrap(),
            ReplayMessage::Notification { .. } => panic!("only requests"),
        })
        .zip(["file:///b", "file:///c"])
        .map(|(said, uri)| said.contains(uri))
        .collect();
    assert_eq!(uris, [true, true]);
    assert_eq!(scene.replay.next_id(), IdValue::Text("own:3".into()), "no id is used twice");
}

#[test]
fn tools_are_listed_with_the_harness_s_request_or_a_plain_one() {
    let mut stateless = Scene::new();
    assert_eq!(stateless.replay.list_tools(), None, "its metadata is not known");
    let mut scene = Scene::initialized();
    let plain = String::from_utf8(scene.replay.list_tools().unwrap().message).unwrap();
    assert_eq!(plain, LIST.replace("\"l\"", "\"own:1\""));
    let asked = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"_meta":{"x":1}}}"#;
    scene.requests(asked, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    let own = String::from_utf8(scene.replay.list_tools().unwrap().message).unwrap();
    assert_eq!(own, asked.replace("\"l\"", "\"own:2\""));
}

#[test]
fn another_handshake_resets_the_settings() {
    let mut scene = Scene::initialized();
    scene.requests(&subscription(4, "file:///a", "subscribe"), &accepted(4));
    scene.requests(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    scene.requests(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert_eq!(scene.settings(), Vec::<String>::new());
}

#[test]
fn changed_tools_are_reported_once_and_their_order_does_not_matter() {
    let mut scene = Scene::initialized();
    let (one, two) = (r#"{"name":"one"}"#, r#"{"name":"two"}"#);
    scene.requests(LIST, &format!(r#"{{"jsonrpc":"2.0","id":"l","result":{{"tools":[{one},{two}]}}}}"#));
    scene.replay.settings();
    assert_eq!(scene.lists_tools(&format!("[{two}, {one}]")), OwnResponse::Nothing);
    scene.replay.settings();
    assert_eq!(scene.lists_tools(&format!("[{one}]")), OwnResponse::ToolsChanged);
    scene.replay.settings();
    assert_eq!(scene.lists_tools(&format!("[{one}]")), OwnResponse::Nothing);
    assert_eq!(scene.replay.tools_changed(), [notice::tools_changed()]);
}

#[test]
fn a_later_page_is_not_recorded() {
    let mut scene = Scene::initialized();
    let page = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"cursor":"x"}}"#;
    scene.requests(page, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    assert_eq!(scene.settings(), [INITIALIZED]);
}

#[test]
fn a_stateless_harness_is_notified_of_changed_tools_on_its_listeners() {
    let mut scene = Scene::new();
    scene.requests(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    scene.replay.settings();
    assert_eq!(scene.lists_tools("[1]"), OwnResponse::ToolsChanged);
    assert!(scene.replay.tools_changed().is_empty(), "no listener");
    let listen = |id: &str, filter: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"notifications":{filter}}}}}"#
        )
    };
    scene.sends(&listen("\"prompts\"", r#"{"promptsListChanged":true}"#));
    let listener = scene.sends(&listen("\"listen:0\"", r#"{"toolsListChanged":true}"#));
    assert_eq!(scene.replay.tools_changed(), [notice::tools_changed_for(b"\"listen:0\"")]);
    scene.replay.forget(&listener);
    assert!(scene.replay.tools_changed().is_empty(), "no listener any more");
}

#[test]
fn a_handshake_is_recorded_whatever_else_is_pending() {
    for uri in ["short".into(), "x".repeat(MAX_BYTES / 8)] {
        let mut scene = Scene::new();
        for id in 1..=MAX_PENDING as u32 + 1 {
            scene.sends(&subscription(id, &uri, "subscribe"));
        }
        scene.sends(INITIALIZE);
        assert!(scene.replay.has_open_handshake());
        assert!(scene.replay.bytes() <= MAX_BYTES && scene.replay.pending.len() <= MAX_PENDING);
        scene.answers(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        assert!(scene.replay.has_handshake());
    }
}

#[test]
fn what_is_recorded_is_bounded() {
    let mut scene = Scene::initialized();
    for id in 0..2000 {
        scene.requests(&subscription(id, &format!("file:///{id}"), "subscribe"), &accepted(id));
    }
    assert_eq!(scene.replay.subscriptions.len(), MAX_SUBSCRIPTIONS);
    let long = "x".repeat(3000);
    for id in 0..2000 {
        scene.sends(&subscription(id, &format!("file:///{long}{id}"), "subscribe"));
        assert!(scene.replay.bytes() <= MAX_BYTES && scene.replay.pending.len() <= MAX_PENDING);
    }
    let mut scene = Scene::initialized();
    let long = "x".repeat(MAX_BYTES / 4);
    for (id, uri) in [(1, "file:///a"), (2, "file:///b"), (3, &long)] {
        scene.requests(&subscription(id, uri, "subscribe"), &accepted(id));
    }
    for id in 4..40 {
        scene.sends(&subscription(id, &format!("{long}{id}"), "unsubscribe"));
        assert!(scene.replay.bytes() <= MAX_BYTES);
    }
    let message = subscription(40, "", "unsubscribe").len();
    let room = MAX_BYTES - HANDSHAKE_BYTES - scene.replay.bytes() - message;
    scene.sends(&subscription(40, &"z".repeat(room), "unsubscribe"));
    scene.sends(&subscription(42, "file:///b", "unsubscribe"));
    let uris: Vec<&str> = scene.replay.subscriptions.iter().map(|(uri, _)| &**uri).collect();
    assert_eq!(uris, ["file:///a", &long], "without room to wait for the response, it is removed at once");
    let mut scene = Scene::initialized();
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"x":"{}"}}}}"#,
        "y".repeat(MAX_BYTES)
    );
    scene.requests(&large, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert!(!scene.replay.has_handshake(), "the previous one is not kept either");
}

#[test]
fn a_sibling_gets_handshake_and_settings_and_no_tool_list() {
    let mut scene = Scene::initialized();
    scene.requests(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    scene.requests(&subscription(7, "file:///a", "subscribe"), r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    scene.sends(&subscription(8, "file:///b", "subscribe"));
    let mut sibling = Scene { replay: scene.replay.for_sibling() };
    let asked = sibling.replay.handshake().expect("there was one");
    assert!(scene.replay.is_own(&asked.id));
    let sent = sibling.settings();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0], INITIALIZED);
    assert!(sent[1].contains("file:///a"), "{sent:?}");
    assert!(sibling.replay.own_tool_list.is_none());
    assert!(Replay::new("own:").for_sibling().handshake().is_none(), "the stateless era has none");
}

#[test]
fn a_sibling_gets_a_handshake_that_has_no_response_yet() {
    let mut scene = Scene::new();
    scene.sends(INITIALIZE);
    assert!(scene.replay.handshake().is_none());
    let mut sibling = Scene { replay: scene.replay.for_sibling() };
    assert!(sibling.replay.handshake().is_some());
    assert_eq!(sibling.settings(), [INITIALIZED]);
}

/// A process is sent requests of its own replay and of the server's: see [`Replay::concerns_siblings`].
#[test]
fn siblings_never_use_the_same_id() {
    let server = Scene::initialized().replay;
    let mut sibling = server.for_sibling();
    let asked = sibling.handshake().expect("there was one").id;
    let ids = HashSet::from([asked, server.next_id(), sibling.next_id(), server.next_id()]);
    assert_eq!(ids.len(), 4, "{ids:?}");
}
