//! The shim of the model: frames over a duplex stream, with delivery and resume as in the real shim.

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
    /// Whether the current connection has received its Welcome.
    is_established: bool,
}

/// The content of one frame, as far as the test needs it.
pub(super) enum FrameContent {
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
            is_established: false,
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
        self.is_established = false;
        connection
    }

    pub(super) fn disconnect(&mut self) {
        self.stream = None;
        self.is_established = false;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the current connection has received its Welcome.
    pub(super) fn is_established(&self) -> bool {
        self.is_established
    }

    pub(super) fn has_sent_everything(&self) -> bool {
        self.is_established && self.outbox.handed_out() == self.outbox.last()
    }

    /// Whether the link has acknowledged all messages.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.outbox.is_empty()
    }

    /// The sequence number of the last message that may have reached the link.
    pub(super) fn handed_out(&self) -> u64 {
        self.outbox.handed_out()
    }

    /// The data that resumes the link; none before its first Welcome.
    pub(super) fn resume(&self) -> Option<Resume> {
        let token = self.token.clone()?;
        Some(Resume { link: self.link.to_string(), token, received: self.inbox.received() })
    }

    /// Queues a message and returns its sequence number.
    pub(super) fn push(&mut self, message: &[u8], maybe_ran: MaybeRan) -> u64 {
        self.outbox.push(message, maybe_ran)
    }

    /// Writes all messages that credit allows, and an acknowledgement.
    pub(super) async fn send(&mut self) {
        if !self.is_established {
            return;
        }
        let mut bytes = Vec::new();
        self.outbox.take_ready(&mut bytes);
        if let Some(ack) = self.inbox.take_ack() {
            Frame::Ack(ack).encode(&mut bytes);
        }
        self.write(&bytes).await;
    }

    /// The next frame of the link; none where the connection was closed. Waits for ever without a connection.
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

    pub(super) async fn handle(&mut self, frame: Frame) -> FrameContent {
        match frame {
            Frame::Welcome(welcome) => self.on_welcome(welcome),
            Frame::Message(part) => {
                if let Some(Received { bytes, .. }) = self.inbox.accept(part).expect("a link keeps the order")
                {
                    return FrameContent::Message(bytes);
                }
            }
            Frame::Ack(ack) => self.outbox.acknowledge(ack).expect("a link acknowledges what was sent"),
            Frame::Ping => self.write_frame(&Frame::Pong).await,
            Frame::Goodbye(_) => return FrameContent::Goodbye,
            Frame::Pong => {}
            other => panic!("a link does not send {other:?}"),
        }
        FrameContent::Nothing
    }

    pub(super) async fn ping(&mut self) {
        if self.is_established {
            self.write_frame(&Frame::Ping).await;
        }
    }

    fn on_welcome(&mut self, welcome: Welcome) {
        assert_eq!(*welcome.link, *self.link);
        self.outbox.resume(welcome.received, welcome.window).expect("a link received what was sent");
        self.inbox.resume();
        self.token = Some(welcome.token);
        self.is_established = true;
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
