//! A link in paused time; the tests control the shim's end of each connection.

use relay_proto::control::{ResumeToken, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::frame::{Ack, PREFACE};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::link::command::{Command, EndReason};
use crate::link::{FirstConnection, Link};
use crate::session::fixture::Fixture;
use crate::session::principal::Principal;

/// One link with its commands, without a registry.
struct TestLink {
    fixture: Fixture,
    commands: mpsc::Sender<Command>,
    _link: JoinHandle<EndReason>,
}

/// The shim's end of a connection.
struct ShimEnd {
    stream: DuplexStream,
    decoder: Decoder,
}

impl TestLink {
    /// A link and its first connection, whose Welcome is confirmed.
    async fn new(heartbeat: &str) -> (Self, ShimEnd, Resume) {
        let fixture = Fixture::new(&format!("heartbeat = \"{heartbeat}\""));
        let context = Arc::clone(&fixture.context);
        let session = Arc::new(Session::new(&context, &Principal::anonymous("dev".parse().unwrap(), None)));
        let (commands, receiver) = mpsc::channel(4);
        let (connection, mut end) = connect();
        let link = Link::new(
            session,
            "l-1".into(),
            "tools".parse().unwrap(),
            FirstConnection { connection, offer: None },
            receiver,
            fixture.link_resources(),
        );
        let link = context.tasks.spawn(link.run());
        let welcome = end.welcome().await;
        end.confirm().await;
        let resume = Resume { link: "l-1".into(), token: welcome.token, received: 0 };
        (Self { fixture, commands, _link: link }, end, resume)
    }

    /// The same, with a second connection whose Welcome is confirmed, so that the first token is outdated.
    async fn with_rotated_token() -> (Self, ShimEnd, Resume) {
        let (link, old, first) = Self::new("20s").await;
        drop(old);
        let mut second = link.attach(&first).await;
        second.welcome().await;
        second.send(&Frame::Ping).await;
        assert_eq!(second.next().await, Some(Frame::Pong), "the first token was rotated");
        (link, second, first)
    }

    async fn attach(&self, resume: &Resume) -> ShimEnd {
        let (connection, end) = connect();
        let command = Command::Attach { connection: Box::new(connection), resume: resume.clone() };
        assert!(self.commands.send(command).await.is_ok(), "the link is running");
        end
    }

    fn alerts(&self) -> usize {
        self.fixture.audit().matches("\"event\":\"alert\"").count()
    }
}

impl ShimEnd {
    async fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn confirm(&mut self) {
        self.send(&Frame::Ack(Ack { seq: 0, window: DEFAULT_WINDOW })).await;
    }

    /// The next frame; none when the connection was closed.
    async fn next(&mut self) -> Option<Frame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.decoder.feed(&buffer[..count]),
            }
        }
    }

    async fn welcome(&mut self) -> Welcome {
        match self.next().await {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("expected a Welcome, got {other:?}"),
        }
    }

    async fn refusal(&mut self) -> Refusal {
        match self.next().await {
            Some(Frame::Refusal(refusal)) => refusal,
            other => panic!("expected a Refusal, got {other:?}"),
        }
    }
}

