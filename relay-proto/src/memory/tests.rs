use super::*;
use crate::envelope::read;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id": 0 ,"method":"initialize","params":{"x":[1, 2]}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list"}"#;

/// A memory, a harness and a server that accepts or not.
struct Scene {
    memory: Memory,
}

impl Scene {
    fn new() -> Self {
        Self { memory: Memory::new("own:") }
    }

    fn greeted() -> Self {
        let mut scene = Self::new();
        scene.asks(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        scene.memory.notification(INITIALIZED.as_bytes(), "notifications/initialized");
        scene
    }

    fn says(&mut self, message: &str) -> IdValue {
        let envelope = read(message.as_bytes(), Strictness::Envelope).unwrap();
        let Kind::Request { id, method } = envelope.kind else { panic!("a request: {message}") };
        self.memory.request(message.as_bytes(), &id, &method, envelope.body);
        id.value()
    }

    fn asks(&mut self, message: &str, answer: &str) {
        self.says(message);
        self.answers(answer);
    }

    fn answers(&mut self, answer: &str) {
        let envelope = read(answer.as_bytes(), Strictness::Envelope).unwrap();
        let Kind::Response { id: Some(id), outcome } = envelope.kind else { panic!("a response: {answer}") };
        self.memory.answered(&id.value(), outcome, answer.as_bytes(), envelope.body);
    }

    fn settings(&mut self) -> Vec<String> {
        let text = |saying| match saying {
            Saying::Notification { message, .. } | Saying::Request(Question { message, .. }) => {
                String::from_utf8(message).unwrap()
            }
        };
        self.memory.settings().into_iter().map(text).collect()
    }

    /// What the newest question about tools means, answered so.
    fn hears_tools(&mut self, tools: &str) -> Heard {
        let asked = self.memory.asked_tools.clone().expect("the tools were asked for");
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":{{"tools":{tools}}}}}"#);
        self.memory.hear(answer.as_bytes()).expect("an answer to our own question")
    }
}

fn subscription(id: u32, uri: &str, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{{"uri":"{uri}"}}}}"#)
}

