//! A slot in states that are hard to reach from outside: a start that never ends, a server that never reads.

use std::convert::Infallible;
use std::future::ready;

use cofferdam_policy::Rules;
use cofferdam_process::Ended;
use relay_proto::envelope::{IdValue, Kind, Outcome, Strictness, read};
use relay_proto::mcp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::*;
use crate::event::Role;
use crate::outbound::{Outbound, QUEUE_BYTES};
use crate::processes::END_TIMEOUT;
use crate::server_secrets::ServerSecrets;
use crate::spec::{HttpServer, Replace, Retry, ServerKind, ServerSpec};
use crate::terminating::{EndPolicy, StartFuture};
use crate::upstream::http::{HttpLimits, HttpTarget, HttpUpstream};
use crate::upstream::http_credentials::HeaderCredentials;
use crate::upstream::{HttpConnection, Upstream};

fn number(id: u32) -> IdValue {
    IdValue::Integer(id.to_string().into())
}

fn request(id: u32, method: &str, padding: usize) -> Outbound {
    let padding = "x".repeat(padding);
    let bytes = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"p":"{padding}"}}}}"#);
    Outbound::request(bytes.into_bytes(), number(id), method, None)
}

fn notification(padding: usize) -> Outbound {
    let bytes = format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"p":"{}"}}}}"#, "x".repeat(padding));
    Outbound::notification(bytes.into_bytes(), "n")
}

/// The replay after an earlier process accepted a handshake.
fn accepted_handshake() -> Replay {
    let mut replay = Replay::new("own-");
    let bytes = request(0, mcp::INITIALIZE, 0).bytes;
    let Ok(Kind::Request { id, method }) = read(&bytes, Strictness::Envelope).map(|envelope| envelope.kind)
    else {
        panic!("not a request")
    };
    replay.record_request(&bytes, &id, &method, None);
    replay.record_response(&id.value(), Outcome::Result, b"", None);
    replay
}

fn spec(url: http::Uri) -> Arc<ServerSpec> {
    let addresses = cofferdam_net::AddressPolicy::PrivateToo;
    Arc::new(ServerSpec {
        name: "remote".parse().unwrap(),
        kind: ServerKind::Http(HttpServer { url, headers: Vec::new(), addresses }),
        rules: Rules::default(),
        call_timeout: Duration::from_secs(60),
        retry: Retry::Never,
        replace: Replace::Hitless,
        reload: None,
        scopes: Vec::new(),
    })
}

fn end_policy() -> EndPolicy {
    EndPolicy {
        tasks: TaskTracker::new(),
        grace: Duration::from_secs(2),
        start_timeout: Duration::from_secs(30),
        drain: Duration::from_secs(300),
        server: "remote".parse().unwrap(),
        link: "l1".into(),
    }
}

fn starting(start: StartFuture) -> Slot {
    let mut slot = Slot::new(SlotKey::BASE, None);
    let spec = spec("http://127.0.0.1/".parse().unwrap());
    slot.processes.current = Some(Generation::starting_with(start, spec, end_policy()));
    slot
}

/// A listener that accepts connections and never reads, and a slot that has just started it as its HTTP server.
async fn silent_server(replay: &mut Replay) -> (TcpListener, Slot) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: http::Uri = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    let addresses = cofferdam_net::AddressPolicy::PrivateToo;
    let upstream = HttpUpstream::new(
        HttpTarget { url: url.clone(), addresses },
        HttpLimits {
            message_bytes: 1024,
            connect_timeout: Duration::from_secs(20),
            requests_in_flight: 1000,
        },
    );
    let secrets = ServerSecrets {
        server: spec(url),
        scope: None,
        specs: Arc::default(),
        limits: cofferdam_secrets::SourceLimits { bytes: 1024, exec_timeout: Duration::from_secs(1) },
        credentials: Arc::new(cofferdam_secrets::credentials::Credentials::new(
            Arc::default(),
            None,
            TaskTracker::new(),
        )),
    };
    let credentials = HeaderCredentials::new(secrets, TaskTracker::new(), &"l-1".into());
    let upstream = Upstream::Http(Box::new(HttpConnection::new(upstream, credentials)));
    let mut slot = starting(Box::pin(ready(Ok(upstream))));
    let slot_event = slot.wait().await;
    assert!(matches!(slot.handle(slot_event, replay), Some((_, Event::Started))));
    (listener, slot)
}

