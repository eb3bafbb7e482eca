//! A relay connection that a test drives, for frames that a shim never sends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use relay_proto::control::{Hello, Proof, Purpose, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::delivery::Outbox;
use relay_proto::frame::{Ack, Frame, MaybeRan, More, PREFACE, Part, PartFlags};
use relay_proto::limits::DEFAULT_WINDOW;
use serde_json::Value;

use crate::deadline::{Deadline, PATIENCE};

/// One connection to a relay socket.
#[derive(Debug)]
pub struct RawRelay {
    stream: UnixStream,
    decoder: Decoder,
    seq: u64,
}

/// The result of waiting for the next frame.
#[derive(Debug)]
pub enum Next {
    /// The sidecar closed the connection.
    Closed,
    Frame(Box<Frame>),
    /// Nothing arrived in time.
    TimedOut,
}

impl RawRelay {
    #[track_caller]
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the relay socket accepts connections");
        Self { stream, decoder: Decoder::new(), seq: 0 }
    }

    /// Uses a stream that is already connected to the relay.
    pub fn over(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(), seq: 0 }
    }

    /// Sends the preface and this `Hello`; returns the frame that answers it.
    #[track_caller]
    pub fn open_with(&mut self, hello: Hello) -> Frame {
        self.send_this_hello(hello);
        match self.next_frame() {
            Next::Frame(frame) => *frame,
            other => panic!("expected a response to the Hello, not {other:?}"),
        }
    }

    /// Closes the sending side: the sidecar receives everything that was sent, then the end of the stream.
    pub fn close_sending(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Sends bytes; ignores errors, because the sidecar may have closed the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends bytes from `next` without reading, until `total` bytes are sent, a write blocks for a second, or the
    /// sidecar closes.
    pub fn flood(&mut self, mut next: impl FnMut() -> Vec<u8>, total: usize) -> usize {
        let _ = self.stream.set_write_timeout(Some(Duration::from_secs(1)));
        let mut sent = 0;
        while sent < total {
            let bytes = next();
            if self.stream.write_all(&bytes).is_err() {
                break;
            }
            sent += bytes.len();
        }
        sent
    }

    /// Sends a `Hello` for this server and waits for the `Welcome`.
    #[track_caller]
    pub fn await_welcome(&mut self, server: &str) -> Welcome {
        self.send_hello(server, &[1]);
        match self.next_frame() {
            Next::Frame(frame) => match *frame {
                Frame::Welcome(welcome) => welcome,
                other => panic!("expected a Welcome, not {other:?}"),
            },
            other => panic!("expected a Welcome, not {other:?}"),
        }
    }

    pub fn send_frame(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send(&bytes);
    }

    /// Sends the preface and a `Hello` for this server.
    #[track_caller]
    pub fn send_hello(&mut self, server: &str, versions: &[u16]) {
        self.send(PREFACE);
        self.send_frame(&Frame::Hello(hello(server, versions)));
    }

    /// Sends the preface and this `Hello`.
    pub fn send_this_hello(&mut self, hello: Hello) {
        self.send(PREFACE);
        self.send_frame(&Frame::Hello(hello));
    }

    /// Connects, sends a `Hello` for this server and receives the `Welcome`.
    #[track_caller]
    pub fn welcomed(path: &Path, server: &str) -> Self {
        let mut relay = Self::connect(path);
        relay.await_welcome(server);
        relay
    }

    /// Connects and sends a `Hello` for this server, which must be refused; returns the code and the message.
    #[track_caller]
    pub fn refused(path: &Path, server: &str) -> (String, String) {
        let mut relay = Self::connect(path);
        relay.send_hello(server, &[1]);
        match relay.next_frame() {
            Next::Frame(frame) => match *frame {
                Frame::Refusal(refusal) => (refusal.code, refusal.message),
                other => panic!("not a Refusal: {other:?}"),
            },
            other => panic!("not a Refusal: {other:?}"),
        }
    }

    /// Sends one small message; returns its number on this link.
    pub fn send_message(&mut self, message: &[u8], maybe_ran: MaybeRan) -> u64 {
        self.seq += 1;
        let flags = PartFlags { more: More::Last, maybe_ran };
        self.send_frame(&Frame::Message(Part { seq: self.seq, flags, bytes: message.to_vec() }));
        self.seq
    }

    /// The next small message.
    #[track_caller]
    pub fn next_message(&mut self) -> Value {
        loop {
            match self.next_frame() {
                Next::Frame(frame) => match *frame {
                    Frame::Message(part) => {
                        return serde_json::from_slice(&part.bytes).expect("a message is JSON");
                    }
                    Frame::Ack(_) | Frame::Ping | Frame::Pong => {}
                    other => panic!("not a message: {other:?}"),
                },
                other => panic!("not a message: {other:?}"),
            }
        }
    }

    /// Waits until every frame of the outbox is acknowledged, and acknowledges the messages that arrive meanwhile.
    #[track_caller]
    pub fn take_acks(&mut self, outbox: &mut Outbox) {
        while !outbox.is_empty() {
            match self.next_frame() {
                Next::Frame(frame) => match *frame {
                    Frame::Ack(ack) => outbox.acknowledge(ack).expect("the acknowledgement is valid"),
                    Frame::Message(part) => {
                        self.send_frame(&Frame::Ack(Ack { seq: part.seq, window: DEFAULT_WINDOW }));
                    }
                    Frame::Ping => self.send_frame(&Frame::Pong),
                    other => panic!("unexpected frame: {other:?}"),
                },
                other => panic!("expected an acknowledgement, not {other:?}"),
            }
            let mut bytes = Vec::new();
            outbox.take_ready(&mut bytes);
            self.send(&bytes);
        }
    }

    /// The next frame, the end of the connection, or a timeout.
    pub fn next_frame(&mut self) -> Next {
        self.next_within(PATIENCE)
    }

    pub fn next_within(&mut self, time: Duration) -> Next {
        let deadline = Deadline::after(time);
        let mut buffer = vec![0; 16 * 1024];
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => return Next::Frame(Box::new(frame)),
                Ok(None) => {}
                Err(error) => panic!("the sidecar sent an invalid frame: {error}"),
            }
            if deadline.is_over() {
                return Next::TimedOut;
            }
            let _ = self.stream.set_read_timeout(Some(deadline.left().max(Duration::from_millis(1))));
            match self.stream.read(&mut buffer) {
                Ok(0) => return Next::Closed,
                Ok(count) => self.decoder.feed(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Next::TimedOut,
                Err(_) => return Next::Closed,
            }
        }
    }
}

/// A `Hello` as a shim sends it.
#[track_caller]
pub fn hello(server: &str, versions: &[u16]) -> Hello {
    Hello {
        versions: versions.to_vec(),
        proof: Proof::Socket,
        purpose: Purpose::Link,
        server: Some(server.parse().expect("a valid server name")),
        resume: None,
        capabilities: Vec::new(),
        software: "tests".to_owned(),
    }
}
