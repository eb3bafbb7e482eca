//! MCP revisions up to 2025-11-25: `initialize`, sessions, the listening stream, resumption.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;

use super::server::{Piece, SeenRequest, Server, TestResponse};
use super::*;

/// A server that opens session `s1` and leaves the rest to `others`.
async fn server(others: impl Fn(&SeenRequest) -> TestResponse + Send + Sync + 'static) -> Server {
    Server::start(move |seen| match seen {
        seen if seen.is("initialize") => {
            TestResponse::json(r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}"#)
                .with("mcp-session-id", "s1")
        }
        seen if seen.is("notifications/initialized") => TestResponse::status(202),
        seen => others(seen),
    })
    .await
}

/// 405 for the listening stream (GET), otherwise this response.
fn refuse_get_or(seen: &SeenRequest, response: TestResponse) -> TestResponse {
    match seen.method {
        Method::GET => TestResponse::status(405),
        _ => response,
    }
}

#[tokio::test]
async fn session_id_and_protocol_version_are_sent_with_every_later_request() {
    let server = server(|seen| refuse_get_or(seen, TestResponse::json(result(1)))).await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    upstream.send(request(1, "tools/list", "{}"), credentials());
    assert_eq!(next_message(&mut upstream).await, result(1));
    within(upstream.close()).await;

    let seen = server.seen();
    assert_eq!(seen[0].header("mcp-session-id"), None);
    assert_eq!(seen[0].header("mcp-protocol-version"), None);
    assert_eq!(seen[0].header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    assert_eq!(seen[0].header("accept-encoding"), Some("identity"));
    assert_eq!(
        seen[0].body,
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#
    );
    for later in &seen[1..] {
        assert_eq!(later.header("mcp-session-id"), Some("s1"), "{later:?}");
        assert_eq!(later.header("mcp-protocol-version"), Some("2025-06-18"), "{later:?}");
        assert_eq!(later.header("authorization"), Some(CREDENTIAL), "{later:?}");
        assert_eq!(later.header("mcp-method"), None, "{later:?}");
    }
    assert_eq!(seen.iter().filter(|seen| seen.method == Method::GET).count(), 1, "405 is final");
    assert_eq!(seen.last().unwrap().method, Method::DELETE);
}

#[tokio::test]
async fn nothing_overtakes_the_end_of_the_handshake() {
    // The server delays its response to the notification, so that later messages have time to overtake it.
    let server = Server::start(|seen| match seen {
        seen if seen.is("initialize") => {
            TestResponse::json(r#"{"id":0,"result":{"protocolVersion":"2025-06-18"}}"#)
        }
        seen if seen.is("notifications/initialized") => {
            TestResponse::status(202).delayed(Duration::from_millis(300))
        }
        seen => refuse_get_or(seen, TestResponse::json(result(1))),
    })
    .await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    // Sent immediately, as harnesses do.
    upstream.send(request(1, "tools/list", "{}"), credentials());
    next_message(&mut upstream).await;
    let posts: Vec<SeenRequest> =
        server.seen().into_iter().filter(|seen| seen.method == Method::POST).collect();
    assert!(posts[1].is("notifications/initialized"));
    assert!(posts[2].is("tools/list"));
    assert_eq!(posts[2].overtaken, 0);
}

#[tokio::test]
async fn a_server_without_a_listening_stream_gets_one_request_for_it() {
    let server = server(|_| TestResponse::status(405)).await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    server.wait_for(|seen| seen.method == Method::GET).await;
    // No task is left that could open the stream again: only idle connections remain.
    let shared = upstream.shared.clone();
    within(async {
        while shared.tasks.len() > shared.pool.idle_connections() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_sends_requests_on_the_listening_stream() {
    let server = server(|seen| match seen.method {
        Method::GET => {
            TestResponse::events("data: {\"id\":9,\"method\":\"roots/list\"}\n\n").then(Piece::Hold)
        }
        _ => TestResponse::status(202),
    })
    .await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    assert_eq!(next_message(&mut upstream).await, r#"{"id":9,"method":"roots/list"}"#);
    upstream.send(response(9), credentials());
    let answered = server.wait_for(|seen| seen.body.contains(r#""id":9"#)).await;
    assert_eq!(answered.header("mcp-session-id"), Some("s1"));
    // Dropping the upstream closes its streams.
    drop(upstream);
    server.wait_for_lost_clients(1).await;
}

#[tokio::test]
async fn a_cut_listening_stream_is_resumed_after_the_last_event() {
    let times = AtomicUsize::new(0);
    let server = server(move |seen| match (&seen.method, times.fetch_add(1, Ordering::SeqCst)) {
        (&Method::GET, 0) => {
            TestResponse::events("retry: 100\nid: e1\ndata: {\"method\":\"one\"}\n\nid: e2\ndata: {\"meth")
                .then(Piece::Cut)
        }
        (&Method::GET, 1) => TestResponse::status(503),
        _ => TestResponse::events("data: {\"method\":\"two\"}\n\n").then(Piece::Hold),
    })
    .await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    assert_eq!(next_message(&mut upstream).await, r#"{"method":"one"}"#);
    assert_eq!(next_message(&mut upstream).await, r#"{"method":"two"}"#);
    let streams: Vec<SeenRequest> =
        server.seen().into_iter().filter(|seen| seen.method == Method::GET).collect();
    assert_eq!(streams[0].header("last-event-id"), None);
    assert_eq!(streams[2].header("last-event-id"), Some("e1"));
}

#[tokio::test]
async fn a_cut_response_is_resumed_where_the_server_gave_an_event_id() {
    let server = server(|seen| match seen.header("last-event-id") {
        Some(last_event) => {
            assert_eq!(last_event, "a/1");
            TestResponse::events(format!("data: {}\n\n", result(1)))
        }
        None if seen.method == Method::GET => TestResponse::status(405),
        None => TestResponse::events("id: a/1\nretry: 100\ndata:\n\n"),
    })
    .await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), credentials());
    assert_eq!(next_message(&mut upstream).await, result(1));
    assert_eq!(server.seen().iter().filter(|seen| seen.is("tools/call")).count(), 1, "it is not run twice");
}

#[tokio::test]
async fn a_lost_session_is_reported_once_and_can_be_opened_again() {
    let server = server(|seen| {
        refuse_get_or(seen, TestResponse::json(r#"{"error":{"code":-32001},"id":null}"#).with_status(404))
    })
    .await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    upstream.send(request(1, "tools/list", "{}"), credentials());
    assert_eq!(within(upstream.next()).await, Event::Returned(request(1, "tools/list", "{}")));
    assert!(upstream.has_lost_its_session());
    assert_eq!(within(upstream.next()).await, Event::SessionLost);
    upstream.send(request(0, "initialize", "{}"), credentials());
    assert!(next_message(&mut upstream).await.contains("protocolVersion"));
    assert_eq!(server.seen().last().unwrap().header("mcp-session-id"), None);
    assert!(!upstream.has_lost_its_session());
    // A request too large to be kept cannot be returned. That it did not run is still reported before the lost session.
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(100 * 1024));
    upstream.send(request(2, "tools/call", &large), credentials());
    assert_eq!(next_failure(&mut upstream, 2).await, Failure::SessionLost);
    assert_eq!(within(upstream.next()).await, Event::SessionLost);
}

#[tokio::test]
async fn queued_bytes_are_counted_until_they_are_sent() {
    let server = server(|seen| match seen.body.contains("tools/call") {
        true => TestResponse::events("").then(Piece::Hold),
        false => refuse_get_or(seen, TestResponse::json(result(1))),
    })
    .await;
    let mut upstream = upstream(&server);
    handshake(&mut upstream).await;
    let small = request(1, "tools/list", "{}");
    let length = small.bytes.len();
    upstream.send(small, credentials());
    assert!(upstream.queued_bytes() >= length);
    next_message(&mut upstream).await;
    let large = request(2, "tools/call", &format!(r#"{{"name":"{}"}}"#, "x".repeat(1024 * 1024)));
    upstream.send(large, credentials());
    assert!(upstream.queued_bytes() > 1024 * 1024);
    // The call has no response yet, but all its bytes have been sent.
    within(async {
        while upstream.queued_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_refused_handshake_opens_no_session() {
    let server = Server::start(|seen| match seen.is("initialize") {
        true => TestResponse::json(r#"{"id":0,"error":{"code":-32602}}"#).with("mcp-session-id", "s1"),
        false => TestResponse::json(result(1)),
    })
    .await;
    let mut upstream = upstream(&server);
    upstream.send(request(0, "initialize", "{}"), credentials());
    assert!(next_message(&mut upstream).await.contains("-32602"));
    upstream.send(request(1, "tools/list", "{}"), credentials());
    next_message(&mut upstream).await;
    assert_eq!(server.seen()[1].header("mcp-session-id"), None);
}

#[tokio::test]
async fn events_that_arrive_byte_by_byte_are_parsed_and_delivered_in_order() {
    let events = format!(
        ": hello\r\n\r\ndata: {{\"method\":\"notifications/progress\"}}\r\n\r\nevent: other\ndata: x\n\ndata: {{\"id\":1,\ndata: \"result\":{{}}}}\n\ndata: {}\n\n",
        result(2)
    );
    let server = Server::start(move |_| TestResponse::events(events.clone()).byte_by_byte()).await;
    let mut upstream = upstream(&server);
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), credentials());
    assert_eq!(next_message(&mut upstream).await, r#"{"method":"notifications/progress"}"#);
    assert_eq!(next_message(&mut upstream).await, "{\"id\":1,\n\"result\":{}}");
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let server = Server::start(|seen| match seen.body.contains(r#""id":1,"#) {
        true => TestResponse::json(result(1)),
        false => TestResponse::events(format!("data: {}\n\n", result(2))),
    })
    .await;
    let mut upstream = upstream(&server);
    for id in [1, 2, 2, 1] {
        upstream.send(request(id, "tools/list", "{}"), credentials());
        assert_eq!(next_message(&mut upstream).await, result(id));
        // The connection returns to the pool when its task has ended, a moment after the response.
        within(async {
            while upstream.shared.pool.idle_connections() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    // One connection is enough, unless the machine is so slow that an idle one expired.
    assert!(server.connections() < 4);
}
