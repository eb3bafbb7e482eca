//! 2026-07-28: requests without a session, whose headers repeat the parts of the message that proxies route by.

use super::server::{Piece, Server, TestResponse};
use super::*;

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;

#[tokio::test]
async fn the_headers_repeat_version_method_name_and_annotated_arguments() {
    let list = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","tools":[{"name":"größe","inputSchema":{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},"note":{"type":"string","x-mcp-header":"Note"}}}}]}}"#;
    let server = Server::start(move |seen| match seen.is("tools/list") {
        true => TestResponse::json(list),
        false => TestResponse::events(format!("data: {}\n\n", result(2))),
    })
    .await;
    let mut upstream = upstream(&server);
    upstream.send(request(1, "tools/list", &format!("{{{META}}}")), credentials());
    assert_eq!(next_message(&mut upstream).await, list);
    let call = format!(r#"{{"name":"größe","arguments":{{"region":"eu-west","note":"a\nb"}},{META}}}"#);
    upstream.send(request(2, "tools/call", &call), credentials());
    assert_eq!(next_message(&mut upstream).await, result(2));
    within(upstream.close()).await;

    let seen = server.seen();
    assert_eq!(seen.len(), 2, "no listening stream, and no session to end");
    assert_eq!(seen[0].header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(seen[0].header("mcp-method"), Some("tools/list"));
    assert_eq!(seen[0].header("mcp-name"), None);
    assert_eq!(seen[1].header("mcp-method"), Some("tools/call"));
    assert_eq!(seen[1].header("mcp-name"), Some("=?base64?Z3LDtsOfZQ==?="));
    assert_eq!(seen[1].header("mcp-param-region"), Some("eu-west"));
    assert_eq!(seen[1].header("mcp-param-note"), Some("=?base64?YQpi?="));
    assert_eq!(seen[1].header("mcp-session-id"), None);
}

#[tokio::test]
async fn cancelling_closes_the_stream_and_sends_nothing() {
    let server = Server::start(|_| {
        TestResponse::events("data: {\"method\":\"notifications/progress\"}\n\n").then(Piece::Hold)
    })
    .await;
    let mut upstream = upstream(&server);
    upstream.send(request(1, "subscriptions/listen", &format!("{{{META}}}")), credentials());
    assert_eq!(next_message(&mut upstream).await, r#"{"method":"notifications/progress"}"#);
    upstream.send(notification("notifications/cancelled"), credentials());
    upstream.cancel(&number(1));
    server.wait_for_lost_clients(1).await;
    // Its id is free again, and the server was sent no cancellation.
    upstream.send(request(1, "subscriptions/listen", &format!("{{{META}}}")), credentials());
    assert_eq!(next_message(&mut upstream).await, r#"{"method":"notifications/progress"}"#);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn an_error_with_a_status_is_relayed_byte_for_byte() {
    let error = r#"{"jsonrpc":"2.0", "id":1, "error":{"code":-32601,"message":"no such method"}}"#;
    let server = Server::start(move |_| TestResponse::json(error).with_status(404)).await;
    let mut upstream = upstream(&server);
    upstream.send(request(1, "what/ever", &format!("{{{META}}}")), credentials());
    assert_eq!(next_message(&mut upstream).await, error);
}

#[tokio::test]
async fn an_error_without_an_id_gets_the_id_of_the_probe() {
    let server = Server::start(|_| {
        TestResponse::json(r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request"},"id":null}"#)
            .with_status(400)
    })
    .await;
    let mut upstream = upstream(&server);
    let probe = r#"{"jsonrpc":"2.0","id":"server-discover-probe-1","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let id = IdValue::Text("server-discover-probe-1".into());
    let kind = OutboundKind::Request { id, method: "server/discover".into(), name: None };
    upstream.send(Outbound { bytes: probe.into(), kind, scope: None, decision_reads: None }, credentials());
    assert_eq!(
        next_message(&mut upstream).await,
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request"},"id":"server-discover-probe-1"}"#
    );
}

#[tokio::test]
async fn a_cut_stream_is_not_resumed() {
    let server =
        Server::start(|_| TestResponse::events("id: 1\ndata: {\"method\":\"x\"}\n\n").then(Piece::Cut)).await;
    let mut upstream = upstream(&server);
    upstream.send(request(1, "tools/call", &format!(r#"{{"name":"t",{META}}}"#)), credentials());
    next_message(&mut upstream).await;
    assert!(matches!(next_failure(&mut upstream, 1).await, Failure::MaybeRan { .. }));
    assert_eq!(server.seen().len(), 1);
}
