//! A link in paused time, with its shim's end of each connection in the test's hands.

use relay_proto::control::{ResumeToken, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::frame::{Ack, PREFACE};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::link::command::{Command, EndReason};
use crate::link::{Arrived, Link};
use crate::session::fixture::Fixture;
use crate::session::principal::Principal;

/// One link of a sidecar without anything else.
struct Scene {
    fixture: Fixture,
    commands: mpsc::Sender<Command>,
    _link: JoinHandle<EndReason>,
}

/// The shim's end of a connection.
struct End {
    stream: DuplexStream,
    decoder: Decoder,
}

impl Scene {
    /// A link and its first connection, confirmed.
    async fn new(heartbeat: &str) -> (Self, End, Resume) {
        let fixture = Fixture::new(&format!("heartbeat = \"{heartbeat}\""));
        let context = Arc::clone(&fixture.context);
        let session = Arc::new(Session::new(&context, &Principal::anonymous("dev".parse().unwrap())));
        let (commands, receiver) = mpsc::channel(4);
        let (connection, mut end) = connect();
        let link = Link::new(
            session,
            "l-1".into(),
            "tools".parse().unwrap(),
            Arrived { connection, offer: None },
            receiver,
        );
        let link = context.tasks.spawn(link.run());
        let welcome = end.welcome().await;
        end.confirm().await;
        let resume = Resume { link: "l-1".into(), token: welcome.token, received: 0 };
        (Self { fixture, commands, _link: link }, end, resume)
    }

    /// The same, and a second connection, after which the first one's resume is out of date.
    async fn turned() -> (Self, End, Resume) {
        let (scene, old, first) = Self::new("20s").await;
        drop(old);
        let mut second = scene.come(&first).await;
        second.welcome().await;
        second.send(&Frame::Ping).await;
        assert_eq!(second.next().await, Some(Frame::Pong), "the first token has turned");
        (scene, second, first)
    }

    async fn come(&self, resume: &Resume) -> End {
        let (connection, end) = connect();
        let command = Command::Attach { connection: Box::new(connection), resume: resume.clone() };
        assert!(self.commands.send(command).await.is_ok(), "the link is there");
        end
    }

    fn alerts(&self) -> usize {
        self.fixture.audit().matches("\"event\":\"alert\"").count()
    }
}

impl End {
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
            other => panic!("a Welcome was due, not {other:?}"),
        }
    }

    async fn refusal(&mut self) -> Refusal {
        match self.next().await {
            Some(Frame::Refusal(refusal)) => refusal,
            other => panic!("a Refusal was due, not {other:?}"),
        }
    }
}

