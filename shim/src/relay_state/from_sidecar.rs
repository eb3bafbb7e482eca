//! Handles frames from the sidecar: the handshake, messages for the harness, and the end of the link.

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

use super::RelayState;
use super::sidecar_side::{ConnectionAction, Link, Phase, Up, Welcomed};
use crate::pending::Request;
use crate::shim_error::{ShimError, describe_version_difference};

/// The sidecar broke the protocol: the connection and the link are over.
#[derive(Debug, thiserror::Error)]
enum ProtocolViolation {
    #[error("its frame numbers or acknowledgements are wrong: {0}")]
    Delivery(#[from] DeliveryError),
    #[error("it sent an unexpected frame")]
    UnexpectedFrame,
    #[error("the id of its link has {0} bytes")]
    InvalidLinkId(usize),
    #[error("it resumed a link that the shim did not ask for")]
    UnrequestedResume,
    #[error("it chose version {0}, which was not offered")]
    UnofferedVersion(u16),
}

impl RelayState {
    /// Handles one frame.
    pub(crate) fn frame(&mut self, frame: FrameView<'_>, now: Instant) -> ConnectionAction {
        let result = match (&self.sidecar.phase, frame) {
            (Phase::AwaitingWelcome { .. }, FrameView::Control(frame)) => self.before_welcome(*frame, now),
            (Phase::AwaitingWelcome { .. }, FrameView::Message(_)) => Err(ProtocolViolation::UnexpectedFrame),
            (Phase::Up(_), FrameView::Control(frame)) => self.control(*frame, now),
            (Phase::Up(_), FrameView::Message(part)) => self.part(part, now),
            (Phase::Down | Phase::Refused { .. }, _) => Ok(ConnectionAction::Close),
        };
        result.unwrap_or_else(|violation| {
            self.sidecar.disconnected(format!("the sidecar broke the relay protocol: {violation}"), now);
            self.restart_link();
            ConnectionAction::Close
        })
    }

    /// Handles bytes that are not a frame.
    pub(crate) fn undecodable(&mut self, error: &DecodeError, now: Instant) {
        if let DecodeError::OtherVersion { ours, theirs } = error {
            let again = now + self.sidecar.timing.longest_retry_idle;
            let why = describe_version_difference(*ours, *theirs);
            return self.refuse(ShimError::version_refused(&why), Some(again));
        }
        self.sidecar.disconnected(error.to_string(), now);
        self.restart_link();
    }

    fn before_welcome(&mut self, frame: Frame, now: Instant) -> Result<ConnectionAction, ProtocolViolation> {
        match frame {
            Frame::Welcome(welcome) => self.welcome(welcome, now),
            Frame::Refusal(refusal) => Ok(self.refused(&refusal.code, &refusal.message, refusal.retry, now)),
            Frame::Goodbye(goodbye) => Ok(self.refused(&goodbye.code, &goodbye.message, goodbye.retry, now)),
            _ => Err(ProtocolViolation::UnexpectedFrame),
        }
    }

    fn part(&mut self, part: PartView<'_>, now: Instant) -> Result<ConnectionAction, ProtocolViolation> {
        self.sidecar.backoff.succeeded();
        if part.flags.more == More::Follows {
            self.free_spare_at = Some(now + self.sidecar.timing.keep_spare_buffer);
            if !self.sidecar.inbox.has_partial_message() {
                self.sidecar.inbox.lend(self.harness.output.take_spare());
            }
        }
        if let Some(message) = self.sidecar.inbox.accept_view(part)? {
            self.deliver(message.bytes);
        }
        if let Phase::Up(up) = &mut self.sidecar.phase
            && up.acknowledge_at.is_none()
        {
            up.acknowledge_at = Some(now + self.sidecar.timing.acknowledge_delay);
        }
        Ok(ConnectionAction::Keep)
    }

    fn control(&mut self, frame: Frame, now: Instant) -> Result<ConnectionAction, ProtocolViolation> {
        self.sidecar.backoff.succeeded();
        match frame {
            Frame::Ack(ack) => {
                self.sidecar.outbox.acknowledge(ack)?;
                self.send_backlog();
            }
            Frame::Ping => self.sidecar.send_control(Frame::Pong),
            Frame::Pong => {}
            Frame::Goodbye(goodbye) => {
                self.ended(&goodbye.code, &goodbye.message, goodbye.retry, now);
                return Ok(ConnectionAction::Close);
            }
            Frame::Hello(_)
            | Frame::Message(_)
            | Frame::Refusal(_)
            | Frame::Status(_)
            | Frame::Welcome(_) => {
                return Err(ProtocolViolation::UnexpectedFrame);
            }
        }
        Ok(ConnectionAction::Keep)
    }

