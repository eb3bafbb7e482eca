//! Frames from the sidecar: the handshake, messages for the harness, and the end.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use memchr::memchr2;
use relay_proto::code::Code;
use relay_proto::control::{Resumed, Retry, Welcome};
use relay_proto::delivery::DeliveryError;
use relay_proto::envelope::{self, Id, IdValue, Kind, Outcome, Strictness};
use relay_proto::frame::{DecodeError, Frame, FrameView, More, PartView};
use relay_proto::limits::{MAX_LINK_ID, VERSION};
use relay_proto::{json, mcp};
use tokio::time::Instant;

use super::{Connected, Link, Phase, Queued, RelayState, Up, Welcomed};
use crate::answer::Answer;

/// The sidecar broke the protocol: the connection and the link are over.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("it counts frames wrongly: {0}")]
    Delivery(#[from] DeliveryError),
    #[error("it sent a frame where none was due")]
    OutOfPlace,
    #[error("the id of its link has {0} bytes")]
    LinkId(usize),
    #[error("it resumed a link that it was not asked for")]
    Resumed,
    #[error("it chose version {0}, which was not offered")]
    Version(u16),
}

impl RelayState {
    /// Something came in, whatever it was.
    pub(crate) fn heard(&mut self) {
        if let Phase::Up(up) = &mut self.phase {
            up.heard = true;
        }
    }

    /// Takes one frame.
    pub(crate) fn frame(&mut self, frame: FrameView<'_>, now: Instant) -> Connected {
        let result = match (&self.phase, frame) {
            (Phase::Greeting { .. }, FrameView::Control(frame)) => self.greeting(*frame, now),
            (Phase::Greeting { .. }, FrameView::Message(_)) => Err(Broken::OutOfPlace),
            (Phase::Up(_), FrameView::Control(frame)) => self.conversation(*frame, now),
            (Phase::Up(_), FrameView::Message(part)) => self.part(part, now),
            (Phase::Down | Phase::Refused { .. }, _) => Ok(Connected::Close),
        };
        result.unwrap_or_else(|broken| {
            self.disconnected(format!("the sidecar broke the relay protocol: {broken}"), now);
            self.forget_link_and_requeue();
            Connected::Close
        })
    }

    /// The bytes were no frame.
    pub(crate) fn undecodable(&mut self, error: &DecodeError, now: Instant) {
        if let DecodeError::OtherVersion { .. } = error {
            let again = now + self.timing.longest_retry_idle;
            return self.refuse(Answer::version_refused(&error.to_string()), Some(again));
        }
        self.disconnected(error.to_string(), now);
        self.forget_link_and_requeue();
    }

    fn greeting(&mut self, frame: Frame, now: Instant) -> Result<Connected, Broken> {
        match frame {
            Frame::Welcome(welcome) => self.welcome(welcome, now),
            Frame::Refusal(refusal) => Ok(self.refused(&refusal.code, &refusal.message, refusal.retry, now)),
            Frame::Goodbye(goodbye) => Ok(self.refused(&goodbye.code, &goodbye.message, goodbye.retry, now)),
            _ => Err(Broken::OutOfPlace),
        }
    }

    fn part(&mut self, part: PartView<'_>, now: Instant) -> Result<Connected, Broken> {
        self.pacing.succeeded();
        if part.flags.more == More::Follows {
            self.tidy_at = Some(now + self.timing.tidy);
            if !self.inbox.is_midway() {
                self.inbox.lend(self.to_harness.take_spent());
            }
        }
        if let Some(message) = self.inbox.accept_view(part)? {
            self.deliver(message.bytes);
        }
        if let Phase::Up(up) = &mut self.phase
            && up.acknowledge_at.is_none()
        {
            up.acknowledge_at = Some(now + self.timing.acknowledge);
        }
        Ok(Connected::Keep)
    }

    fn conversation(&mut self, frame: Frame, now: Instant) -> Result<Connected, Broken> {
        self.pacing.succeeded();
        match frame {
            Frame::Ack(ack) => {
                self.outbox.acknowledge(ack)?;
                self.send_backlog();
            }
            Frame::Ping => self.say(Frame::Pong),
            Frame::Pong => {}
            Frame::Goodbye(goodbye) => {
                self.ended(&goodbye.code, &goodbye.message, goodbye.retry, now);
                return Ok(Connected::Close);
            }
            Frame::Hello(_)
            | Frame::Message(_)
            | Frame::Refusal(_)
            | Frame::Status(_)
            | Frame::Welcome(_) => {
                return Err(Broken::OutOfPlace);
            }
        }
        Ok(Connected::Keep)
    }

