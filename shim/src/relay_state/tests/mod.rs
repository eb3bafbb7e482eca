//! Tests of the shim's decisions without sockets; the tests advance the time.

mod links;
mod messages;
mod replays;

use std::time::Duration;

use relay_proto::control::{Goodbye, Hello, Proof, Refusal, ResumeToken, Resumed, Retry, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::delivery::Inbox as PeerInbox;
use relay_proto::frame::{Ack, Frame, FrameView, MaybeRan, More, Origin, Part, PartFlags, PartView};
use relay_proto::limits::DEFAULT_WINDOW;
use relay_proto::notice;

use super::harness_side::{MAX_BACKLOG, MAX_TO_HARNESS};
use super::sidecar_side::Phase;
use super::*;
use crate::lines::Line;

/// A relay state, the bytes it has written, and a sidecar scripted by the test.
struct Fixture {
    state: RelayState,
    start: Instant,
    now: Instant,
    decoder: Decoder,
    /// The sidecar's inbox.
    received: PeerInbox,
    /// The number of frames that the sidecar sent.
    sent: u64,
}

impl Fixture {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            state: RelayState::new(None, Timing::default(), now),
            start: now,
            now,
            decoder: Decoder::new(),
            received: PeerInbox::new(usize::MAX, DEFAULT_WINDOW),
            sent: 0,
        }
    }

    /// A fixture with a fresh link.
    fn up() -> Self {
        let mut fixture = Self::new();
        fixture.connect();
        fixture.welcome(Resumed::Fresh);
        fixture.messages_to_sidecar();
        fixture
    }

    /// The harness sends a line.
    fn harness_sends(&mut self, line: &str) {
        self.state.line(Line::Whole(line.as_bytes()), self.now);
        self.state.sidecar.fill();
    }

    /// The lines that the harness got since the last call.
    fn lines_to_harness(&mut self) -> Vec<String> {
        let text = String::from_utf8(self.state.harness.output.waiting().to_vec()).unwrap();
        self.state.harness.output.clear();
        text.lines().map(str::to_owned).collect()
    }

    fn connect(&mut self) {
        assert!(self.state.should_connect(self.now));
        self.state.sidecar.connecting();
        self.state.sidecar.connected(Proof::Socket, self.now);
        self.decoder = Decoder::new();
        assert!(matches!(self.frames_to_sidecar().as_slice(), [Frame::Hello(_)]));
    }

    fn welcome(&mut self, resumed: Resumed) {
        if resumed == Resumed::Fresh {
            (self.received, self.sent) = (PeerInbox::new(usize::MAX, DEFAULT_WINDOW), 0);
        }
        self.received.resume();
        let welcome = self.welcome_frame(resumed);
        assert_eq!(self.sidecar_sends_frame(Frame::Welcome(welcome)), ConnectionAction::Keep);
    }

    fn welcome_frame(&self, resumed: Resumed) -> Welcome {
        Welcome {
            version: 1,
            session: "s".into(),
            link: "l".into(),
            server: "echo".parse().unwrap(),
            resumed,
            token: ResumeToken("t".into()),
            epoch: None,
            received: self.received.received(),
            window: DEFAULT_WINDOW,
            max_message: MAX_MESSAGE as u64,
            heartbeat_ms: 20_000,
        }
    }

    /// The sidecar sends a frame.
    fn sidecar_sends_frame(&mut self, frame: Frame) -> ConnectionAction {
        self.state.sidecar.bytes_received();
        let view = match &frame {
            Frame::Message(Part { seq, flags, bytes }) => {
                FrameView::Message(PartView { seq: *seq, flags: flags.clone(), bytes })
            }
            frame => FrameView::Control(Box::new(frame.clone())),
        };
        let action = self.state.frame(view, self.now);
        self.state.sidecar.fill();
        action
    }

    /// The sidecar sends a message.
    fn sidecar_sends(&mut self, line: &str) {
        self.sent += 1;
        let part = Part { seq: self.sent, flags: PartFlags::default(), bytes: line.into() };
        assert_eq!(self.sidecar_sends_frame(Frame::Message(part)), ConnectionAction::Keep);
    }

    /// The frames that the shim sent since the last call.
    fn frames_to_sidecar(&mut self) -> Vec<Frame> {
        while !self.state.sidecar.output.is_empty() {
            self.decoder.feed(self.state.sidecar.output.waiting());
            self.state.sidecar.output.clear();
            self.state.sidecar.fill();
        }
        std::iter::from_fn(|| self.decoder.next().unwrap()).collect()
    }

    /// The messages that the sidecar got since the last call.
    fn messages_to_sidecar(&mut self) -> Vec<(String, MaybeRan)> {
        let mut messages = Vec::new();
        for frame in self.frames_to_sidecar() {
            if let Frame::Message(part) = frame {
                messages.extend(self.received.accept(part).unwrap());
            }
        }
        messages
            .into_iter()
            .map(|message| (String::from_utf8(message.bytes).unwrap(), message.maybe_ran))
            .collect()
    }

    fn lose_connection(&mut self) {
        self.state.sidecar.disconnected("the sidecar closed the connection".into(), self.now);
        self.now += Duration::from_secs(2);
    }

    /// Advances the time and does what is due meanwhile; attempts to connect fail.
    fn wait(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while let Some(deadline) = self.state.deadline().filter(|deadline| *deadline <= until) {
            self.now = self.now.max(deadline);
            if self.state.should_connect(self.now) {
                self.state.sidecar.disconnected("connect: connection refused".into(), self.now);
            }
            let _ = self.state.tick(self.now);
        }
        self.now = until;
    }
}

fn request(id: u32, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#)
}

fn result(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// The id and the code of each error that the harness got.
fn errors(lines: &[String]) -> Vec<(String, String)> {
    let error = |line: &String| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let code = value["error"]["data"]["code"].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
        (value["id"].to_string(), code)
    };
    lines.iter().map(error).collect()
}

fn pair(id: &str, code: &str) -> (String, String) {
    (id.into(), code.into())
}

const PLAIN: MaybeRan = MaybeRan::No;

/// The mark of a request that may have run: it was sent with this sequence number on the previous link.
fn sent_as(seq: u64) -> MaybeRan {
    MaybeRan::Yes(Origin { link: "l".into(), seq })
}

impl Fixture {
    /// Connects a while later, and asserts that the sidecar then receives exactly these messages.
    fn connect_and_expect(&mut self, expected: &[(String, MaybeRan)]) {
        self.now += Duration::from_secs(30);
        self.connect();
        self.welcome(Resumed::Fresh);
        assert_eq!(self.messages_to_sidecar(), expected);
    }
}
