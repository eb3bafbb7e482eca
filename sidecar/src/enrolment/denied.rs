//! Why a peer with a ticket or a key is refused, and what to do about it.

use relay_proto::code::Code;
use relay_proto::control::{Refusal, Retry};

use super::record::EndCause;
use super::{Enrolment, StoreError};

/// One variant for each cause; the message ends with the next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error(
        "the ticket is malformed or incomplete: give the sandbox the string as `cofferdam enroll` printed it"
    )]
    MalformedTicket,
    #[error(
        "the ticket is unknown to this sidecar: another sidecar issued it, or it expired long ago; check where the string is \
         from, or {NEXT_STEP}"
    )]
    UnknownTicket,
    #[error("the ticket expired before it was used; {NEXT_STEP}, and use its string within `--ticket-ttl`")]
    TicketExpired,
    /// Another peer used the ticket first. The sidecar cannot know which of the two peers is the intended one.
    #[error(
        "the ticket was used before, by another sandbox or by a copy of this one; if that was not intended, end that \
         session with `cofferdam kill`; then {NEXT_STEP}"
    )]
    TicketReused(Enrolment),
    #[error("this sandbox's key is not enrolled at this sidecar; {NEXT_STEP}")]
    UnknownKey,
    #[error(
        "this sandbox's key is enrolled already, and its ticket belongs to another enrolment; {NEXT_STEP}"
    )]
    KeyAlreadyEnrolled(Enrolment),
    #[error("{}; {NEXT_STEP}", .0.sentence())]
    Ended(EndCause),
    /// Two peers have the same key, and the other peer has used it since.
    #[error(
        "another copy of this sandbox's state was used since: the sandbox was cloned, restored from a snapshot, or its \
         key was stolen; only the other copy stays enrolled: {NEXT_STEP}, for this copy alone"
    )]
    Cloned(Enrolment),
    #[error("the sidecar could not save the enrolment; see its log")]
    NotSaved(#[source] StoreError),
}

/// How to get a new enrolment; a running shim picks the string up by itself.
pub(crate) const NEXT_STEP: &str = "run `cofferdam enroll` on the host and write its string to the sandbox's COFFERDAM_ENROLL_FILE or /run/cofferdam/enroll";

impl Denied {
    /// The enrolment whose ticket or key was used by two peers, which is a reason for an alert.
    pub(crate) fn alert_about(&self) -> Option<&Enrolment> {
        match self {
            Self::Cloned(enrolled) | Self::KeyAlreadyEnrolled(enrolled) | Self::TicketReused(enrolled) => {
                Some(enrolled)
            }
            _ => None,
        }
    }

    /// The text of the alert for the operator.
    pub(crate) fn alert_text(&self) -> &'static str {
        match self {
            Self::Cloned(_) => "an outdated copy of the sandbox's key was used",
            Self::KeyAlreadyEnrolled(_) => "an enrolled key was used with the ticket of another enrolment",
            Self::TicketReused(_) => "its ticket was used a second time",
            _ => "refused",
        }
    }

    pub(crate) fn refusal(&self) -> Refusal {
        let code = match self {
            Self::Cloned(_) => Code::CloneRefused,
            Self::Ended(_) => Code::SessionEnded,
            Self::NotSaved(_) => Code::RelayUnavailable,
            Self::UnknownTicket
            | Self::KeyAlreadyEnrolled(_)
            | Self::MalformedTicket
            | Self::TicketReused(_)
            | Self::TicketExpired
            | Self::UnknownKey => Code::TicketRefused,
        };
        let retry = match self {
            Self::NotSaved(_) => Retry::AfterMs(2000),
            _ => Retry::Never,
        };
        Refusal { code: code.as_str().into(), message: self.to_string(), retry }
    }
}