    fn welcome(&mut self, welcome: Welcome, now: Instant) -> Result<Connected, Broken> {
        if welcome.version != VERSION {
            return Err(Broken::Version(welcome.version));
        }
        // It is sent back, in a place with room for no more.
        if !(1..=MAX_LINK_ID).contains(&welcome.link.len()) {
            return Err(Broken::LinkId(welcome.link.len()));
        }
        match welcome.resumed {
            Resumed::Resumed => {
                if self.link.as_ref().is_none_or(|link| link.name != welcome.link) {
                    return Err(Broken::Resumed);
                }
                self.outbox.resume(welcome.received, welcome.window)?;
                self.inbox.resume();
            }
            Resumed::Fresh => {
                self.forget_link_and_requeue();
                self.outbox.restart(welcome.window);
            }
        }
        self.link = Some(Link { name: welcome.link, token: welcome.token });
        self.welcomed = Some(Welcomed { epoch: welcome.epoch });
        self.max_message = usize::try_from(welcome.max_message).unwrap_or(usize::MAX);
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms);
        self.phase = Phase::Up(Up {
            heartbeat: (!heartbeat.is_zero()).then_some(heartbeat),
            next_beat: now + heartbeat,
            heard: true,
            sent: true,
            silent_beats: 0,
            acknowledge_at: None,
        });
        self.confirm();
        self.send_backlog();
        // Straight behind the confirmation, in the same write.
        self.outbox.take_ready(self.to_sidecar.back());
        Ok(Connected::Keep)
    }

    /// The link is over. What was handed out on it is sent again, marked, before what was not; a new server process
    /// is first told what the old one knew (see `introduction`).
    pub(super) fn forget_link_and_requeue(&mut self) {
        let had_link = self.link.is_some();
        self.forget_link();
        if !had_link {
            return;
        }
        // Responses and notifications were for a process that is gone.
        self.backlog.clear();
        self.backlog_bytes = 0;
        let unknown = Answer::outcome_unknown("the link to the sidecar was lost and begun anew");
        for id in self.pending.ids(|_| true) {
            match self.pending.request(&id).and_then(|request| request.bytes.as_ref()) {
                Some(bytes) => {
                    self.backlog_bytes += bytes.len();
                    self.backlog.push_back(Queued::Request(id));
                }
                None => self.answer(&id, &unknown, &unknown),
            }
        }
    }

    /// The sidecar does not take this shim, for now or for good.
    fn refused(&mut self, code: &str, message: &str, retry: Retry, now: Instant) -> Connected {
        let answer = Answer::from_sidecar(code, message);
        match retry {
            Retry::Never => self.refuse(answer, None),
            Retry::AfterMs(pause) => {
                self.disconnected(
                    format!("the sidecar said {}: {}", answer.code.as_str(), answer.sentence),
                    now,
                );
                // Somebody else has the link: it never comes back, however often it is asked for.
                if answer.code == Code::CloneRefused {
                    self.forget_link_and_requeue();
                }
                self.pacing.not_before(now + bounded(pause));
            }
        }
        Connected::Close
    }

    /// The sidecar ends the link. What was handed out may have run.
    fn ended(&mut self, code: &str, message: &str, retry: Retry, now: Instant) {
        let answer = Answer::from_sidecar(code, message);
        self.disconnected(answer.sentence.clone(), now);
        self.forget_link_and_requeue();
        let unknown = Answer::outcome_unknown(&answer.sentence);
        for id in self.pending.ids(|request| request.may_run()) {
            self.answer(&id, &unknown, &unknown);
        }
        match retry {
            Retry::Never => self.refuse(answer, None),
            Retry::AfterMs(pause) => self.pacing.not_before(now + bounded(pause)),
        }
    }

    /// One whole message for the harness. Answers to what is no longer waited for are dropped.
    fn deliver(&mut self, message: Cow<'_, [u8]>) {
        let known = match envelope::read(&message, Strictness::Envelope) {
            Ok(envelope) => match envelope.kind {
                Kind::Response { id: Some(id), outcome } => {
                    self.answered(&id.value(), outcome, &message, envelope.body)
                }
                Kind::Request { id, .. } => {
                    self.server_requests.came(&id);
                    true
                }
                Kind::Notification { method } => {
                    if method == mcp::CANCELLED
                        && let Some(id) = envelope::cancelled_request(&message, envelope.body)
                    {
                        self.server_requests.withdrawn(&id);
                    }
                    true
                }
                Kind::Response { id: None, .. } => true,
            },
            Err(malformed) => {
                if let Some(raw) = malformed.id.as_deref() {
                    let unknown = Answer::outcome_unknown("its answer could not be read");
                    let id = Id { raw, span: 0..0 }.value();
                    match self.memory.is_own(&id) {
                        true => self.own_answer(&id, Outcome::Error, &[], None),
                        false => self.answer(&id, &unknown, &unknown),
                    }
                }
                false
            }
        };
        match (memchr2(b'\n', b'\r', &message), message) {
            _ if !known => {}
            (None, Cow::Borrowed(message)) => self.write_line(message),
            (None, Cow::Owned(message)) => self.to_harness.push_line(message),
            (Some(_), message) => self.write_line(&json::line_safe(&message)),
        }
    }

    /// Whether somebody waits for this answer.
    fn answered(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> bool {
        if self.memory.is_own(id) {
            self.own_answer(id, outcome, message, body);
            return false;
        }
        if !self.pending.answered(id) {
            return false;
        }
        self.memory.answered(id, outcome, message, body);
        true
    }
}

/// A sidecar may ask for patience, not for a year of it.
fn bounded(pause: u64) -> Duration {
    Duration::from_millis(pause.min(60 * 60 * 1000))
}
