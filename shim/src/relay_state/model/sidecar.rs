//! A simulated sidecar: decides on requests, runs them, responds, and loses its links as a real sidecar does, but without a
//! server.

use std::collections::{BTreeMap, HashSet, VecDeque};

use relay_proto::code::{self, Code};
use relay_proto::control::{Goodbye, Refusal, ResumeToken, Resumed, Retry, Welcome};
use relay_proto::delivery::{Inbox, Outbox, Received};
use relay_proto::envelope::{self, IdValue, Kind, Strictness};
use relay_proto::frame::{Frame, MaybeRan};
use relay_proto::limits::{DEFAULT_WINDOW, MAX_MESSAGE, VERSION};

use super::Wire;

pub(super) struct Sidecar {
    /// How many links there were so far.
    pub(super) links: u32,
    pub(super) link: Option<Box<str>>,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    /// Requests without a response.
    pub(super) running: VecDeque<u32>,
    /// How often each request ran.
    pub(super) ran: BTreeMap<u32, usize>,
    /// The link and sequence number of each request that was decided.
    pub(super) decided: HashSet<(Box<str>, u64)>,
    /// If set, the next Hello is refused with this.
    pub(super) refusal: Option<Refusal>,
    pub(super) honesty: Honesty,
}

/// Whether the sidecar may violate the protocol.
#[derive(Eq, PartialEq)]
pub(super) enum Honesty {
    Honest,
    Hostile,
}

impl Sidecar {
    pub(super) fn new(honesty: Honesty) -> Self {
        Self {
            links: 0,
            link: None,
            inbox: Inbox::new(MAX_MESSAGE, DEFAULT_WINDOW),
            outbox: Outbox::new(DEFAULT_WINDOW),
            running: VecDeque::new(),
            ran: BTreeMap::new(),
            decided: HashSet::new(),
            refusal: None,
            honesty,
        }
    }

    /// Loses its link and the running calls. Its decisions stay, as in the audit.
    pub(super) fn restart(&mut self) {
        self.link = None;
        self.running.clear();
    }

    /// Refuses the next Hello, or ends the link.
    pub(super) fn refuse_or_end(&mut self, amount: u8, wire: Option<&mut Wire>) {
        let retry = Retry::AfterMs(u64::from(amount) * 20);
        if amount.is_multiple_of(2) {
            let code = if amount.is_multiple_of(4) { "clone_refused" } else { "relay_unavailable" };
            self.refusal =
                Some(Refusal { code: code.into(), message: "refused by the simulation".into(), retry });
        } else if let Some(wire) = wire
            && self.link.is_some()
        {
            let goodbye =
                Goodbye { code: "session_ended".into(), message: "refused by the simulation".into(), retry };
            self.send(&Frame::Goodbye(goodbye), &mut wire.to_shim);
            self.restart();
        }
    }

    /// Responds to the oldest running call. Some responses are sent twice.
    pub(super) fn respond(&mut self) {
        if let Some(number) = self.running.pop_front() {
            let response = format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{{}}}}"#);
            for _ in 0..1 + number % 2 {
                self.outbox.push(response.as_bytes(), MaybeRan::No);
            }
        }
    }

    pub(super) fn send_ready(&mut self, to_shim: &mut VecDeque<u8>) {
        if self.link.is_some() {
            let mut bytes = Vec::new();
            self.outbox.take_ready(&mut bytes);
            to_shim.extend(bytes);
            if let Some(ack) = self.inbox.take_ack() {
                self.send(&Frame::Ack(ack), to_shim);
            }
        }
    }

    pub(super) fn handle_frame(&mut self, frame: Frame, to_shim: &mut VecDeque<u8>) {
        match (frame, self.link.clone()) {
            (Frame::Hello(hello), _) => {
                if let Some(refusal) = self.refusal.take() {
                    return self.send(&Frame::Refusal(refusal), to_shim);
                }
                let resumed = hello.resume.is_some_and(|resume| {
                    self.link.as_deref() == Some(&resume.link)
                        && self.outbox.resume(resume.received, DEFAULT_WINDOW).is_ok()
                });
                self.welcome(if resumed { Resumed::Resumed } else { Resumed::Fresh }, to_shim);
            }
            (Frame::Message(part), Some(link)) => {
                // An error is ignored: random bytes may have acknowledged frames that were never sent, so that the shim
                // opened a new link.
                if let Ok(Some(message)) = self.inbox.accept(part) {
                    self.message(message, link);
                }
            }
            (Frame::Ack(ack), Some(_)) => {
                let is_valid = self.outbox.acknowledge(ack).is_ok();
                assert!(
                    is_valid || self.honesty == Honesty::Hostile,
                    "a shim acknowledges only what it received"
                );
            }
            (Frame::Ping, Some(_)) => self.send(&Frame::Pong, to_shim),
            _ => {}
        }
    }

    fn welcome(&mut self, resumed: Resumed, to_shim: &mut VecDeque<u8>) {
        match resumed {
            Resumed::Resumed => self.inbox.resume(),
            Resumed::Fresh => {
                self.restart();
                self.links += 1;
                self.link = Some(format!("l{}", self.links).into());
                self.inbox.restart();
                self.outbox.restart(DEFAULT_WINDOW);
            }
        }
        let welcome = Welcome {
            version: VERSION,
            session: "s".into(),
            link: self.link.as_deref().unwrap_or_default().into(),
            server: "tools".parse().expect("a name"),
            resumed,
            token: ResumeToken("t".into()),
            epoch: None,
            received: self.inbox.received(),
            window: DEFAULT_WINDOW,
            max_message: MAX_MESSAGE as u64,
            heartbeat_ms: 20_000,
        };
        self.send(&Frame::Welcome(welcome), to_shim);
    }

    fn message(&mut self, message: Received, link: Box<str>) {
        let Ok(envelope) = envelope::read(&message.bytes, Strictness::Envelope) else {
            panic!("a shim forwards only messages")
        };
        let Kind::Request { id, .. } = envelope.kind else { return };
        let IdValue::Integer(number) = id.value() else { panic!("the harness uses numbers") };
        let number: u32 = number.parse().expect("the harness uses numbers");
        if let MaybeRan::Yes(origin) = message.maybe_ran
            && self.decided.contains(&(origin.link, origin.seq))
        {
            let response = code::error_response(Some(id.raw), Code::OutcomeUnknown, "it may have run");
            self.outbox.push(&response, MaybeRan::No);
            return;
        }
        self.decided.insert((link, message.seq));
        *self.ran.entry(number).or_default() += 1;
        self.running.push_back(number);
    }

    fn send(&self, frame: &Frame, to_shim: &mut VecDeque<u8>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        to_shim.extend(bytes);
    }
}
