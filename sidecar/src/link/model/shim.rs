//! The shim of a modelled link: frames over a duplex stream, with delivery and resume as the real shim does them.

use futures_util::FutureExt as _;
use relay_proto::control::{Resume, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::delivery::{Inbox, Outbox, Received};
use relay_proto::frame::{Frame, MaybeRan, PREFACE};
use relay_proto::limits::{DEFAULT_WINDOW, MAX_MESSAGE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::link::connection::Connection;

pub(super) struct Shim {
    pub(super) link: Box<str>,
    stream: Option<DuplexStream>,
    decoder: Decoder,
    outbox: Outbox,
    inbox: Inbox,
    token: Option<relay_proto::control::ResumeToken>,
    is_welcome: bool,
}

/// What one frame brought.
pub(super) enum Heard {
    Goodbye,
    Message(Vec<u8>),
    Nothing,
}

impl Shim {
    /// A shim of a new link, and the link's end of its first connection.
    pub(super) fn new(link: &str) -> (Self, Connection) {
        let mut shim = Self {
            link: link.into(),
            stream: None,
            decoder: Decoder::new(),
            outbox: Outbox::new(DEFAULT_WINDOW),
            inbox: Inbox::new(MAX_MESSAGE, DEFAULT_WINDOW),
            token: None,
            is_welcome: false,
        };
        let connection = shim.connect();
        (shim, connection)
    }

    /// Opens another connection.
    pub(super) fn connect(&mut self) -> Connection {
        let (near, mut far) = tokio::io::duplex(1024 * 1024);
        let sent = far.write_all(PREFACE).now_or_never();
        assert!(matches!(sent, Some(Ok(()))), "an empty duplex has room");
        let mut connection = Connection::new(Box::new(near));
        // The handshake has read the preface before a link gets the connection.
        assert!(connection.next().now_or_never().is_none());
        self.stream = Some(far);
        self.decoder = Decoder::new();
        self.is_welcome = false;
        connection
    }

    pub(super) fn disconnect(&mut self) {
        self.stream = None;
        self.is_welcome = false;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether messages reach the link at once.
    pub(super) fn is_welcome(&self) -> bool {
        self.is_welcome
    }

    pub(super) fn has_sent_everything(&self) -> bool {
        self.is_welcome && self.outbox.handed_out() == self.outbox.last()
    }

    /// Whether the link took everything, and gave credit for it.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.outbox.is_empty()
    }

    /// The sequence number of the last message that may have reached the link.
    pub(super) fn handed_out(&self) -> u64 {
        self.outbox.handed_out()
    }

    /// What resumes the link; none before its first Welcome.
    pub(super) fn resume(&self) -> Option<Resume> {
        let token = self.token.clone()?;
        Some(Resume { link: self.link.to_string(), token, received: self.inbox.received() })
    }

    /// Queues a message and gives its sequence number.
    pub(super) fn push(&mut self, message: &[u8], maybe_ran: MaybeRan) -> u64 {
        self.outbox.push(message, maybe_ran)
    }

    /// Writes what may be written now.
    pub(super) async fn send(&mut self) {
        if !self.is_welcome {
            return;
        }
        let mut bytes = Vec::new();
        self.outbox.take_ready(&mut bytes);
        if let Some(ack) = self.inbox.take_ack() {
            Frame::Ack(ack).encode(&mut bytes);
        }
        self.write(&bytes).await;
    }

    /// The next frame of the link; none where the connection is over. Waits for ever without one.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        let Some(stream) = &mut self.stream else { return std::future::pending().await };
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.next().expect("a link sends only frames") {
                return Some(frame);
            }
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.decoder.feed(&buffer[..count]),
            }
        }
    }

    pub(super) async fn take(&mut self, frame: Frame) -> Heard {
        match frame {
            Frame::Welcome(welcome) => self.welcomed(welcome),
            Frame::Message(part) => {
                if let Some(Received { bytes, .. }) = self.inbox.accept(part).expect("a link keeps the order")
                {
                    return Heard::Message(bytes);
                }
            }
            Frame::Ack(ack) => self.outbox.acknowledge(ack).expect("a link acknowledges what was sent"),
            Frame::Ping => self.write_frame(&Frame::Pong).await,
            Frame::Goodbye(_) => return Heard::Goodbye,
            Frame::Pong => {}
            other => panic!("a link does not send {other:?}"),
        }
        Heard::Nothing
    }

    pub(super) async fn ping(&mut self) {
        if self.is_welcome {
            self.write_frame(&Frame::Ping).await;
        }
    }

    fn welcomed(&mut self, welcome: Welcome) {
        assert_eq!(*welcome.link, *self.link);
        self.outbox.resume(welcome.received, welcome.window).expect("a link received what was sent");
        self.inbox.resume();
        self.token = Some(welcome.token);
        self.is_welcome = true;
    }

    async fn write_frame(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.write(&bytes).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        if let Some(stream) = &mut self.stream {
            // The link may have closed the connection, which `next` reports.
            let _ = stream.write_all(bytes).await;
        }
    }
}