fn accepted(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

#[test]
fn an_accepted_handshake_is_made_again_under_our_own_id() {
    let mut scene = Scene::new();
    scene.says(INITIALIZE);
    assert_eq!(scene.memory.handshake(), None, "nobody agreed yet");
    scene.answers(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    scene.memory.notification(INITIALIZED.as_bytes(), "notifications/initialized");
    let question = scene.memory.handshake().unwrap();
    let expected = INITIALIZE.replace(" 0 ", &format!(" {} ", question.id));
    assert_eq!(String::from_utf8(question.message).unwrap(), expected);
    assert!(scene.memory.is_own(&question.id));
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, question.id);
    assert_eq!(scene.memory.hear(answer.as_bytes()), Some(Heard::Handshake(Outcome::Result)));
    assert_eq!(scene.memory.hear(answer.as_bytes()), Some(Heard::Nothing), "once");
    assert_eq!(scene.settings(), [INITIALIZED]);
}

#[test]
fn what_was_refused_or_given_up_is_not_said_again() {
    let mut scene = Scene::new();
    scene.asks(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":"no"}}"#);
    assert!(!scene.memory.has_handshake());
    let given_up = scene.says(INITIALIZE);
    scene.memory.forget(&given_up);
    scene.answers(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert!(!scene.memory.has_handshake());
}

#[test]
fn settings_follow_the_handshake_in_their_order_and_the_tools_come_last() {
    let mut scene = Scene::greeted();
    let level = |id: u32, level: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#)
    };
    scene.asks(&level(1, "info"), &accepted(1));
    scene.asks(&level(2, "debug"), &accepted(2));
    scene.asks(&level(3, "nonsense"), r#"{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}"#);
    for (id, uri) in [(4, "file:///a"), (5, "file:///b"), (6, "file:///a")] {
        scene.asks(&subscription(id, uri, "subscribe"), &accepted(id));
    }
    scene.asks(&subscription(7, r"file:///\u0062", "unsubscribe"), &accepted(7));
    scene.asks(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
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
fn what_is_asked_for_at_the_moment_is_said_to_another_process_too() {
    let mut scene = Scene::greeted();
    scene.asks(&subscription(4, "file:///a", "subscribe"), &accepted(4));
    scene.asks(&subscription(5, "file:///b", "subscribe"), &accepted(5));
    scene.says(&subscription(6, "file:///a", "unsubscribe"));
    scene.says(&subscription(7, "file:///c", "subscribe"));
    let uris: Vec<bool> = scene
        .memory
        .preferences()
        .into_iter()
        .map(|saying| match saying {
            Saying::Request(Question { message, .. }) => String::from_utf8(message).unwrap(),
            Saying::Notification { .. } => panic!("only requests"),
        })
        .zip(["file:///b", "file:///c"])
        .map(|(said, uri)| said.contains(uri))
        .collect();
    assert_eq!(uris, [true, true]);
    assert_eq!(scene.memory.next_id(), IdValue::Text("own:3".into()), "no id is used twice");
}

#[test]
fn tools_are_asked_for_in_the_words_of_the_harness_or_in_plain_ones() {
    let mut stateless = Scene::new();
    assert_eq!(stateless.memory.list_tools(), None, "what would it say of itself?");
    let mut scene = Scene::greeted();
    let plain = String::from_utf8(scene.memory.list_tools().unwrap().message).unwrap();
    assert_eq!(plain, LIST.replace("\"l\"", "\"own:1\""));
    let asked = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"_meta":{"x":1}}}"#;
    scene.asks(asked, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    let own = String::from_utf8(scene.memory.list_tools().unwrap().message).unwrap();
    assert_eq!(own, asked.replace("\"l\"", "\"own:2\""));
}

#[test]
fn another_handshake_begins_anew() {
    let mut scene = Scene::greeted();
    scene.asks(&subscription(4, "file:///a", "subscribe"), &accepted(4));
    scene.asks(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    scene.asks(INITIALIZE, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert_eq!(scene.settings(), Vec::<String>::new());
}

#[test]
fn tools_that_differ_are_told_once_and_their_order_is_no_difference() {
    let mut scene = Scene::greeted();
    let (one, two) = (r#"{"name":"one"}"#, r#"{"name":"two"}"#);
    scene.asks(LIST, &format!(r#"{{"jsonrpc":"2.0","id":"l","result":{{"tools":[{one},{two}]}}}}"#));
    scene.memory.settings();
    assert_eq!(scene.hears_tools(&format!("[{two}, {one}]")), Heard::Nothing);
    scene.memory.settings();
    assert_eq!(scene.hears_tools(&format!("[{one}]")), Heard::ToolsChanged);
    scene.memory.settings();
    assert_eq!(scene.hears_tools(&format!("[{one}]")), Heard::Nothing);
    assert_eq!(scene.memory.tools_changed(), [notice::tools_changed()]);
}

#[test]
fn a_later_page_is_not_the_list() {
    let mut scene = Scene::greeted();
    let page = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{"cursor":"x"}}"#;
    scene.asks(page, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    assert_eq!(scene.settings(), [INITIALIZED]);
}

#[test]
fn a_stateless_harness_hears_of_changed_tools_where_it_listens() {
    let mut scene = Scene::new();
    scene.asks(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    scene.memory.settings();
    assert_eq!(scene.hears_tools("[1]"), Heard::ToolsChanged);
    assert!(scene.memory.tools_changed().is_empty(), "nobody listens");
    let listen = |id: &str, filter: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"notifications":{filter}}}}}"#
        )
    };
    scene.says(&listen("\"deaf\"", r#"{"promptsListChanged":true}"#));
    let listener = scene.says(&listen("\"listen:0\"", r#"{"toolsListChanged":true}"#));
    assert_eq!(scene.memory.tools_changed(), [notice::tools_changed_for(b"\"listen:0\"")]);
    scene.memory.forget(&listener);
    assert!(scene.memory.tools_changed().is_empty(), "nobody listens any more");
}

#[test]
fn a_handshake_is_remembered_whatever_else_is_under_way() {
    for uri in ["short".into(), "x".repeat(MAX_BYTES / 8)] {
        let mut scene = Scene::new();
        for id in 1..=MAX_UNDER_WAY as u32 + 1 {
            scene.says(&subscription(id, &uri, "subscribe"));
        }
        scene.says(INITIALIZE);
        assert!(scene.memory.is_shaking_hands());
        assert!(scene.memory.bytes() <= MAX_BYTES && scene.memory.under_way.len() <= MAX_UNDER_WAY);
        scene.answers(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        assert!(scene.memory.has_handshake());
    }
}

#[test]
fn a_harness_cannot_make_it_remember_without_end() {
    let mut scene = Scene::greeted();
    for id in 0..2000 {
        scene.asks(&subscription(id, &format!("file:///{id}"), "subscribe"), &accepted(id));
    }
    assert_eq!(scene.memory.subscriptions.len(), MAX_SUBSCRIPTIONS);
    let long = "x".repeat(3000);
    for id in 0..2000 {
        scene.says(&subscription(id, &format!("file:///{long}{id}"), "subscribe"));
        assert!(scene.memory.bytes() <= MAX_BYTES && scene.memory.under_way.len() <= MAX_UNDER_WAY);
    }
    let mut scene = Scene::greeted();
    let long = "x".repeat(MAX_BYTES / 4);
    for (id, uri) in [(1, "file:///a"), (2, "file:///b"), (3, &long)] {
        scene.asks(&subscription(id, uri, "subscribe"), &accepted(id));
    }
    for id in 4..40 {
        scene.says(&subscription(id, &format!("{long}{id}"), "unsubscribe"));
        assert!(scene.memory.bytes() <= MAX_BYTES);
    }
    let message = subscription(40, "", "unsubscribe").len();
    let room = MAX_BYTES - HANDSHAKE_BYTES - scene.memory.bytes() - message;
    scene.says(&subscription(40, &"z".repeat(room), "unsubscribe"));
    scene.says(&subscription(42, "file:///b", "unsubscribe"));
    let uris: Vec<&str> = scene.memory.subscriptions.iter().map(|(uri, _)| &**uri).collect();
    assert_eq!(uris, ["file:///a", &long], "where its answer cannot be waited for, it is not");
    let mut scene = Scene::greeted();
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"x":"{}"}}}}"#,
        "y".repeat(MAX_BYTES)
    );
    scene.asks(&large, r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    assert!(!scene.memory.has_handshake(), "not the wrong one either");
}

#[test]
fn a_process_beside_is_told_what_counts_and_asked_for_no_tools() {
    let mut scene = Scene::greeted();
    scene.asks(LIST, r#"{"jsonrpc":"2.0","id":"l","result":{"tools":[]}}"#);
    scene.asks(&subscription(7, "file:///a", "subscribe"), r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    scene.says(&subscription(8, "file:///b", "subscribe"));
    let mut beside = Scene { memory: scene.memory.for_sibling() };
    let asked = beside.memory.handshake().expect("there was one");
    assert!(scene.memory.is_own(&asked.id));
    let told = beside.settings();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0], INITIALIZED);
    assert!(told[1].contains("file:///a"), "{told:?}");
    assert!(beside.memory.asked_tools.is_none());
    assert!(Memory::new("own:").for_sibling().handshake().is_none(), "the stateless era has none");
}

#[test]
fn a_process_beside_does_not_wait_for_an_answer_that_the_harness_does_not_wait_for() {
    let mut scene = Scene::new();
    scene.says(INITIALIZE);
    assert!(scene.memory.handshake().is_none());
    let mut beside = Scene { memory: scene.memory.for_sibling() };
    assert!(beside.memory.handshake().is_some());
    assert_eq!(beside.settings(), [INITIALIZED]);
}