fn connect() -> (Connection, End) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let end = End { stream: theirs, decoder: Decoder::new() };
    let mut connection = Connection::new(Box::new(ours));
    // The greeting has read this much before a link gets the connection.
    let mut end = end;
    let sent = end.stream.write_all(PREFACE).now_or_never();
    assert!(matches!(sent, Some(Ok(()))), "there is room");
    assert!(connection.next().now_or_never().is_none());
    (connection, end)
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_answers_keeps_its_link_and_the_newcomer_is_refused() {
    let (scene, mut old, resume) = Scene::new("20s").await;
    let mut newcomer = scene.come(&resume).await;
    assert_eq!(old.next().await, Some(Frame::Ping));
    old.send(&Frame::Pong).await;
    let began = Instant::now();
    assert_eq!(newcomer.refusal().await.code, "clone_refused");
    assert_eq!(newcomer.next().await, None);
    assert_eq!(began.elapsed(), Duration::ZERO, "at once");
    assert_eq!(scene.alerts(), 1);
    old.send(&Frame::Ping).await;
    assert_eq!(old.next().await, Some(Frame::Pong), "the link is still its own");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_answer_is_dropped_and_the_newcomer_has_the_link() {
    for (heartbeat, time) in [("20s", SIGN_OF_LIFE_TIME), ("500ms", Duration::from_millis(500))] {
        let (scene, mut old, resume) = Scene::new(heartbeat).await;
        let began = Instant::now();
        let mut newcomer = scene.come(&resume).await;
        assert_eq!(newcomer.welcome().await.resumed, Resumed::Resumed);
        assert_eq!(began.elapsed(), time);
        newcomer.confirm().await;
        assert_eq!(old.next().await, Some(Frame::Ping));
        assert_eq!(old.next().await, None, "the old one is closed");
        assert_eq!(scene.alerts(), 0);
        newcomer.send(&Frame::Ping).await;
        assert_eq!(newcomer.next().await, Some(Frame::Pong));
    }
}

#[tokio::test(start_paused = true)]
async fn late_bytes_of_a_dead_connection_are_no_sign_of_life() {
    let (scene, mut old, resume) = Scene::new("20s").await;
    let mut newcomer = scene.come(&resume).await;
    // Under way since before the question.
    old.confirm().await;
    assert_eq!(newcomer.welcome().await.resumed, Resumed::Resumed);

    let (scene, mut old, resume) = Scene::new("20s").await;
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert_eq!(old.next().await, Some(Frame::Ping));
    let mut newcomer = scene.come(&resume).await;
    old.send(&Frame::Pong).await;
    assert_eq!(newcomer.welcome().await.resumed, Resumed::Resumed, "that answered an earlier question");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_old_connection_ends_the_wait() {
    let (scene, old, resume) = Scene::new("20s").await;
    let mut newcomer = scene.come(&resume).await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(old);
    assert_eq!(newcomer.welcome().await.resumed, Resumed::Resumed);
    assert_eq!(began.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn the_link_serves_on_while_a_newcomer_waits_and_others_are_sent_away() {
    let (scene, mut old, resume) = Scene::new("20s").await;
    let mut newcomer = scene.come(&resume).await;
    assert_eq!(old.next().await, Some(Frame::Ping));
    let mut third = scene.come(&resume).await;
    let refusal = third.refusal().await;
    assert_eq!((refusal.code.as_str(), refusal.retry), ("relay_unavailable", TRY_AGAIN));
    old.send(&Frame::Ping).await;
    assert_eq!(old.next().await, Some(Frame::Pong), "served meanwhile");
    assert_eq!(newcomer.welcome().await.resumed, Resumed::Resumed);
    assert_eq!(scene.alerts(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_turned_during_the_wait_does_not_count() {
    let (scene, old, first) = Scene::new("20s").await;
    drop(old);
    let mut second = scene.come(&first).await;
    let welcome = second.welcome().await;
    // Not confirmed yet, so the first token is good still; then it is, and then the connection dies.
    let mut clone = scene.come(&first).await;
    assert_eq!(second.next().await, Some(Frame::Ping));
    second.confirm().await;
    drop(second);
    assert_eq!(clone.refusal().await.code, "clone_refused");
    let mut honest = scene.come(&Resume { token: welcome.token, ..first }).await;
    assert_eq!(honest.welcome().await.resumed, Resumed::Resumed);
}

/// The shim gave a connection up, and it arrives when the link has turned already.
#[tokio::test(start_paused = true)]
async fn a_hello_that_comes_late_raises_no_alert_and_a_copy_that_waits_does() {
    let (scene, old, first) = Scene::new("20s").await;
    drop(old);
    let mut second = scene.come(&first).await;
    let welcome = second.welcome().await;
    // The late one finds its token good still, and the link in use.
    let late = scene.come(&first).await;
    assert_eq!(second.next().await, Some(Frame::Ping));
    drop(late);
    second.send(&Frame::Pong).await;
    // The next one's token has turned meanwhile.
    let late = scene.come(&first).await;
    tokio::time::sleep(LEAVING_TIME / 2).await;
    drop(late);
    tokio::time::sleep(LEAVING_TIME).await;
    assert_eq!(scene.alerts(), 0);

    let mut copy = scene.come(&first).await;
    assert_eq!(copy.refusal().await.code, "clone_refused");
    assert_eq!(scene.alerts(), 1);
    let unknown = Resume { token: ResumeToken("0".repeat(64)), ..first };
    let began = Instant::now();
    assert_eq!(scene.come(&unknown).await.refusal().await.code, "clone_refused");
    assert_eq!(began.elapsed(), Duration::ZERO, "a token that was never valid is not a late one");
    assert_eq!(scene.alerts(), 2);
    assert_ne!(welcome.token, unknown.token);
}

/// A copy that comes and leaves, again and again, must not be able to come unnoticed afterwards.
#[tokio::test(start_paused = true)]
async fn those_who_leave_use_up_no_alerts() {
    let (scene, _second, first) = Scene::turned().await;
    for _ in 0..20 {
        drop(scene.come(&first).await);
        tokio::time::sleep(LEAVING_TIME / 10).await;
    }
    tokio::time::sleep(LEAVING_TIME).await;
    assert_eq!(scene.alerts(), 0);
    assert_eq!(scene.come(&first).await.refusal().await.code, "clone_refused");
    assert_eq!(scene.alerts(), 1);
}

#[tokio::test(start_paused = true)]
async fn few_are_given_time_to_leave() {
    let (scene, _second, first) = Scene::turned().await;
    let mut copies = Vec::new();
    for _ in 0..30 {
        copies.push(scene.come(&first).await);
    }
    let began = Instant::now();
    assert_eq!(copies.pop().unwrap().refusal().await.code, "clone_refused");
    assert_eq!(began.elapsed(), Duration::ZERO, "there are too many to wait for");
    assert_eq!(copies[0].refusal().await.code, "clone_refused");
    assert_eq!(began.elapsed(), LEAVING_TIME);
}
