//! A hand-held relay connection, for saying things a shim never would.

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

/// What came next on a connection.
#[derive(Debug)]
pub enum Next {
    /// The sidecar closed it.
    Closed,
    Frame(Box<Frame>),
    /// Nothing in time.
    Silence,
}

impl RawRelay {
    #[track_caller]
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the relay socket takes connections");
        Self { stream, decoder: Decoder::new(), seq: 0 }
    }

    /// Over a stream that leads to the relay already.
    pub fn over(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(), seq: 0 }
    }

    /// Says this Hello, properly; gives the frame that answers it.
    #[track_caller]
    pub fn say(&mut self, hello: Hello) -> Frame {
        self.greet_with(hello);
        match self.next_frame() {
            Next::Frame(frame) => *frame,
            other => panic!("an answer was due, not {other:?}"),
        }
    }

    /// Leaves, without waiting for anything: what was said arrives, and then the end.
    pub fn leave(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Sends bytes; a sidecar that has closed already is fine.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends these bytes again and again, as fast as they are taken, without reading: until so many were, until
    /// nothing is taken for a second, or until the sidecar closes.
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

    /// The proper beginning, taken up to the sidecar's `Welcome`.
    #[track_caller]
    pub fn take_up(&mut self, server: &str) -> Welcome {
        self.greet(server, &[1]);
        match self.next_frame() {
            Next::Frame(frame) => match *frame {
                Frame::Welcome(welcome) => welcome,
                other => panic!("a Welcome was due, not {other:?}"),
            },
            other => panic!("a Welcome was due, not {other:?}"),
        }
    }

    pub fn send_frame(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send(&bytes);
    }

    /// The proper beginning, asking for this server.
    #[track_caller]
    pub fn greet(&mut self, server: &str, versions: &[u16]) {
        self.send(PREFACE);
        self.send_frame(&Frame::Hello(hello(server, versions)));
    }

    /// The same with this Hello.
    pub fn greet_with(&mut self, hello: Hello) {
        self.send(PREFACE);
        self.send_frame(&Frame::Hello(hello));
    }

    /// A link to this server, taken up.
    #[track_caller]
    pub fn welcomed(path: &Path, server: &str) -> Self {
        let mut relay = Self::connect(path);
        relay.take_up(server);
        relay
    }

    /// The code and the sentence with which a new link to this server is refused.
    #[track_caller]
    pub fn refused(path: &Path, server: &str) -> (String, String) {
        let mut relay = Self::connect(path);
        relay.greet(server, &[1]);
        match relay.next_frame() {
            Next::Frame(frame) => match *frame {
                Frame::Refusal(refusal) => (refusal.code, refusal.message),
                other => panic!("not a Refusal: {other:?}"),
            },
            other => panic!("not a Refusal: {other:?}"),
        }
    }

    /// Sends one small message; gives its number on this link.
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

    /// Waits until everything that was handed out is acknowledged; messages that come meanwhile are acknowledged, too.
    #[track_caller]
    pub fn take_acks(&mut self, outbox: &mut Outbox) {
        while !outbox.is_empty() {
            match self.next_frame() {
                Next::Frame(frame) => match *frame {
                    Frame::Ack(ack) => outbox.acknowledge(ack).expect("the sidecar counts right"),
                    Frame::Message(part) => {
                        self.send_frame(&Frame::Ack(Ack { seq: part.seq, window: DEFAULT_WINDOW }));
                    }
                    Frame::Ping => self.send_frame(&Frame::Pong),
                    other => panic!("not due here: {other:?}"),
                },
                other => panic!("an acknowledgement was due, not {other:?}"),
            }
            let mut bytes = Vec::new();
            outbox.take_ready(&mut bytes);
            self.send(&bytes);
        }
    }

    /// The next frame; nothing when the connection was closed instead.
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
                Err(error) => panic!("the sidecar sent what is no frame: {error}"),
            }
            if deadline.is_over() {
                return Next::Silence;
            }
            let _ = self.stream.set_read_timeout(Some(deadline.left().max(Duration::from_millis(1))));
            match self.stream.read(&mut buffer) {
                Ok(0) => return Next::Closed,
                Ok(count) => self.decoder.feed(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Next::Silence,
                Err(_) => return Next::Closed,
            }
        }
    }
}

/// A `Hello` that a shim would say.
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
