//! One enrolment: which sandbox may connect, with what grant, until when; and its form on disk.
//!
//! What must stay true: a file of another version is read as far as it is understood, and unknown keys are written back
//! unchanged, so that neither an upgrade nor a downgrade locks a sandbox out.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use relay_proto::key::PublicKey;
use relay_proto::name::Name;
use serde::{Deserialize, Serialize};

use super::hash::Fingerprint;

/// What is kept in `enrolments/ID.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Record {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) grant: Name,
    pub(super) made: Time,
    pub(super) expires: Time,
    pub(super) kind: Kind,
    /// Kept for a while after its end, so that its sandbox gets the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over: Option<Over>,
    /// Keys of another version.
    #[serde(flatten)]
    rest: Rest,
}

/// What another version wrote, and this one does not understand.
pub(super) type Rest = serde_json::Map<String, serde_json::Value>;

/// How a sandbox is recognised.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(super) enum Kind {
    /// The host reached into the sandbox.
    Attached,
    /// A key that redeemed its ticket.
    Key {
        key: PublicKey,
        /// The ticket that it redeemed.
        ticket: Fingerprint,
        /// None until its first epoch was confirmed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        current: Option<Fingerprint>,
        /// Handed out since, the last one last, and not known to have arrived.
        #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
        offered: VecDeque<Fingerprint>,
        #[serde(flatten)]
        rest: Rest,
    },
    /// Any peer that can open the socket in this directory.
    Socket {
        directory: PathBuf,
        #[serde(flatten)]
        rest: Rest,
    },
    /// A ticket that was not used yet.
    Ticket {
        ticket: Fingerprint,
        until: Time,
        #[serde(flatten)]
        rest: Rest,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Over {
    pub(super) at: Time,
    pub(super) why: Why,
}

/// Why an enrolment is over.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Why {
    Ended,
    Expired,
    /// Its ticket was not used in time.
    Unused,
}

/// Wall-clock time in milliseconds since 1970: an enrolment outlives processes and boots.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(super) struct Time(u64);

impl Record {
    pub(super) fn new(
        id: String,
        name: Option<String>,
        grant: Name,
        made: Time,
        expires: Time,
        kind: Kind,
    ) -> Self {
        Self { id, name, grant, made, expires, kind, over: None, rest: Rest::new() }
    }

    /// Why it is over at this time, if it is.
    pub(super) fn over(&self, now: Time) -> Option<Over> {
        let expired = || (self.expires <= now).then_some(Over { at: self.expires, why: Why::Expired });
        let unused = || match &self.kind {
            Kind::Ticket { until, .. } if *until <= now => Some(Over { at: *until, why: Why::Unused }),
            _ => None,
        };
        self.over.or_else(unused).or_else(expired)
    }

    /// When it will be over if nothing happens.
    pub(super) fn next_end(&self) -> Time {
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

    /// The ticket that it began with, burnt or not.
    pub(super) fn ticket(&self) -> Option<&Fingerprint> {
        match &self.kind {
            Kind::Key { ticket, .. } | Kind::Ticket { ticket, .. } => Some(ticket),
            Kind::Attached | Kind::Socket { .. } => None,
        }
    }
}

impl Why {
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::Ended => "the enrolment was ended by the host's administrator",
            Self::Expired => "the enrolment's time is over",
            Self::Unused => "the enrolment's ticket was not used in time",
        }
    }
}

impl Time {
    pub(super) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    pub(super) fn to_system(self) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.0)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