    fn welcome(&mut self, welcome: Welcome, now: Instant) -> Result<ConnectionAction, ProtocolViolation> {
        if welcome.version != VERSION {
            return Err(ProtocolViolation::UnofferedVersion(welcome.version));
        }
        // The id is sent back with requests that may have run, in a field of this size.
        if !(1..=MAX_LINK_ID).contains(&welcome.link.len()) {
            return Err(ProtocolViolation::InvalidLinkId(welcome.link.len()));
        }
        match welcome.resumed {
            Resumed::Resumed => {
                if self.sidecar.link.as_ref().is_none_or(|link| link.name != welcome.link) {
                    return Err(ProtocolViolation::UnrequestedResume);
                }
                self.sidecar.outbox.resume(welcome.received, welcome.window)?;
                self.sidecar.inbox.resume();
            }
            Resumed::Fresh => {
                self.restart_link();
                self.sidecar.outbox.restart(welcome.window);
            }
        }
        self.sidecar.link = Some(Link { name: welcome.link, token: welcome.token });
        self.sidecar.welcomed = Some(Welcomed { epoch: welcome.epoch });
        self.max_message = usize::try_from(welcome.max_message).unwrap_or(usize::MAX);
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms);
        self.sidecar.phase = Phase::Up(Up {
            heartbeat: (!heartbeat.is_zero()).then_some(heartbeat),
            next_beat: now + heartbeat,
            received: true,
            sent: true,
            silent_beats: 0,
            acknowledge_at: None,
        });
        self.sidecar.confirm();
        self.send_backlog();
        // In the same write as the confirmation.
        self.sidecar.outbox.take_ready(self.sidecar.output.back());
        Ok(ConnectionAction::Keep)
    }

    /// The sidecar refused this shim, for now or for good.
    fn refused(&mut self, code: &str, message: &str, retry: Retry, now: Instant) -> ConnectionAction {
        let error = ShimError::from_sidecar(code, message);
        match retry {
            Retry::Never => self.refuse(error, None),
            Retry::AfterMs(pause) => {
                self.sidecar.disconnected(
                    format!("the sidecar refused with {}: {}", error.code.as_str(), error.sentence),
                    now,
                );
                // Another shim has the link: asking for it again cannot succeed.
                if error.code == Code::CloneRefused {
                    self.restart_link();
                }
                self.sidecar.backoff.not_before(now + bounded_pause(pause));
            }
        }
        ConnectionAction::Close
    }

    /// The sidecar ended the link. Requests that were handed out may have run.
    fn ended(&mut self, code: &str, message: &str, retry: Retry, now: Instant) {
        let error = ShimError::from_sidecar(code, message);
        self.sidecar.disconnected(error.sentence.clone(), now);
        self.restart_link();
        self.harness.respond_to_matching(&error, Request::may_run);
        match retry {
            Retry::Never => self.refuse(error, None),
            Retry::AfterMs(pause) => self.sidecar.backoff.not_before(now + bounded_pause(pause)),
        }
    }

    /// Writes one whole message to the harness. A response that the harness no longer waits for is dropped.
    fn deliver(&mut self, message: Cow<'_, [u8]>) {
        let is_wanted = match envelope::read(&message, Strictness::Envelope) {
            Ok(envelope) => match envelope.kind {
                Kind::Response { id: Some(id), outcome } => {
                    self.handle_response(&id.value(), outcome, &message, envelope.body)
                }
                Kind::Request { id, .. } => {
                    self.harness.server_requests.insert(&id);
                    true
                }
                Kind::Notification { method } => {
                    if method == mcp::CANCELLED
                        && let Some(id) = envelope::cancelled_request(&message, envelope.body)
                    {
                        self.harness.server_requests.remove(&id);
                    }
                    true
                }
                Kind::Response { id: None, .. } => true,
            },
            Err(malformed) => {
                if let Some(raw) = malformed.id.as_deref() {
                    let unknown = ShimError::outcome_unknown("its response could not be read");
                    let id = Id { raw, span: 0..0 }.value();
                    match self.harness.replay.is_own(&id) {
                        true => self.handle_own_response(&id, Outcome::Error, &[], None),
                        false => self.harness.respond_with_error(&id, &unknown, &unknown),
                    }
                }
                false
            }
        };
        match (memchr2(b'\n', b'\r', &message), message) {
            _ if !is_wanted => {}
            (None, Cow::Borrowed(message)) => self.harness.write_line(message),
            (None, Cow::Owned(message)) => self.harness.output.push_line(message),
            (Some(_), message) => self.harness.write_line(&json::line_safe(&message)),
        }
    }

    /// Handles a response of the server. Returns whether the harness still waits for it.
    fn handle_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> bool {
        if self.harness.replay.is_own(id) {
            self.handle_own_response(id, outcome, message, body);
            return false;
        }
        self.harness.take_response(id, outcome, message, body)
    }
}

/// Limits the pause that a sidecar asks for to an hour.
fn bounded_pause(pause: u64) -> Duration {
    Duration::from_millis(pause.min(60 * 60 * 1000))
}
