//! Servers that close the connection, refuse requests, or send wrong or endless responses. Each request still gets
//! exactly one outcome, which says whether it may have run.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::server::{Piece, Server, TestResponse};
use super::*;

/// Sends one call to a server that always answers the same.
async fn call(response: impl Fn() -> TestResponse + Send + Sync + 'static) -> Event {
    let server = Server::start(move |_| response()).await;
    let mut upstream = upstream(&server);
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), credentials());
    let event = within(upstream.next()).await;
    assert_eq!(server.seen().len(), 1, "the request is sent once");
    event
}

async fn failure(response: impl Fn() -> TestResponse + Send + Sync + 'static) -> Failure {
    match call(response).await {
        Event::Failed { failure, .. } => failure,
        other => panic!("expected a failure, not {other:?}"),
    }
}

fn maybe_ran(failure: Failure) -> String {
    match failure {
        Failure::MaybeRan { why } => why,
        other => panic!("expected a request that may have run, not {other:?}"),
    }
}

fn not_sent(failure: Failure) -> String {
    match failure {
        Failure::DidNotRun { why } => why,
        other => panic!("expected a request that did not run, not {other:?}"),
    }
}

#[tokio::test]
async fn a_request_on_a_refused_connection_did_not_run() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut upstream = HttpUpstream::new(target(&format!("http://{closed}/mcp")), limits());
    upstream.send(request(1, "tools/list", "{}"), credentials());
    assert!(not_sent(next_failure(&mut upstream, 1).await).contains("refused"));
}

#[tokio::test]
async fn a_request_whose_response_was_cut_off_may_have_run() {
    maybe_ran(failure(|| TestResponse::json("{\"id\":1,").then(Piece::Cut)).await);
    maybe_ran(failure(|| TestResponse::events("data: {\"id\":1,").then(Piece::Cut)).await);
    maybe_ran(failure(|| TestResponse::events("data: {\"id\":1,\"result\":{}}\n")).await);
}

