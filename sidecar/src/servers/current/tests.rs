//! The current process in states that are hard to reach from outside: a server that starts for ever, one that never reads.

use std::future::pending;
use std::sync::Arc;

use relay_proto::code::Code;
use relay_proto::envelope::{Kind, Outcome, Strictness, read};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::*;
use crate::config::Limits;
use crate::inject::credentials::Credentials;
use crate::inject::files::FileStore;
use crate::policy::Rules;
use crate::servers::gate::Gate;
use crate::servers::generation::Starting;
use crate::servers::keyring::Keyring;
use crate::servers::leaving::Custody;
use crate::servers::spec::{HttpServer, Replace, Retry, ServerKind, ServerSpec};
use crate::servers::upstream::HttpConnection;
use crate::upstream::http::{HttpLimits, HttpTarget, HttpUpstream};
use crate::upstream::outbound::{QUEUE_BYTES, REFUSED_BYTES};

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

/// A process before this one accepted a handshake.
fn shake_hands(instance: &mut Current) {
    let bytes = request(0, "initialize", 0).bytes;
    let Ok(Kind::Request { id, method }) = read(&bytes, Strictness::Envelope).map(|envelope| envelope.kind)
    else {
        panic!("a request")
    };
    instance.memory.request(&bytes, &id, &method, None);
    instance.memory.answered(&id.value(), Outcome::Result, b"", None);
}

fn no_starter() -> Starter {
    panic!("nothing is started here")
}

fn starter(server: Arc<ServerSpec>) -> Starter {
    let limits = &Limits::default();
    Starter {
        gate: Arc::new(Gate::new(limits.into())),
        secrets: Arc::default(),
        limits: limits.into(),
        server,
        scope: None,
        credentials: Arc::new(Credentials::new(Arc::default(), None, TaskTracker::new())),
        files: FileStore::open().unwrap(),
        tasks: TaskTracker::new(),
        link: "l1".into(),
        script: None,
    }
}

fn custody() -> Custody {
    Custody {
        tasks: TaskTracker::new(),
        grace: Duration::from_secs(2),
        patience: Duration::from_secs(30),
        drain: Duration::from_secs(300),
        server: "remote".parse().unwrap(),
        link: "l1".into(),
    }
}

fn starting(start: Starting) -> Current {
    Current { generation: Generation::starting(start, Some(custody())), ..Current::default() }
}

/// An HTTP server that accepts connections and never reads.
async fn deaf() -> (TcpListener, Upstream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: http::Uri = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    let addresses = crate::net::AddressPolicy::PrivateToo;
    let upstream = HttpUpstream::new(
        HttpTarget { url: url.clone(), addresses },
        HttpLimits {
            message_bytes: 1024,
            connect_timeout: Duration::from_secs(20),
            requests_in_flight: 1000,
        },
    );
    let server = Arc::new(ServerSpec {
        name: "remote".parse().unwrap(),
        kind: ServerKind::Http(HttpServer { url, headers: Vec::new(), addresses }),
        rules: Rules::default(),
        call_timeout: Duration::from_secs(60),
        retry: Retry::Never,
        replace: Replace::Hitless,
        reload: None,
        scopes: Vec::new(),
    });
    let connection = HttpConnection::new(upstream, Keyring::new(starter(server)));
    (listener, Upstream::Http(Box::new(connection)))
}

fn running(upstream: Upstream) -> Current {
    Current { generation: Generation::serving(upstream, custody()), ..Current::default() }
}

#[tokio::test]
async fn bytes_that_wait_for_a_start_pause_the_link_and_are_bounded() {
    let mut instance = starting(Box::pin(pending()));
    let mut taken = 0;
    for id in 0..100 {
        assert_eq!(instance.is_full(), taken > QUEUE_BYTES, "after {taken} bytes");
        let message = request(id, "tools/call", 1024 * 1024);
        let length = message.bytes.len();
        match instance.send(message, no_starter) {
            Ok(()) => taken += length,
            Err(_) => break,
        }
    }
    assert!((REFUSED_BYTES..REFUSED_BYTES + 2 * 1024 * 1024).contains(&taken), "{taken}");
}

#[tokio::test]
async fn what_an_http_server_does_not_take_is_bounded() {
    let (_listener, upstream) = deaf().await;
    let mut instance = running(upstream);
    assert!(!instance.is_full());
    // None of these tasks has run yet, so nothing has left.
    let mut taken = 0;
    while instance.send(request(taken, "tools/call", 1024 * 1024), no_starter).is_ok() {
        taken += 1;
        assert!(taken < 100);
    }
    assert!(taken >= 2);
    assert!(instance.is_full());
}

#[tokio::test]
async fn a_server_that_does_not_read_is_told_a_little_more_and_then_nothing() {
    let (_listener, upstream) = deaf().await;
    let mut instance = running(upstream);
    instance.send(request(1, "tools/call", 2 * QUEUE_BYTES), no_starter).unwrap();
    let queued = |instance: &Current| instance.generation.upstream().expect("it runs").queued_bytes();
    let before = queued(&instance);
    for _ in 0..100 {
        instance.tell(notification(64 * 1024));
    }
    let told = queued(&instance) - before;
    assert!((1..=QUEUE_BYTES).contains(&told), "{told}");
}

#[tokio::test]
async fn a_request_cancelled_in_the_queue_is_known_not_to_have_run() {
    let mut instance = starting(Box::pin(pending()));
    instance.send(request(1, "tools/call", 0), no_starter).unwrap();
    assert_eq!(instance.cancel(&number(1)), CancelledWhile::Queued);
    assert_eq!(instance.cancel(&number(1)), CancelledWhile::UnderWay);
    let (_listener, upstream) = deaf().await;
    let mut instance = running(upstream);
    instance.send(request(1, "tools/call", 0), no_starter).unwrap();
    assert_eq!(instance.cancel(&number(1)), CancelledWhile::UnderWay);
}

#[tokio::test]
async fn a_handshake_of_the_harness_is_not_preceded_by_ours() {
    for (first, replays) in [("initialize", false), ("tools/call", true)] {
        let (_listener, upstream) = deaf().await;
        let mut instance = starting(Box::pin(pending()));
        shake_hands(&mut instance);
        instance.send(request(1, first, 0), no_starter).unwrap();
        instance.send(request(2, "initialize", 0), no_starter).unwrap();
        instance.generation.open(upstream, &mut instance.memory, instance.queue.first_method());
        assert_eq!(instance.generation.is_replaying(), replays, "{first}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_failed_handshake_did_not_run_and_the_rest_is_unknown() {
    let (_listener, upstream) = deaf().await;
    let mut instance = starting(Box::pin(pending()));
    shake_hands(&mut instance);
    instance.send(request(1, "tools/call", 0), no_starter).unwrap();
    instance.generation.open(upstream, &mut instance.memory, instance.queue.first_method());
    match instance.next().await {
        Event::Failed { id, code: Code::ServerUnavailable, .. } => assert_eq!(id, number(1)),
        other => panic!("{other:?}"),
    }
    assert!(instance.send(request(2, "tools/call", 0), no_starter).is_err(), "it is being given up");
    assert!(matches!(instance.next().await, Event::Gone { .. }));
    assert!(instance.is_idle());
}
