//! Tests of messages while there is a sidecar, while there is none, and after a reconnect.

use super::*;

#[test]
fn lines_and_messages_are_forwarded_byte_for_byte() {
    let mut fixture = Fixture::up();
    let call =
        r#"{ "jsonrpc":"2.0" , "id":"\u0061", "method":"tools/call","params":{"x":1.0}, "future":[] }"#;
    fixture.harness_sends(call);
    assert_eq!(fixture.messages_to_sidecar(), [(call.to_owned(), PLAIN)]);
    let response = r#"{"jsonrpc":"2.0","id":"a","result":{"y": 2.50}}"#;
    fixture.sidecar_sends(response);
    fixture.sidecar_sends(response);
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
    fixture.sidecar_sends(notification);
    fixture.sidecar_sends("{\"jsonrpc\":\"2.0\",\n\"id\":9,\"method\":\"roots/list\"}");
    let safe = r#"{"jsonrpc":"2.0", "id":9,"method":"roots/list"}"#;
    assert_eq!(
        fixture.lines_to_harness(),
        [response, notification, safe],
        "a response is written once, and each message is one line"
    );
}

#[test]
fn malformed_lines_are_answered_and_not_relayed() {
    let mut fixture = Fixture::up();
    fixture.harness_sends("garbage");
    fixture.harness_sends("[]");
    fixture.harness_sends(&request(1, "a"));
    fixture.harness_sends(&request(1, "b"));
    fixture.harness_sends(r#"{"jsonrpc":"2.0","id":1,"method":"x","result":1}"#);
    fixture.state.line(Line::TooLarge { id: Some(b"7".as_slice().into()) }, fixture.now);
    fixture.state.line(Line::TooLarge { id: Some(b"1".as_slice().into()) }, fixture.now);
    assert_eq!(fixture.messages_to_sidecar(), [(request(1, "a"), PLAIN)]);
    let malformed = || pair("null", "message_malformed");
    let (large, unknown) = (pair("7", "message_too_large"), pair("null", "message_too_large"));
    assert_eq!(
        errors(&fixture.lines_to_harness()),
        [malformed(), malformed(), malformed(), malformed(), large, unknown]
    );
}

#[test]
fn without_a_sidecar_a_handshake_is_answered_after_20_seconds_and_a_call_after_60() {
    let mut fixture = Fixture::new();
    fixture.harness_sends(&request(1, "initialize"));
    fixture.harness_sends(&request(2, "tools/call"));
    fixture.wait(19);
    assert!(fixture.lines_to_harness().is_empty());
    fixture.wait(1);
    assert_eq!(errors(&fixture.lines_to_harness()), [pair("1", "relay_unavailable")]);
    fixture.wait(39);
    assert!(fixture.lines_to_harness().is_empty());
    fixture.wait(1);
    assert_eq!(errors(&fixture.lines_to_harness()), [pair("2", "relay_unavailable")]);
    assert_eq!(fixture.state.harness.backlog.bytes(), 0);
    fixture.connect_and_expect(&[]);
}

#[test]
fn waiting_messages_are_sent_in_order_once_connected() {
    let mut fixture = Fixture::new();
    fixture.harness_sends(&request(1, "initialize"));
    fixture.harness_sends(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    fixture.harness_sends(&request(2, "ping"));
    fixture.harness_sends(&request(3, "tools/list"));
    fixture.harness_sends(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#);
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned();
    fixture.connect_and_expect(&[
        (request(1, "initialize"), PLAIN),
        (notification, PLAIN),
        (request(2, "ping"), PLAIN),
    ]);
}

#[test]
fn a_resumed_connection_loses_nothing() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    // Handed out, but cut before it arrived.
    fixture.state.sidecar.output.clear();
    fixture.lose_connection();
    fixture.harness_sends(&request(2, "tools/call"));
    fixture.connect();
    fixture.welcome(Resumed::Resumed);
    assert_eq!(
        fixture.messages_to_sidecar(),
        [(request(1, "tools/call"), PLAIN), (request(2, "tools/call"), PLAIN)]
    );
    fixture.sidecar_sends(&result(1));
    fixture.sidecar_sends(&result(2));
    assert_eq!(fixture.lines_to_harness(), [result(1), result(2)]);
}

#[test]
fn a_lost_link_leaves_the_outcome_unknown() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.messages_to_sidecar();
    fixture.wait(19);
    fixture.lose_connection();
    fixture.harness_sends(&request(2, "tools/call"));
    fixture.wait(59);
    assert_eq!(errors(&fixture.lines_to_harness()), [pair("1", "outcome_unknown")]);
    fixture.wait(1);
    assert_eq!(errors(&fixture.lines_to_harness()), [pair("2", "relay_unavailable")]);
    fixture.now += Duration::from_secs(30);
    fixture.connect();
    fixture.welcome(Resumed::Resumed);
    fixture.sidecar_sends(&result(1));
    assert!(fixture.lines_to_harness().is_empty(), "a late response is dropped");
    assert!(fixture.messages_to_sidecar().is_empty(), "a request that was answered as not run is not sent");
}

#[test]
fn a_request_without_credit_is_outcome_unknown_while_the_link_may_resume() {
    let mut fixture = Fixture::up();
    assert_eq!(fixture.sidecar_sends_frame(Frame::Ack(Ack { seq: 0, window: 0 })), ConnectionAction::Keep);
    fixture.harness_sends(&request(1, "tools/call"));
    assert!(fixture.messages_to_sidecar().is_empty());
    fixture.lose_connection();
    fixture.wait(60);
    assert_eq!(
        errors(&fixture.lines_to_harness()),
        [pair("1", "outcome_unknown")],
        "a resumed link would still send it"
    );
}

#[test]
fn a_request_that_never_got_credit_is_not_marked_on_a_fresh_link() {
    let mut fixture = Fixture::up();
    assert_eq!(fixture.sidecar_sends_frame(Frame::Ack(Ack { seq: 0, window: 100 })), ConnectionAction::Keep);
    fixture.harness_sends(&request(1, "tools/call"));
    fixture.harness_sends(&request(2, "tools/call"));
    assert_eq!(fixture.messages_to_sidecar(), [(request(1, "tools/call"), PLAIN)]);
    fixture.lose_connection();
    fixture.connect_and_expect(&[(request(1, "tools/call"), sent_as(1)), (request(2, "tools/call"), PLAIN)]);
}

#[test]
fn a_cancelled_request_gets_no_response() {
    let mut fixture = Fixture::up();
    fixture.harness_sends(&request(1, "tools/call"));
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    fixture.harness_sends(cancel);
    assert_eq!(
        fixture.messages_to_sidecar(),
        [(request(1, "tools/call"), PLAIN), (cancel.to_owned(), PLAIN)]
    );
    fixture.sidecar_sends(&result(1));
    assert!(fixture.lines_to_harness().is_empty());
    fixture.lose_connection();
    fixture.connect_and_expect(&[]);
}

#[test]
fn a_final_refusal_answers_waiting_and_later_requests() {
    let mut fixture = Fixture::new();
    fixture.harness_sends(&request(1, "initialize"));
    fixture.connect();
    let refusal = |retry| {
        Frame::Refusal(Refusal {
            code: "server_not_granted".into(),
            message: "not in this grant".into(),
            retry,
        })
    };
    assert_eq!(fixture.sidecar_sends_frame(refusal(Retry::Never)), ConnectionAction::Close);
    fixture.harness_sends(&request(2, "tools/list"));
    let lines = fixture.lines_to_harness();
    assert_eq!(errors(&lines), [pair("1", "server_not_granted"), pair("2", "server_not_granted")]);
    assert!(lines[0].contains("server_not_granted: not in this grant"));
    assert_eq!(fixture.state.deadline(), None, "there is no other attempt");

    let mut fixture = Fixture::new();
    fixture.harness_sends(&request(1, "tools/list"));
    fixture.connect();
    assert_eq!(fixture.sidecar_sends_frame(refusal(Retry::AfterMs(5000))), ConnectionAction::Close);
    fixture.harness_sends(&request(2, "tools/list"));
    assert!(!fixture.state.should_connect(fixture.now + Duration::from_millis(4999)));
    assert!(fixture.state.should_connect(fixture.now + Duration::from_millis(5000)));
    assert!(fixture.lines_to_harness().is_empty());
}
