//! All attachments by grant and name, and what starts and ends them.
//!
//! What must stay true: a sandbox of a platform belongs to one attachment, and so does a name within its grant; no grant
//! learns the names of another one, nor takes its share of the limit; an entry exists for as long as its task runs, and for
//! configured ones until the configuration changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_platforms::SandboxId;
use relay_proto::name::Name;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::request::{AttachmentKey, AttachmentSpec};
use super::status::{AttachmentState, AttachmentStatus, Lifetime};
use crate::config::Config;

/// All attachments.
#[derive(Default)]
pub(super) struct AttachmentTable {
    entries: Mutex<BTreeMap<AttachmentKey, Entry>>,
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

/// How many attachments there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct AttachmentLimits {
    /// Of the configuration: `limits.attachments`.
    pub(super) configured: usize,
    /// Of each grant, by commands and the admin API: an equal share of what the configuration's own leave.
    pub(super) requested_per_grant: usize,
}

/// Why an attachment was not entered.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NotEntered {
    #[error("there are as many attachments as `limits.attachments` allows ({0}); raise the limit")]
    Full(usize),
    #[error(
        "the grant `{grant}` has as many attachments as its share of `limits.attachments` allows ({share}); end one with `cofferdam attach end`, or raise the limit"
    )]
    GrantFull { grant: Name, share: usize },
    #[error(
        "the name `{0}` belongs to another attachment; end that with `cofferdam attach end {0}`, or give this one another `--name`"
    )]
    Name(String),
    #[error(
        "the sandbox `{sandbox}` is attached as `{name}` already; end that with `cofferdam attach end {name}`"
    )]
    Sandbox { sandbox: SandboxId, name: String },
    /// Without the other attachment's name: a token may not learn the names of other grants.
    #[error(
        "the sandbox `{0}` is attached already, with another grant; an operator finds it with `cofferdam attach list`"
    )]
    SandboxOfAnotherGrant(SandboxId),
}

impl NotEntered {
    /// Whether another attachment has the name or the sandbox.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Name(_) | Self::Sandbox { .. } | Self::SandboxOfAnotherGrant(_) => true,
            Self::Full(_) | Self::GrantFull { .. } => false,
        }
    }
}

impl AttachmentLimits {
    pub(super) fn of(config: &Config) -> Self {
        let all = config.limits.attachments;
        let left = all.saturating_sub(config.attachments.len());
        Self { configured: all, requested_per_grant: left / config.grants.len().max(1) }
    }
}

impl AttachmentTable {
    pub(super) fn enter(&self, entry: Entry, limits: AttachmentLimits) -> Result<(), NotEntered> {
        let mut entries = self.lock();
        let AttachmentSpec { name, platform, sandbox, grant, .. } = &*entry.spec;
        let is_over = |entry: &Entry| matches!(entry.status.borrow().state, AttachmentState::Over { .. });
        if let Some(other) = entries.values().find(|other| {
            other.spec.platform == *platform && other.spec.sandbox == *sandbox && !is_over(other)
        }) {
            return Err(match other.spec.grant == *grant {
                true => NotEntered::Sandbox { sandbox: sandbox.clone(), name: other.spec.name.clone() },
                false => NotEntered::SandboxOfAnotherGrant(sandbox.clone()),
            });
        }
        let key = entry.spec.key();
        if entries.get(&key).is_some_and(|other| !is_over(other)) {
            return Err(NotEntered::Name(name.clone()));
        }
        let is_configured = |entry: &Entry| entry.status.borrow().lifetime == Lifetime::Configured;
        if is_configured(&entry) {
            if entries.values().filter(|other| is_configured(other)).count() >= limits.configured {
                return Err(NotEntered::Full(limits.configured));
            }
        } else {
            let of_grant =
                entries.values().filter(|other| other.spec.grant == *grant && !is_configured(other));
            if of_grant.count() >= limits.requested_per_grant {
                let share = limits.requested_per_grant;
                return Err(NotEntered::GrantFull { grant: grant.clone(), share });
            }
        }
        entries.insert(key, entry);
        Ok(())
    }

    /// Removes this entry, unless its name has gone to another one.
    pub(super) fn remove(&self, entry: &Entry) {
        let mut entries = self.lock();
        let key = entry.spec.key();
        if entries.get(&key).is_some_and(|found| Arc::ptr_eq(&found.spec, &entry.spec)) {
            entries.remove(&key);
        }
        drop(entries);
        self.removed.notify_waiters();
    }

