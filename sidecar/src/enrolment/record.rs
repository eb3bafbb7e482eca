//! The record of one enrolment: its grant, its expiry and how its sandbox is recognised; and its format on disk.
//!
//! What must stay true: a file of another version is read, and its unknown keys are written back unchanged, so that neither
//! an upgrade nor a downgrade locks a sandbox out.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use relay_proto::key::PublicKey;
use relay_proto::name::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hash::Fingerprint;

/// The content of `enrolments/ID.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Record {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) grant: Name,
    #[serde(rename = "made")]
    pub(super) created: Timestamp,
    pub(super) expires: Timestamp,
    #[serde(rename = "kind")]
    pub(super) identity: SandboxIdentity,
    /// Set when the enrolment has ended. The record stays for a day, so that the sandbox gets the reason.
    #[serde(default, rename = "over", skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<EnrolmentEnd>,
    /// JSON keys that another version wrote.
    #[serde(flatten)]
    rest: UnknownKeys,
}

/// JSON keys that another version wrote and this version does not know.
pub(super) type UnknownKeys = serde_json::Map<String, serde_json::Value>;

/// How a sandbox is recognised.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(super) enum SandboxIdentity {
    /// By the pipe from the host into the sandbox.
    Attached,
    /// By the public key that redeemed the enrolment's ticket.
    Key {
        key: PublicKey,
        /// The ticket that the key redeemed.
        ticket: Fingerprint,
        /// `None` until the first epoch is confirmed.
        #[serde(default, rename = "current", skip_serializing_if = "Option::is_none")]
        current_epoch: Option<Fingerprint>,
        /// Epochs that were offered after `current_epoch` and are not confirmed, the latest last.
        #[serde(default, rename = "offered", skip_serializing_if = "VecDeque::is_empty")]
        offered_epochs: VecDeque<Fingerprint>,
        #[serde(flatten)]
        rest: UnknownKeys,
    },
    /// By the socket in this directory, which any peer that can open it may use.
    Socket {
        directory: PathBuf,
        #[serde(flatten)]
        rest: UnknownKeys,
    },
    /// By a ticket that was not used yet.
    Ticket {
        ticket: Fingerprint,
        until: Timestamp,
        #[serde(flatten)]
        rest: UnknownKeys,
    },
}

/// How a sandbox is recognised, without the details.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EnrolmentKind {
    /// By the pipe from the host into the sandbox.
    Attached,
    /// By its key.
    Key,
    /// By its own socket.
    Socket,
    /// By a ticket that was not used yet.
    Ticket,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct EnrolmentEnd {
    pub(super) at: Timestamp,
    pub(super) why: EndCause,
}

/// Why an enrolment has ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndCause {
    #[serde(rename = "ended")]
    EndedByOperator,
    Expired,
    /// The enrolment's ticket was not used in time.
    Unused,
}

/// Wall-clock time in milliseconds since 1970: an enrolment outlives processes and boots.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(super) struct Timestamp(u64);

impl Record {
    pub(super) fn new(
        id: String,
        name: Option<String>,
        grant: Name,
        created: Timestamp,
        expires: Timestamp,
        identity: SandboxIdentity,
    ) -> Self {
        Self { id, name, grant, created, expires, identity, ended: None, rest: UnknownKeys::new() }
    }

    /// When and why the enrolment ended; `None` if it is still valid at `now`.
    pub(super) fn end_at(&self, now: Timestamp) -> Option<EnrolmentEnd> {
        let expired =
            || (self.expires <= now).then_some(EnrolmentEnd { at: self.expires, why: EndCause::Expired });
        let unused = || match &self.identity {
            SandboxIdentity::Ticket { until, .. } if *until <= now => {
                Some(EnrolmentEnd { at: *until, why: EndCause::Unused })
            }
            _ => None,
        };
        self.ended.or_else(unused).or_else(expired)
    }

    /// When the enrolment or its unused ticket expires, whichever comes first.
    pub(super) fn next_end(&self) -> Timestamp {
        match &self.identity {
            SandboxIdentity::Ticket { until, .. } => self.expires.min(*until),
            _ => self.expires,
        }
    }

    pub(super) fn key(&self) -> Option<&PublicKey> {
        match &self.identity {
            SandboxIdentity::Key { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The ticket that the enrolment was created with, used or not.
    pub(super) fn ticket(&self) -> Option<&Fingerprint> {
        match &self.identity {
            SandboxIdentity::Key { ticket, .. } | SandboxIdentity::Ticket { ticket, .. } => Some(ticket),
            SandboxIdentity::Attached | SandboxIdentity::Socket { .. } => None,
        }
    }
}

impl SandboxIdentity {
    pub(super) fn kind(&self) -> EnrolmentKind {
        match self {
            Self::Attached => EnrolmentKind::Attached,
            Self::Key { .. } => EnrolmentKind::Key,
            Self::Socket { .. } => EnrolmentKind::Socket,
            Self::Ticket { .. } => EnrolmentKind::Ticket,
        }
    }
}

impl EndCause {
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::EndedByOperator => "the enrolment was ended on the host",
            Self::Expired => "the enrolment has expired",
            Self::Unused => "the enrolment's ticket was not used in time",
        }
    }
}

impl Timestamp {
    pub(super) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    pub(super) fn to_system(self) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.0)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