fn connect() -> (Connection, ShimEnd) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let mut end = ShimEnd { stream: theirs, decoder: Decoder::new() };
    let mut connection = Connection::new(Box::new(ours));
    // The handshake has read the preface before a link gets the connection.
    let sent = end.stream.write_all(PREFACE).now_or_never();
    assert!(matches!(sent, Some(Ok(()))), "there is room");
    assert!(connection.next().now_or_never().is_none());
    (connection, end)
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_answers_keeps_its_link_and_the_second_is_refused() {
    let (link, mut old, resume) = TestLink::new("20s").await;
    let mut second = link.attach(&resume).await;
    assert_eq!(old.next().await, Some(Frame::Ping));
    old.send(&Frame::Pong).await;
    let began = Instant::now();
    assert_eq!(second.refusal().await.code, "clone_refused");
    assert_eq!(second.next().await, None);
    assert_eq!(began.elapsed(), Duration::ZERO, "at once");
    assert_eq!(link.alerts(), 1);
    old.send(&Frame::Ping).await;
    assert_eq!(old.next().await, Some(Frame::Pong), "the first connection still has the link");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_answer_is_dropped_and_the_second_gets_the_link() {
    for (heartbeat, time) in [("20s", PROBE_TIMEOUT), ("500ms", Duration::from_millis(500))] {
        let (link, mut old, resume) = TestLink::new(heartbeat).await;
        let began = Instant::now();
        let mut second = link.attach(&resume).await;
        assert_eq!(second.welcome().await.resumed, Resumed::Resumed);
        assert_eq!(began.elapsed(), time);
        second.confirm().await;
        assert_eq!(old.next().await, Some(Frame::Ping));
        assert_eq!(old.next().await, None, "the old one is closed");
        assert_eq!(link.alerts(), 0);
        second.send(&Frame::Ping).await;
        assert_eq!(second.next().await, Some(Frame::Pong));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_pong_to_the_probe_counts_as_an_answer() {
    let (link, mut old, resume) = TestLink::new("20s").await;
    let mut second = link.attach(&resume).await;
    // Not a Pong: it may have been sent before the Ping arrived.
    old.confirm().await;
    assert_eq!(second.welcome().await.resumed, Resumed::Resumed);

    let (link, mut old, resume) = TestLink::new("20s").await;
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert_eq!(old.next().await, Some(Frame::Ping));
    let mut second = link.attach(&resume).await;
    old.send(&Frame::Pong).await;
    assert_eq!(second.welcome().await.resumed, Resumed::Resumed, "the Pong answered an earlier Ping");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_old_connection_ends_the_probe() {
    let (link, old, resume) = TestLink::new("20s").await;
    let mut second = link.attach(&resume).await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(old);
    assert_eq!(second.welcome().await.resumed, Resumed::Resumed);
    assert_eq!(began.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn the_link_keeps_working_during_a_probe_and_a_third_connection_is_refused() {
    let (link, mut old, resume) = TestLink::new("20s").await;
    let mut second = link.attach(&resume).await;
    assert_eq!(old.next().await, Some(Frame::Ping));
    let mut third = link.attach(&resume).await;
    let refusal = third.refusal().await;
    assert_eq!((refusal.code.as_str(), refusal.retry), ("relay_unavailable", RETRY_AFTER_PROBE));
    old.send(&Frame::Ping).await;
    assert_eq!(old.next().await, Some(Frame::Pong), "the link answers during the probe");
    assert_eq!(second.welcome().await.resumed, Resumed::Resumed);
    assert_eq!(link.alerts(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_rotated_during_the_probe_is_refused() {
    let (link, old, first) = TestLink::new("20s").await;
    drop(old);
    let mut second = link.attach(&first).await;
    let welcome = second.welcome().await;
    // The second token is not confirmed yet, so the first is still valid. Then it is confirmed, and its connection
    // closes.
    let mut clone = link.attach(&first).await;
    assert_eq!(second.next().await, Some(Frame::Ping));
    second.confirm().await;
    drop(second);
    assert_eq!(clone.refusal().await.code, "clone_refused");
    let mut honest = link.attach(&Resume { token: welcome.token, ..first }).await;
    assert_eq!(honest.welcome().await.resumed, Resumed::Resumed);
}

/// The shim abandoned a connection, whose Hello arrives after the token was rotated.
#[tokio::test(start_paused = true)]
async fn a_late_hello_raises_no_alert_and_a_copy_that_waits_does() {
    let (link, old, first) = TestLink::new("20s").await;
    drop(old);
    let mut second = link.attach(&first).await;
    let welcome = second.welcome().await;
    // The token of the late Hello is still valid, and the link is in use.
    let late = link.attach(&first).await;
    assert_eq!(second.next().await, Some(Frame::Ping));
    drop(late);
    second.send(&Frame::Pong).await;
    // The token of the next late Hello was rotated meanwhile.
    let late = link.attach(&first).await;
    tokio::time::sleep(LATE_CLOSE_TIME / 2).await;
    drop(late);
    tokio::time::sleep(LATE_CLOSE_TIME).await;
    assert_eq!(link.alerts(), 0);

    let mut copy = link.attach(&first).await;
    assert_eq!(copy.refusal().await.code, "clone_refused");
    assert_eq!(link.alerts(), 1);
    let unknown = Resume { token: ResumeToken("0".repeat(64)), ..first };
    let began = Instant::now();
    assert_eq!(link.attach(&unknown).await.refusal().await.code, "clone_refused");
    assert_eq!(began.elapsed(), Duration::ZERO, "a token that was never valid is not a late one");
    assert_eq!(link.alerts(), 2);
    assert_ne!(welcome.token, unknown.token);
}

/// A copy that connects and closes repeatedly must not be able to connect without an alert afterwards.
#[tokio::test(start_paused = true)]
async fn connections_that_close_in_time_use_up_no_alerts() {
    let (link, _second, first) = TestLink::with_rotated_token().await;
    for _ in 0..20 {
        drop(link.attach(&first).await);
        tokio::time::sleep(LATE_CLOSE_TIME / 10).await;
    }
    tokio::time::sleep(LATE_CLOSE_TIME).await;
    assert_eq!(link.alerts(), 0);
    assert_eq!(link.attach(&first).await.refusal().await.code, "clone_refused");
    assert_eq!(link.alerts(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_connections_with_time_to_close_is_bounded() {
    let (link, _second, first) = TestLink::with_rotated_token().await;
    let mut copies = Vec::new();
    for _ in 0..30 {
        copies.push(link.attach(&first).await);
    }
    let began = Instant::now();
    assert_eq!(copies.pop().unwrap().refusal().await.code, "clone_refused");
    assert_eq!(began.elapsed(), Duration::ZERO, "too many connections are given time already");
    assert_eq!(copies[0].refusal().await.code, "clone_refused");
    assert_eq!(began.elapsed(), LATE_CLOSE_TIME);
}
