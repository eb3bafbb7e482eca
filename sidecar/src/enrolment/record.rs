//! The record of one enrolment: its grant, its expiry, how its sandbox is recognised; and its form on disk.
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
    pub(super) made: Timestamp,
    pub(super) expires: Timestamp,
    pub(super) kind: Kind,
    /// Set when it has ended. The record is kept for a while, so that its sandbox gets the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over: Option<EnrolmentEnd>,
    /// Keys that another version wrote.
    #[serde(flatten)]
    rest: UnknownKeys,
}

/// Keys that another version wrote and this one does not know.
pub(super) type UnknownKeys = serde_json::Map<String, serde_json::Value>;

/// How a sandbox is recognised.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(super) enum Kind {
    /// By the pipe from the host into the sandbox.
    Attached,
    /// By a key that used its ticket.
    Key {
        key: PublicKey,
        /// The ticket that it used.
        ticket: Fingerprint,
        /// `None` until its first epoch is confirmed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        current: Option<Fingerprint>,
        /// Epochs that were offered since and are not confirmed, the latest last.
        #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
        offered: VecDeque<Fingerprint>,
        #[serde(flatten)]
        rest: UnknownKeys,
    },
    /// By the socket in this directory: any peer that can open it.
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
    /// The host connects to it.
    Attached,
    /// By its key.
    Key,
    /// By its own socket.
    Socket,
    /// Its ticket was not used yet.
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
    Ended,
    Expired,
    /// Its ticket was not used in time.
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
        made: Timestamp,
        expires: Timestamp,
        kind: Kind,
    ) -> Self {
        Self { id, name, grant, made, expires, kind, over: None, rest: UnknownKeys::new() }
    }

    /// When and why it has ended, if it has at this time.
    pub(super) fn over(&self, now: Timestamp) -> Option<EnrolmentEnd> {
        let expired =
            || (self.expires <= now).then_some(EnrolmentEnd { at: self.expires, why: EndCause::Expired });
        let unused = || match &self.kind {
            Kind::Ticket { until, .. } if *until <= now => {
                Some(EnrolmentEnd { at: *until, why: EndCause::Unused })
            }
            _ => None,
        };
        self.over.or_else(unused).or_else(expired)
    }

    /// When it or its unused ticket expires, whichever comes first.
    pub(super) fn next_end(&self) -> Timestamp {
        match &self.kind {
            Kind::Ticket { until, .. } => self.expires.min(*until),
            _ => self.expires,
        }
    }

    pub(super) fn key(&self) -> Option<&PublicKey> {
        match &self.kind {
            Kind::Key { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The ticket that it was created with, used or not.
    pub(super) fn ticket(&self) -> Option<&Fingerprint> {
        match &self.kind {
            Kind::Key { ticket, .. } | Kind::Ticket { ticket, .. } => Some(ticket),
            Kind::Attached | Kind::Socket { .. } => None,
        }
    }
}

impl Kind {
    pub(super) fn name(&self) -> EnrolmentKind {
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
            Self::Ended => "the enrolment was ended on the host",
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
