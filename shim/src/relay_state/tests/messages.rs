//! Messages, and what becomes of them when the sidecar is away or comes back.

use super::*;

#[test]
fn lines_and_messages_are_forwarded_byte_for_byte() {
    let mut scene = Scene::up();
    let call =
        r#"{ "jsonrpc":"2.0" , "id":"\u0061", "method":"tools/call","params":{"x":1.0}, "future":[] }"#;
    scene.harness(call);
    assert_eq!(scene.messages_to_sidecar(), [(call.to_owned(), PLAIN)]);
    let answer = r#"{"jsonrpc":"2.0","id":"a","result":{"y": 2.50}}"#;
    scene.sidecar(answer);
    scene.sidecar(answer);
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
    scene.sidecar(notification);
    scene.sidecar("{\"jsonrpc\":\"2.0\",\n\"id\":9,\"method\":\"roots/list\"}");
    let safe = r#"{"jsonrpc":"2.0", "id":9,"method":"roots/list"}"#;
    assert_eq!(
        scene.lines_to_harness(),
        [answer, notification, safe],
        "an answer comes once, and each on one line"
    );
}

#[test]
fn malformed_lines_are_answered_and_not_relayed() {
    let mut scene = Scene::up();
    scene.harness("garbage");
    scene.harness("[]");
    scene.harness(&request(1, "a"));
    scene.harness(&request(1, "b"));
    scene.harness(r#"{"jsonrpc":"2.0","id":1,"method":"x","result":1}"#);
    scene.state.line(Line::TooLarge { id: Some(b"7".as_slice().into()) }, scene.now);
    scene.state.line(Line::TooLarge { id: Some(b"1".as_slice().into()) }, scene.now);
    assert_eq!(scene.messages_to_sidecar(), [(request(1, "a"), PLAIN)]);
    let malformed = || pair("null", "message_malformed");
    let (large, unknown) = (pair("7", "message_too_large"), pair("null", "message_too_large"));
    assert_eq!(
        errors(&scene.lines_to_harness()),
        [malformed(), malformed(), malformed(), malformed(), large, unknown]
    );
}

#[test]
fn without_a_sidecar_a_handshake_is_answered_after_20_seconds_and_a_call_after_60() {
    let mut scene = Scene::new();
    scene.harness(&request(1, "initialize"));
    scene.harness(&request(2, "tools/call"));
    scene.wait(19);
    assert!(scene.lines_to_harness().is_empty());
    scene.wait(1);
    assert_eq!(errors(&scene.lines_to_harness()), [pair("1", "relay_unavailable")]);
    scene.wait(39);
    assert!(scene.lines_to_harness().is_empty());
    scene.wait(1);
    assert_eq!(errors(&scene.lines_to_harness()), [pair("2", "relay_unavailable")]);
    assert_eq!(scene.state.harness.backlog.bytes(), 0);
    scene.connect_and_expect(&[]);
}

#[test]
fn waiting_messages_are_sent_in_order_once_connected() {
    let mut scene = Scene::new();
    scene.harness(&request(1, "initialize"));
    scene.harness(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    scene.harness(&request(2, "ping"));
    scene.harness(&request(3, "tools/list"));
    scene.harness(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#);
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned();
    scene.connect_and_expect(&[
        (request(1, "initialize"), PLAIN),
        (notification, PLAIN),
        (request(2, "ping"), PLAIN),
    ]);
}

#[test]
fn a_resumed_connection_loses_nothing() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    // Handed out, but cut before it arrived.
    scene.state.sidecar.output.clear();
    scene.lose();
    scene.harness(&request(2, "tools/call"));
    scene.connect();
    scene.welcome(Resumed::Resumed);
    assert_eq!(
        scene.messages_to_sidecar(),
        [(request(1, "tools/call"), PLAIN), (request(2, "tools/call"), PLAIN)]
    );
    scene.sidecar(&result(1));
    scene.sidecar(&result(2));
    assert_eq!(scene.lines_to_harness(), [result(1), result(2)]);
}

#[test]
fn a_lost_link_leaves_the_outcome_unknown() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    scene.messages_to_sidecar();
    scene.wait(19);
    scene.lose();
    scene.harness(&request(2, "tools/call"));
    scene.wait(59);
    assert_eq!(errors(&scene.lines_to_harness()), [pair("1", "outcome_unknown")]);
    scene.wait(1);
    assert_eq!(errors(&scene.lines_to_harness()), [pair("2", "relay_unavailable")]);
    scene.now += Duration::from_secs(30);
    scene.connect();
    scene.welcome(Resumed::Resumed);
    scene.sidecar(&result(1));
    assert!(scene.lines_to_harness().is_empty(), "a late answer is dropped");
    assert!(scene.messages_to_sidecar().is_empty(), "a request that was answered as not run is not sent");
}

#[test]
fn a_request_without_credit_is_outcome_unknown_while_the_link_may_resume() {
    let mut scene = Scene::up();
    assert_eq!(scene.frame(Frame::Ack(Ack { seq: 0, window: 0 })), Connected::Keep);
    scene.harness(&request(1, "tools/call"));
    assert!(scene.messages_to_sidecar().is_empty());
    scene.lose();
    scene.wait(60);
    assert_eq!(
        errors(&scene.lines_to_harness()),
        [pair("1", "outcome_unknown")],
        "a resumed link would still send it"
    );
}

#[test]
fn a_request_that_never_got_credit_is_not_marked_on_a_fresh_link() {
    let mut scene = Scene::up();
    assert_eq!(scene.frame(Frame::Ack(Ack { seq: 0, window: 100 })), Connected::Keep);
    scene.harness(&request(1, "tools/call"));
    scene.harness(&request(2, "tools/call"));
    assert_eq!(scene.messages_to_sidecar(), [(request(1, "tools/call"), PLAIN)]);
    scene.lose();
    scene.connect_and_expect(&[(request(1, "tools/call"), sent_as(1)), (request(2, "tools/call"), PLAIN)]);
}

#[test]
fn a_cancelled_request_gets_no_response() {
    let mut scene = Scene::up();
    scene.harness(&request(1, "tools/call"));
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    scene.harness(cancel);
    assert_eq!(scene.messages_to_sidecar(), [(request(1, "tools/call"), PLAIN), (cancel.to_owned(), PLAIN)]);
    scene.sidecar(&result(1));
    assert!(scene.lines_to_harness().is_empty());
    scene.lose();
    scene.connect_and_expect(&[]);
}

#[test]
fn a_final_refusal_answers_waiting_and_later_requests() {
    let mut scene = Scene::new();
    scene.harness(&request(1, "initialize"));
    scene.connect();
    let refusal = |retry| {
        Frame::Refusal(Refusal {
            code: "server_not_granted".into(),
            message: "not in this grant".into(),
            retry,
        })
    };
    assert_eq!(scene.frame(refusal(Retry::Never)), Connected::Close);
    scene.harness(&request(2, "tools/list"));
    let lines = scene.lines_to_harness();
    assert_eq!(errors(&lines), [pair("1", "server_not_granted"), pair("2", "server_not_granted")]);
    assert!(lines[0].contains("server_not_granted: not in this grant"));
    assert_eq!(scene.state.deadline(), None, "there is no other attempt");

    let mut scene = Scene::new();
    scene.harness(&request(1, "tools/list"));
    scene.connect();
    assert_eq!(scene.frame(refusal(Retry::AfterMs(5000))), Connected::Close);
    scene.harness(&request(2, "tools/list"));
    assert!(!scene.state.should_connect(scene.now + Duration::from_millis(4999)));
    assert!(scene.state.should_connect(scene.now + Duration::from_millis(5000)));
    assert!(scene.lines_to_harness().is_empty());
}
