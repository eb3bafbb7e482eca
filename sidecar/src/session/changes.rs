//! The changes that clients of the admin API can watch: enrolments, sessions, links and attached sandboxes.
//!
//! What must stay true: a watcher that reads slowly delays no other part of the sidecar; it loses changes, and is told so.

use cofferdam_base::clock::{self, Rfc3339};
use relay_proto::name::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// One change.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Change {
    pub(crate) event: ChangeKind,
    /// RFC 3339.
    pub(crate) time: String,
    pub(crate) grant: String,
    /// The sandbox's enrolment. Links of the shared socket have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enrolment: Option<String>,
    /// The sandbox's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ChangeKind {
    /// The pipe into an attached sandbox is open.
    Attached,
    /// The pipe into an attached sandbox ended, or could not be opened.
    Detached,
    EnrolmentCreated,
    EnrolmentEnded,
    LinkEnded,
    LinkOpened,
    SessionBegan,
    SessionEnded,
}

/// Where changes are published.
#[derive(Debug)]
pub(crate) struct Changes(broadcast::Sender<Change>);

/// The number of changes that are queued for a watcher.
const MAX_QUEUED: usize = 256;

impl Change {
    pub(crate) fn new(event: ChangeKind, grant: &Name) -> Self {
        Self {
            event,
            time: Rfc3339::from(clock::now()).to_string(),
            grant: grant.to_string(),
            enrolment: None,
            name: None,
            session: None,
            link: None,
            reason: None,
        }
    }
}

impl ChangeKind {
    /// The name in JSON.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::EnrolmentCreated => "enrolment-created",
            Self::EnrolmentEnded => "enrolment-ended",
            Self::LinkEnded => "link-ended",
            Self::LinkOpened => "link-opened",
            Self::SessionBegan => "session-began",
            Self::SessionEnded => "session-ended",
        }
    }
}

impl Changes {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(MAX_QUEUED))
    }

    /// Passes a change to the watchers, without waiting. `change` is called only if there are any.
    pub(crate) fn publish(&self, change: impl FnOnce() -> Change) {
        if self.0.receiver_count() > 0 {
            // Fails if the last watcher has just been dropped.
            let _ = self.0.send(change());
        }
    }

    pub(crate) fn watch(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}