/// Opens a session at each handshake, and answers the next request with 404, as if the session were lost.
async fn lose_every_session(listener: &TcpListener) -> Infallible {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        // A body is one JSON object; a GET has none.
        let is_whole = |request: &[u8]| {
            request.ends_with(b"}") || request.starts_with(b"GET") && request.ends_with(b"\r\n\r\n")
        };
        while !is_whole(&request) {
            assert!(
                stream.read_buf(&mut request).await.unwrap() > 0,
                "the connection was closed before the request was complete"
            );
        }
        let body = String::from_utf8(request).unwrap().split_once("\r\n\r\n").unwrap().1.to_owned();
        let response = match body.contains(r#""method":"initialize""#) {
            true => {
                let id = body.split_once(r#""id":"#).unwrap().1.split_once(',').unwrap().0;
                let body =
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-06-18"}}}}"#);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s1";
                format!("{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
            }
            false => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".into(),
        };
        stream.write_all(response.as_bytes()).await.unwrap();
    }
}

/// Drives the slot until it returns an event for the pipeline.
async fn next_event(slot: &mut Slot, replay: &mut Replay) -> Event {
    loop {
        let slot_event = slot.wait().await;
        if let Some((_, event)) = slot.handle(slot_event, replay) {
            return event;
        }
    }
}

fn send(slot: &mut Slot, message: Outbound) -> SendResult {
    slot.send(Outgoing::Owned(message), WhenNotReady::Return, &Replay::new("own-"))
}

#[tokio::test]
async fn bytes_queued_for_an_http_server_that_does_not_read_are_bounded() {
    let mut replay = Replay::new("own-");
    let (_listener, mut slot) = silent_server(&mut replay).await;
    assert!(matches!(slot.begin_handshake(Some("tools/call"), &mut replay), HandshakeStart::Ready));
    assert!(!slot.processes.is_full());
    // None of the upstream's tasks has run yet, so nothing has been sent.
    let mut sent = 0;
    while let SendResult::Sent { .. } = send(&mut slot, request(sent, "tools/call", 1024 * 1024)) {
        sent += 1;
        assert!(sent < 100);
    }
    assert!(sent >= 2);
    assert!(slot.processes.is_full());
}

#[tokio::test]
async fn notifications_queued_for_a_server_that_does_not_read_are_bounded() {
    let mut replay = Replay::new("own-");
    let (_listener, mut slot) = silent_server(&mut replay).await;
    slot.begin_handshake(Some("tools/call"), &mut replay);
    send(&mut slot, request(1, "tools/call", 2 * QUEUE_BYTES));
    let queued =
        |slot: &Slot| slot.processes.current.as_ref().unwrap().upstream().expect("it runs").queued_bytes();
    let before = queued(&slot);
    for _ in 0..100 {
        send(&mut slot, notification(64 * 1024));
    }
    let sent = queued(&slot) - before;
    assert!((1..=QUEUE_BYTES).contains(&sent), "{sent}");
}

#[tokio::test]
async fn a_message_for_a_process_that_is_starting_is_returned_to_the_caller() {
    let mut slot = starting(Box::pin(pending()));
    for message in [request(1, "tools/call", 0), notification(0)] {
        match send(&mut slot, message.clone()) {
            SendResult::NotReady(returned) => assert_eq!(returned, message),
            other => panic!("{other:?}"),
        }
    }
    let mut empty = Slot::new(SlotKey::BASE, None);
    assert!(matches!(send(&mut empty, notification(0)), SendResult::NoProcess));
}

#[tokio::test]
async fn a_handshake_of_the_harness_is_not_preceded_by_a_replayed_one() {
    for (first, replays) in [(mcp::INITIALIZE, false), ("tools/call", true)] {
        let mut replay = accepted_handshake();
        let (_listener, mut slot) = silent_server(&mut replay).await;
        let opened = slot.begin_handshake(Some(first), &mut replay);
        assert_eq!(matches!(opened, HandshakeStart::Replaying(_)), replays, "{first}: {opened:?}");
        assert_eq!(matches!(opened, HandshakeStart::Ready), !replays, "{first}: {opened:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_answer_the_replayed_handshake_is_ended() {
    let mut replay = accepted_handshake();
    let (_listener, mut slot) = silent_server(&mut replay).await;
    slot.begin_handshake(Some("tools/call"), &mut replay);
    assert!(matches!(send(&mut slot, request(2, "tools/call", 0)), SendResult::NotReady(_)));
    let slot_event = slot.wait().await;
    match slot.handle(slot_event, &mut replay) {
        Some((_, Event::Gone { was: Role::Current, code: Code::ServerUnavailable, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert!(slot.processes.current.as_ref().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_does_not_end_is_not_waited_for_and_not_reported_as_ended() {
    let began = Instant::now();
    assert_eq!(starting(Box::pin(pending())).processes.end(Duration::from_secs(2)).await, Ended::NotYet);
    assert!(began.elapsed() <= END_TIMEOUT);
    assert_eq!(Slot::new(SlotKey::BASE, None).processes.end(Duration::from_secs(2)).await, Ended::All);
}

#[tokio::test]
async fn nothing_is_sent_into_a_session_that_the_server_has_lost() {
    let mut replay = accepted_handshake();
    let (listener, mut slot) = silent_server(&mut replay).await;
    let test = async {
        assert!(matches!(
            slot.begin_handshake(Some("tools/call"), &mut replay),
            HandshakeStart::Replaying(_)
        ));
        assert!(matches!(next_event(&mut slot, &mut replay).await, Event::Ready));
        assert!(matches!(send(&mut slot, request(1, "tools/call", 0)), SendResult::Sent { .. }));
        match next_event(&mut slot, &mut replay).await {
            Event::Returned(message) => assert_eq!(message, request(1, "tools/call", 0)),
            other => panic!("{other:?}"),
        }
        for message in [request(2, "tools/call", 0), notification(0)] {
            assert!(
                matches!(send(&mut slot, message), SendResult::NotReady(_)),
                "no handshake was made since"
            );
        }
        assert!(matches!(
            slot.begin_handshake(Some("tools/call"), &mut replay),
            HandshakeStart::Replaying(_)
        ));
        loop {
            match next_event(&mut slot, &mut replay).await {
                Event::SessionLost => {}
                Event::Ready => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(send(&mut slot, request(1, "tools/call", 0)), SendResult::Sent { .. }));
    };
    tokio::select! {
        never = lose_every_session(&listener) => match never {},
        () = test => {}
    }
}