    /// Waits for the removal of some entry.
    pub(super) async fn removal(&self) {
        self.removed.notified().await;
    }

    pub(super) fn find(&self, key: &AttachmentKey) -> Option<Entry> {
        self.lock().get(key).cloned()
    }

    /// The attachment that has the name or the sandbox of this one.
    pub(super) fn conflicting(&self, spec: &AttachmentSpec) -> Option<Entry> {
        let entries = self.lock();
        let same =
            |entry: &&Entry| entry.spec.platform == spec.platform && entry.spec.sandbox == spec.sandbox;
        entries.get(&spec.key()).or_else(|| entries.values().find(same)).cloned()
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AttachmentKey, Entry>> {
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

    const LIMITS: AttachmentLimits = AttachmentLimits { configured: 2, requested_per_grant: 2 };

    fn entry(grant: &str, name: &str, sandbox: &str, lifetime: Lifetime) -> Entry {
        let spec = AttachmentSpec {
            name: name.into(),
            platform: "e2b".parse().unwrap(),
            sandbox: sandbox.parse().unwrap(),
            grant: grant.parse().unwrap(),
            ttl: None,
            expires: None,
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
            grant: grant.into(),
            lifetime,
            enrolment: None,
            warning: None,
            state: AttachmentState::FINDING,
        };
        Entry::new(spec, status)
    }

    fn followed(grant: &str, name: &str, sandbox: &str) -> Entry {
        entry(grant, name, sandbox, Lifetime::Followed)
    }

    #[test]
    fn a_name_and_a_sandbox_belong_to_one_attachment() {
        let table = AttachmentTable::default();
        let first = followed("dev", "box1", "x");
        table.enter(first.clone(), LIMITS).unwrap();
        let sandbox = "x".parse().unwrap();
        let taken = NotEntered::Sandbox { sandbox, name: "box1".into() };
        assert_eq!(table.enter(followed("dev", "box2", "x"), LIMITS), Err(taken));
        let name = NotEntered::Name("box1".into());
        assert_eq!(table.enter(followed("dev", "box1", "y"), LIMITS), Err(name));
        table.remove(&first);
        table.enter(followed("dev", "box1", "y"), LIMITS).unwrap();
        // The first one's task ends late and must not remove its successor.
        table.remove(&first);
        assert!(table.find(&first.spec.key()).is_some());
    }

    #[test]
    fn a_grant_does_not_learn_the_names_of_another() {
        let table = AttachmentTable::default();
        table.enter(followed("dev", "box1", "x"), LIMITS).unwrap();
        table.enter(followed("other", "box1", "y"), LIMITS).unwrap();
        let error = table.enter(followed("other", "box2", "x"), LIMITS).unwrap_err();
        assert_eq!(error, NotEntered::SandboxOfAnotherGrant("x".parse().unwrap()));
        assert!(!error.to_string().contains("box1") && !error.to_string().contains("dev"), "{error}");
    }

    #[test]
    fn each_grant_has_its_share_of_the_limit() {
        let table = AttachmentTable::default();
        table.enter(followed("dev", "box1", "x"), LIMITS).unwrap();
        table.enter(entry("dev", "box2", "y", Lifetime::Detached), LIMITS).unwrap();
        let full = NotEntered::GrantFull { grant: "dev".parse().unwrap(), share: 2 };
        assert_eq!(table.enter(followed("dev", "box3", "z"), LIMITS), Err(full));
        table.enter(followed("other", "box1", "z"), LIMITS).unwrap();
        table.enter(entry("dev", "box4", "u", Lifetime::Configured), LIMITS).unwrap();
    }

    #[test]
    fn configured_attachments_are_limited_and_one_that_is_over_makes_way() {
        let table = AttachmentTable::default();
        let over = entry("dev", "box1", "x", Lifetime::Configured);
        let state = AttachmentState::Over { why: "gone".into(), cause: OverCause::NoSandbox };
        over.status.send_modify(|status| status.state = state);
        table.enter(over, LIMITS).unwrap();
        table.enter(followed("dev", "box2", "x"), LIMITS).unwrap();
        table.enter(entry("dev", "box3", "y", Lifetime::Configured), LIMITS).unwrap();
        assert_eq!(
            table.enter(entry("dev", "box4", "z", Lifetime::Configured), LIMITS),
            Err(NotEntered::Full(2))
        );
        assert_eq!(table.configured().len(), 2);
    }
}
