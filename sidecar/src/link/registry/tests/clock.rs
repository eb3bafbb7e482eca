//! Real links over in-memory streams in paused time: silent peers, second connections, the grace period.

use relay_proto::control::{Refusal, Resumed, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::frame::{Ack, Frame, PREFACE};
use relay_proto::limits::DEFAULT_WINDOW;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// The shim's end of a connection.
struct TestShim {
    stream: DuplexStream,
    decoder: Decoder,
}

impl TestShim {
    /// Both ends of a connection; the preface of the shim is sent.
    async fn pair() -> (Self, Connection) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let mut shim = Self { stream: near, decoder: Decoder::new() };
        shim.stream.write_all(PREFACE).await.unwrap();
        (shim, Connection::new(Box::new(far)))
    }

    async fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next frame; none when the connection was closed.
    async fn receive(&mut self) -> Option<Frame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut buffer).await.unwrap() {
                0 => return None,
                count => self.decoder.feed(&buffer[..count]),
            }
        }
    }

    async fn welcome(&mut self) -> Welcome {
        match self.receive().await {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("expected a Welcome, got {other:?}"),
        }
    }

    async fn refusal(&mut self) -> Refusal {
        match self.receive().await {
            Some(Frame::Refusal(refusal)) => refusal,
            other => panic!("expected a Refusal, got {other:?}"),
        }
    }
}

impl TestRegistry {
    /// Opens a link; its first Welcome is confirmed.
    async fn open_link(&self) -> (TestShim, Welcome) {
        let (mut shim, connection) = TestShim::pair().await;
        let reserved = self.registry.reserve(&self.context, &anonymous()).unwrap();
        reserved.open(name("tools"), connection, None);
        let welcome = shim.welcome().await;
        shim.send(&ACK).await;
        (shim, welcome)
    }

    /// Opens another connection with the token of that Welcome.
    async fn reconnect(&self, welcome: &Welcome) -> TestShim {
        let (shim, connection) = TestShim::pair().await;
        let resume = Resume { link: welcome.link.clone(), token: welcome.token.clone(), received: 0 };
        assert!(self.registry.resume(&anonymous(), connection, resume).await.is_ok());
        shim
    }
}

const ACK: Frame = Frame::Ack(Ack { seq: 0, window: DEFAULT_WINDOW });

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_answer_loses_its_link_to_the_second() {
    let fixture = TestRegistry::new();
    let (mut old, welcome) = fixture.open_link().await;
    let mut new = fixture.reconnect(&welcome).await;
    assert_eq!(old.receive().await, Some(Frame::Ping));
    // Other bytes than a Pong do not count: they may have been sent before the Ping arrived.
    old.send(&ACK).await;
    old.send(&Frame::Ping).await;
    let resumed = new.welcome().await;
    assert_eq!((resumed.resumed, resumed.link), (Resumed::Resumed, welcome.link));
    assert_eq!(old.receive().await, Some(Frame::Pong));
    assert_eq!(old.receive().await, None, "the old one is closed");
    assert_eq!(fixture.links(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_answers_keeps_its_link() {
    let fixture = TestRegistry::new();
    let (mut old, welcome) = fixture.open_link().await;
    let mut new = fixture.reconnect(&welcome).await;
    assert_eq!(old.receive().await, Some(Frame::Ping));
    old.send(&Frame::Pong).await;
    assert_eq!(new.refusal().await.code, "clone_refused");
    assert!(fixture.audit().contains("in use on another connection"));
    old.send(&Frame::Ping).await;
    assert_eq!(old.receive().await, Some(Frame::Pong), "its link is unchanged");
}

#[tokio::test(start_paused = true)]
async fn one_connection_at_a_time_waits_to_take_over_a_link() {
    let fixture = TestRegistry::new();
    let (mut old, welcome) = fixture.open_link().await;
    let mut first = fixture.reconnect(&welcome).await;
    let mut second = fixture.reconnect(&welcome).await;
    assert_eq!(second.refusal().await.code, "relay_unavailable", "it may retry");
    drop(first.stream);
    let mut third = fixture.reconnect(&welcome).await;
    assert_eq!(third.welcome().await.resumed, Resumed::Resumed, "the first one is gone");
    assert_eq!(old.receive().await, Some(Frame::Ping));
    first = fixture.reconnect(&welcome).await;
    assert_eq!(first.welcome().await.resumed, Resumed::Resumed, "no Welcome was confirmed yet");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_rotated_during_the_wait_is_refused() {
    let fixture = TestRegistry::new();
    let (old, welcome) = fixture.open_link().await;
    drop(old);
    let mut current = fixture.reconnect(&welcome).await;
    current.welcome().await;
    let mut late = fixture.reconnect(&welcome).await;
    current.send(&ACK).await;
    let refusal = late.refusal().await;
    assert!(refusal.message.contains("token"), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_loses_the_connection_and_the_grace_period_ends_the_link_however_far_the_clock_jumps() {
    let fixture = TestRegistry::new();
    let (mut shim, welcome) = fixture.open_link().await;
    let began = Instant::now();
    while shim.receive().await.is_some() {}
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms);
    assert!(began.elapsed() >= heartbeat * 3, "{:?}", began.elapsed());
    assert_eq!(fixture.links(), 1, "the link is kept for the grace period");
    tokio::time::advance(Duration::from_secs(60 * 60 * 24 * 365)).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(END_TIMEOUT).await;
    assert_eq!(fixture.links(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_pings_within_the_limit_stays_connected() {
    let fixture = TestRegistry::new();
    let (mut shim, welcome) = fixture.open_link().await;
    for _ in 0..20 {
        tokio::time::advance(Duration::from_millis(welcome.heartbeat_ms * 2)).await;
        shim.send(&Frame::Ping).await;
        tokio::task::yield_now().await;
    }
    drop(shim.stream.shutdown().await);
    let mut pings = 0;
    while let Some(frame) = shim.receive().await {
        pings += usize::from(frame == Frame::Ping);
    }
    assert!(pings > 0, "the link sends its own Pings");
}