#[tokio::test]
async fn a_request_on_a_connection_closed_without_a_response_may_have_run() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut upstream = HttpUpstream::new(target(&format!("http://{address}/mcp")), limits());
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), credentials());
    let (mut socket, _) = within(listener.accept()).await.unwrap();
    let mut byte = [0];
    within(socket.read_exact(&mut byte)).await.unwrap();
    drop(socket);
    maybe_ran(next_failure(&mut upstream, 1).await);
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut upstream = HttpUpstream::new(target(&format!("http://{address}/mcp")), limits());
    for id in 1..=3 {
        upstream.send(request(id, "tools/call", r#"{"name":"t"}"#), credentials());
        let (mut socket, _) = within(listener.accept()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"}}") {
            within(socket.read_buf(&mut head)).await.unwrap();
        }
        let body = result(id);
        let response = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(response.as_bytes()).await.unwrap();
        assert_eq!(next_message(&mut upstream).await, body);
        // Closed although the response allowed the connection to be reused.
        drop(socket);
        within(async {
            while upstream.shared.pool.live_connections() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_with_an_unusable_response_may_have_run() {
    maybe_ran(failure(|| TestResponse::json("[]")).await);
    maybe_ran(failure(|| TestResponse::json(result(2))).await);
    maybe_ran(failure(|| TestResponse::status(202)).await);
    maybe_ran(failure(|| TestResponse::status(200).with("content-type", "text/html")).await);
    assert!(
        maybe_ran(failure(|| TestResponse::json(result(1)).with("content-encoding", "gzip")).await)
            .contains("compressed")
    );
}

#[tokio::test]
async fn the_status_says_whether_a_request_ran() {
    let refused = failure(|| TestResponse::json(result(1)).with_status(401)).await;
    assert_eq!(refused, Failure::NoCredential { why: "there is no newer one".into() });
    assert_eq!(failure(|| TestResponse::status(403)).await, Failure::Forbidden);
    assert!(
        not_sent(failure(|| TestResponse::json(r#"{"secret":"x"}"#).with_status(400)).await)
            .contains("400 (Bad Request)")
    );
    not_sent(failure(|| TestResponse::status(429)).await);
    maybe_ran(failure(|| TestResponse::status(408)).await);
    maybe_ran(failure(|| TestResponse::status(502)).await);
    let error = r#"{"id":1,"error":{"code":-32603}}"#;
    assert_eq!(call(move || TestResponse::json(error).with_status(500)).await, Event::Message(error.into()));
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_its_target_gets_no_credential() {
    let other = Server::start(|_| TestResponse::json(result(1))).await;
    let location = other.url();
    let why = not_sent(failure(move || TestResponse::status(307).with("location", location.clone())).await);
    assert!(why.contains("`127.0.0.1`") && !why.contains("/mcp"), "{why}");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let huge = || "x".repeat(limits().message_bytes + 1);
    assert_eq!(failure(move || TestResponse::json(huge())).await, Failure::TooLarge);
    let endless = move || TestResponse::json("[").then(Piece::Bytes(huge().into())).then(Piece::Hold);
    assert_eq!(failure(endless).await, Failure::TooLarge);
    let event = move || {
        TestResponse::events("data: ").then(Piece::Bytes(huge().into())).then(Piece::Bytes("\n\n".into()))
    };
    assert_eq!(failure(event).await, Failure::TooLarge);
}

#[tokio::test]
async fn an_endless_response_head_is_refused() {
    let why =
        maybe_ran(failure(|| TestResponse::json(result(1)).with("x-long", "x".repeat(1024 * 1024))).await);
    assert!(why.contains("large"), "{why}");
}

#[tokio::test]
async fn large_responses_at_the_same_time_all_arrive() {
    let padding = "x".repeat(200 * 1024);
    let server = Server::start(move |seen| {
        let id: serde_json::Value = serde_json::from_str(&seen.body).unwrap();
        let body = format!(r#"{{"id":{},"result":{{"p":"{padding}"}}}}"#, id["id"]);
        match id["id"].as_u64().unwrap() % 2 {
            0 => TestResponse::json(body),
            _ => TestResponse::events(format!("data: {body}\n\n")),
        }
    })
    .await;
    let mut upstream = upstream(&server);
    for id in 0..8 {
        upstream.send(request(id, "tools/call", r#"{"name":"t"}"#), credentials());
    }
    for _ in 0..8 {
        assert!(next_message(&mut upstream).await.len() > 200 * 1024);
    }
}

#[tokio::test]
async fn more_requests_than_allowed_are_refused_at_once() {
    let server = Server::start(|_| TestResponse::events("").then(Piece::Hold)).await;
    let mut upstream = upstream(&server);
    for id in 0..9 {
        upstream.send(request(id, "tools/call", r#"{"name":"t"}"#), credentials());
    }
    assert!(not_sent(next_failure(&mut upstream, 8).await).contains("too many"));
    server.wait_for(|seen| seen.body.contains(r#""id":3,"#)).await;
    upstream.cancel(&number(3));
    upstream.send(request(3, "tools/call", r#"{"name":"t"}"#), credentials());
    server.wait_for_lost_clients(1).await;
}

#[tokio::test]
async fn closing_is_bounded_and_ends_every_stream() {
    let server = Server::start(|seen| match seen.is("initialize") {
        true => TestResponse::json(r#"{"id":0,"result":{"protocolVersion":"2025-06-18"}}"#)
            .with("mcp-session-id", "s"),
        false => TestResponse::events("").then(Piece::Hold),
    })
    .await;
    let mut upstream = upstream(&server);
    upstream.send(request(0, "initialize", "{}"), credentials());
    next_message(&mut upstream).await;
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), credentials());
    server.wait_for(|seen| seen.is("tools/call")).await;
    within(upstream.close()).await;
    server.wait_for_lost_clients(1).await;
}
