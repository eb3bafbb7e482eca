//! All attachments by name, and what starts and ends them.
//!
//! What must stay true: a sandbox of a platform, and a name, belong to one attachment; an entry exists for as long as its
//! task runs, and for configured ones until the configuration changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_platforms::SandboxId;
use relay_proto::name::Name;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::request::AttachmentSpec;
use super::status::{AttachmentState, AttachmentStatus, Lifetime};

/// All attachments.
#[derive(Default)]
pub(super) struct AttachmentTable {
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Signalled when an entry is removed.
    removed: Notify,
}

/// One attachment, as other tasks see it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) spec: Arc<AttachmentSpec>,
    pub(super) status: watch::Sender<AttachmentStatus>,
    /// Ends the attachment's task.
    pub(super) stop: CancellationToken,
}

/// Why an attachment was not entered.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NotEntered {
    #[error(
        "there are as many attachments as `limits.attachments` allows ({0}); end one with `cofferdam attach end`, or raise the limit"
    )]
    Full(usize),
    #[error(
        "the name `{0}` belongs to another attachment; end that with `cofferdam attach end {0}`, or give this one another `--name`"
    )]
    Name(String),
    #[error(
        "the sandbox `{sandbox}` is attached as `{name}` already; end that with `cofferdam attach end {name}`"
    )]
    Sandbox { sandbox: SandboxId, name: String },
}

impl AttachmentTable {
    pub(super) fn enter(&self, entry: Entry, limit: usize) -> Result<(), NotEntered> {
        let mut entries = self.lock();
        let AttachmentSpec { name, platform, sandbox, .. } = &*entry.spec;
        let is_over = |entry: &Entry| matches!(entry.status.borrow().state, AttachmentState::Over { .. });
        if let Some(other) = entries.values().find(|other| {
            other.spec.platform == *platform && other.spec.sandbox == *sandbox && !is_over(other)
        }) {
            return Err(NotEntered::Sandbox { sandbox: sandbox.clone(), name: other.spec.name.clone() });
        }
        if entries.get(name).is_some_and(|other| !is_over(other)) {
            return Err(NotEntered::Name(name.clone()));
        }
        if entries.len() >= limit {
            return Err(NotEntered::Full(limit));
        }
        entries.insert(name.clone(), entry);
        Ok(())
    }

    /// Removes this entry, unless its name has gone to another one.
    pub(super) fn remove(&self, entry: &Entry) {
        let mut entries = self.lock();
        if entries.get(&entry.spec.name).is_some_and(|found| Arc::ptr_eq(&found.spec, &entry.spec)) {
            entries.remove(&entry.spec.name);
        }
        drop(entries);
        self.removed.notify_waiters();
    }

    /// Waits for the removal of some entry.
    pub(super) async fn removal(&self) {
        self.removed.notified().await;
    }

    pub(super) fn find(&self, name: &str) -> Option<Entry> {
        self.lock().get(name).cloned()
    }

    /// The attachment of this sandbox, or of this name.
    pub(super) fn conflicting(&self, platform: &Name, sandbox: &SandboxId, name: &str) -> Option<Entry> {
        let entries = self.lock();
        let same = |entry: &&Entry| entry.spec.platform == *platform && entry.spec.sandbox == *sandbox;
        entries.get(name).or_else(|| entries.values().find(same)).cloned()
    }

    pub(super) fn all(&self) -> Vec<Entry> {
        self.lock().values().cloned().collect()
    }

    /// Those of the configuration.
    pub(super) fn configured(&self) -> Vec<Entry> {
        self.all()
            .into_iter()
            .filter(|entry| entry.status.borrow().lifetime == Lifetime::Configured)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// A new attachment that was not started yet.
    pub(super) fn new(spec: AttachmentSpec, status: AttachmentStatus) -> Self {
        Self { spec: Arc::new(spec), status: watch::Sender::new(status), stop: CancellationToken::new() }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_platforms::{KeepAwake, WhenSuspended};

    use super::super::request::Route;
    use super::super::status::{Kind, OverCause};
    use super::*;

    fn entry(name: &str, sandbox: &str, lifetime: Lifetime) -> Entry {
        let spec = AttachmentSpec {
            name: name.into(),
            platform: "e2b".parse().unwrap(),
            sandbox: sandbox.parse().unwrap(),
            grant: "dev".parse().unwrap(),
            ttl: None,
            when_suspended: WhenSuspended::Refuse,
            keep_awake: KeepAwake::No,
            via: Route::Preview,
            shim: None,
            harness: None,
        };
        let status = AttachmentStatus {
            name: name.into(),
            platform: "e2b".into(),
            kind: Kind::E2b,
            sandbox: sandbox.into(),
            grant: "dev".into(),
            lifetime,
            enrolment: None,
            warning: None,
            state: AttachmentState::Finding,
        };
        Entry::new(spec, status)
    }

    #[test]
    fn a_name_and_a_sandbox_belong_to_one_attachment() {
        let table = AttachmentTable::default();
        let first = entry("box1", "x", Lifetime::Followed);
        table.enter(first.clone(), 3).unwrap();
        let sandbox = "x".parse().unwrap();
        let taken = NotEntered::Sandbox { sandbox, name: "box1".into() };
        assert_eq!(table.enter(entry("box2", "x", Lifetime::Followed), 3), Err(taken));
        let name = NotEntered::Name("box1".into());
        assert_eq!(table.enter(entry("box1", "y", Lifetime::Followed), 3), Err(name));
        table.remove(&first);
        table.enter(entry("box1", "y", Lifetime::Followed), 3).unwrap();
        // The first one's task ends late and must not remove its successor.
        table.remove(&first);
        assert!(table.find("box1").is_some());
    }

    #[test]
    fn the_number_is_limited_and_a_configured_one_that_is_over_makes_way() {
        let table = AttachmentTable::default();
        let over = entry("box1", "x", Lifetime::Configured);
        let state = AttachmentState::Over { why: "gone".into(), cause: OverCause::NoSandbox };
        over.status.send_modify(|status| status.state = state);
        table.enter(over, 2).unwrap();
        table.enter(entry("box2", "y", Lifetime::Configured), 2).unwrap();
        assert_eq!(table.enter(entry("box3", "z", Lifetime::Followed), 2), Err(NotEntered::Full(2)));
        assert_eq!(table.configured().len(), 2);
    }
}
