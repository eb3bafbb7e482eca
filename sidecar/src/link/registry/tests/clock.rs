//! Real links on pipes, with a clock that the test moves: silence, newcomers, grace.

use relay_proto::control::{Refusal, Resumed, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::frame::{Ack, Frame, PREFACE};
use relay_proto::limits::DEFAULT_WINDOW;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// A shim's end of a connection, said by hand.
struct Peer {
    stream: DuplexStream,
    decoder: Decoder,
}

impl Peer {
    /// One end for the peer, the other for the link; both greeted.
    async fn pair() -> (Self, Connection) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let mut peer = Self { stream: near, decoder: Decoder::new() };
        peer.stream.write_all(PREFACE).await.unwrap();
        (peer, Connection::new(Box::new(far)))
    }

    async fn say(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next frame; nothing at the end.
    async fn hear(&mut self) -> Option<Frame> {
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
        match self.hear().await {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("a Welcome was due, not {other:?}"),
        }
    }

    async fn refusal(&mut self) -> Refusal {
        match self.hear().await {
            Some(Frame::Refusal(refusal)) => refusal,
            other => panic!("a Refusal was due, not {other:?}"),
        }
    }
}

impl Place {
    /// A link and its first connection, confirmed.
    async fn linked(&self) -> (Peer, Welcome) {
        let (mut peer, connection) = Peer::pair().await;
        let reserved = self.registry.reserve(&self.context, &anybody()).unwrap();
        reserved.open(name("tools"), connection, None);
        let welcome = peer.welcome().await;
        peer.say(&ACK).await;
        (peer, welcome)
    }

    /// Another client with the token of that Welcome.
    async fn newcomer(&self, welcome: &Welcome) -> Peer {
        let (peer, connection) = Peer::pair().await;
        let resume = Resume { link: welcome.link.clone(), token: welcome.token.clone(), received: 0 };
        assert!(self.registry.resume(&anybody(), connection, resume).await.is_ok());
        peer
    }
}

const ACK: Frame = Frame::Ack(Ack { seq: 0, window: DEFAULT_WINDOW });

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_answer_gives_its_link_up_to_the_newcomer() {
    let place = Place::new();
    let (mut old, welcome) = place.linked().await;
    let mut new = place.newcomer(&welcome).await;
    assert_eq!(old.hear().await, Some(Frame::Ping));
    // Bytes that were under way for long are no answer.
    old.say(&ACK).await;
    old.say(&Frame::Ping).await;
    let taken_up = new.welcome().await;
    assert_eq!((taken_up.resumed, taken_up.link), (Resumed::Resumed, welcome.link));
    assert_eq!(old.hear().await, Some(Frame::Pong));
    assert_eq!(old.hear().await, None, "the old one is closed");
    assert_eq!(place.links(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_answers_keeps_its_link() {
    let place = Place::new();
    let (mut old, welcome) = place.linked().await;
    let mut new = place.newcomer(&welcome).await;
    assert_eq!(old.hear().await, Some(Frame::Ping));
    old.say(&Frame::Pong).await;
    assert_eq!(new.refusal().await.code, "clone_refused");
    assert!(place.audit().contains("in use on another connection"));
    old.say(&Frame::Ping).await;
    assert_eq!(old.hear().await, Some(Frame::Pong), "nothing happened to it");
}

#[tokio::test(start_paused = true)]
async fn newcomers_wait_one_at_a_time() {
    let place = Place::new();
    let (mut old, welcome) = place.linked().await;
    let mut first = place.newcomer(&welcome).await;
    let mut second = place.newcomer(&welcome).await;
    assert_eq!(second.refusal().await.code, "relay_unavailable", "it may come again");
    drop(first.stream);
    let mut third = place.newcomer(&welcome).await;
    assert_eq!(third.welcome().await.resumed, Resumed::Resumed, "the first one is gone");
    assert_eq!(old.hear().await, Some(Frame::Ping));
    first = place.newcomer(&welcome).await;
    assert_eq!(first.welcome().await.resumed, Resumed::Resumed, "no Welcome was confirmed yet");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_turned_while_its_holder_waited_is_no_good() {
    let place = Place::new();
    let (old, welcome) = place.linked().await;
    drop(old);
    let mut current = place.newcomer(&welcome).await;
    current.welcome().await;
    let mut late = place.newcomer(&welcome).await;
    current.say(&ACK).await;
    let refusal = late.refusal().await;
    assert!(refusal.message.contains("token"), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_loses_the_connection_and_grace_ends_the_link_however_far_the_clock_jumps() {
    let place = Place::new();
    let (mut peer, welcome) = place.linked().await;
    let began = Instant::now();
    while peer.hear().await.is_some() {}
    let heartbeat = Duration::from_millis(welcome.heartbeat_ms);
    assert!(began.elapsed() >= heartbeat * 3, "{:?}", began.elapsed());
    assert_eq!(place.links(), 1, "it is kept for its grace");
    tokio::time::advance(Duration::from_secs(60 * 60 * 24 * 365)).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(END_TIME).await;
    assert_eq!(place.links(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_speaks_now_and_then_is_never_silent() {
    let place = Place::new();
    let (mut peer, welcome) = place.linked().await;
    for _ in 0..20 {
        tokio::time::advance(Duration::from_millis(welcome.heartbeat_ms * 2)).await;
        peer.say(&Frame::Ping).await;
        tokio::task::yield_now().await;
    }
    drop(peer.stream.shutdown().await);
    let mut pings = 0;
    while let Some(frame) = peer.hear().await {
        pings += usize::from(frame == Frame::Ping);
    }
    assert!(pings > 0, "and it was asked itself");
}
