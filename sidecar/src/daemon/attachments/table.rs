//! All attachments by grant and name, with their limits.
//!
//! What must stay true: a sandbox belongs to one attachment, also if several tables `[platforms.NAME]` lead to its platform, and
//! so does a name within its grant; clients of
//! one grant cannot find out the names of another grant, nor use up its share of the limit; an entry exists for as long as
//! its task runs, and that of a configured attachment until the configuration changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_platforms::SandboxId;
use relay_proto::name::Name;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::request::{AttachmentKey, AttachmentSpec, RequestedBy};
use super::status::{AttachmentState, AttachmentStatus, Lifetime, end_command};
use crate::config::{Config, Platforms};

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
    /// The first reason for which the attachment was to end.
    end_reason: Arc<OnceLock<EndReason>>,
}

/// Why an attachment was ended from outside of its task.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndReason {
    /// The command that follows the attachment has exited.
    CommandDisconnected,
    /// A reload of the configuration removed or changed it, or does not permit it any more.
    Configuration,
    /// `attach end` or `kill`, or the same request of another client of the admin API.
    Requested(RequestedBy),
}

/// How many attachments are allowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct AttachmentLimits {
    /// Attachments of the configuration: `limits.attachments`.
    pub(super) configured: usize,
    /// Attachments of each grant that commands and clients of the admin API request: an equal share of what the configured
    /// attachments leave.
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
        "the name `{0}` belongs to another attachment; end that with `{end}`, or give this one another `--name`",
        end = end_command(.0)
    )]
    NameInUse(String),
    #[error("the sandbox `{sandbox}` is attached as `{name}` already; end that with `{}`", end_command(name))]
    SandboxInUse { sandbox: SandboxId, name: String },
    /// Without the other attachment's name, which a client of this grant must not find out.
    #[error(
        "the sandbox `{0}` is attached already, with another grant; an operator finds it with `cofferdam attach list`"
    )]
    SandboxInUseByOtherGrant(SandboxId),
}

impl NotEntered {
    /// Whether another attachment has the name or the sandbox.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::NameInUse(_) | Self::SandboxInUse { .. } | Self::SandboxInUseByOtherGrant(_) => true,
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
    /// Enters an attachment, unless it conflicts with another or exceeds a limit. `platforms` are those of the configuration.
    pub(super) fn enter(
        &self,
        entry: Entry,
        limits: AttachmentLimits,
        platforms: &Platforms,
    ) -> Result<(), NotEntered> {
        let mut entries = self.lock();
        let AttachmentSpec { name, sandbox, grant, .. } = &*entry.spec;
        let is_over = |entry: &Entry| matches!(entry.status.borrow().state, AttachmentState::Over { .. });
        let has_sandbox = |other: &&Entry| entry.spec.has_same_sandbox(&other.spec, platforms);
        if let Some(other) = entries.values().find(|other| has_sandbox(other) && !is_over(other)) {
            return Err(match other.spec.grant == *grant {
                true => NotEntered::SandboxInUse { sandbox: sandbox.clone(), name: other.spec.name.clone() },
                false => NotEntered::SandboxInUseByOtherGrant(sandbox.clone()),
            });
        }
        let key = entry.spec.key();
        if entries.get(&key).is_some_and(|other| !is_over(other)) {
            return Err(NotEntered::NameInUse(name.clone()));
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

    /// Removes this entry, unless another entry has its name now.
    pub(super) fn remove(&self, entry: &Entry) {
        let mut entries = self.lock();
        let key = entry.spec.key();
        if entries.get(&key).is_some_and(|found| Arc::ptr_eq(&found.spec, &entry.spec)) {
            entries.remove(&key);
        }
        drop(entries);
        self.removed.notify_waiters();
    }

    /// Waits until any entry is removed.
    pub(super) async fn await_removal(&self) {
        self.removed.notified().await;
    }

    pub(super) fn find(&self, key: &AttachmentKey) -> Option<Entry> {
        self.lock().get(key).cloned()
    }

    /// The attachment that has the same name or sandbox as `spec`.
    pub(super) fn find_conflict(&self, spec: &AttachmentSpec, platforms: &Platforms) -> Option<Entry> {
        let entries = self.lock();
        let has_sandbox = |entry: &&Entry| spec.has_same_sandbox(&entry.spec, platforms);
        entries.get(&spec.key()).or_else(|| entries.values().find(has_sandbox)).cloned()
    }

    pub(super) fn all(&self) -> Vec<Entry> {
        self.lock().values().cloned().collect()
    }

    /// The attachments of the configuration.
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
    /// An attachment whose task is not started yet.
    pub(super) fn new(spec: AttachmentSpec, status: AttachmentStatus) -> Self {
        Self {
            spec: Arc::new(spec),
            status: watch::Sender::new(status),
            stop: CancellationToken::new(),
            end_reason: Arc::default(),
        }
    }

    /// Remembers why the attachment is about to end, unless it is ending already for another reason.
    pub(super) fn set_end_reason(&self, reason: EndReason) {
        let _ = self.end_reason.set(reason);
    }

    /// Why the attachment was ended, as commands show it.
    pub(super) fn end_reason_text(&self) -> String {
        let text = match self.end_reason.get() {
            Some(EndReason::CommandDisconnected) => "its command disconnected",
            Some(EndReason::Configuration) => "the new configuration does not have it or does not permit it",
            Some(EndReason::Requested(RequestedBy::Operator)) => "it was ended by an operator",
            Some(EndReason::Requested(RequestedBy::Token)) => "it was ended by a client of the admin API",
            // Its enrolment was ended, not the attachment.
            None => "it was ended",
        };
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_platforms::{KeepAwake, PlatformKind, PlatformSettings, WhenSuspended};
    use cofferdam_secrets::Template;

    use super::super::request::Route;
    use super::super::status::{Kind, OverCause};
    use super::*;
    use crate::config::Platform;

    const LIMITS: AttachmentLimits = AttachmentLimits { configured: 2, requested_per_grant: 2 };

    fn entry(grant: &str, name: &str, sandbox: &str, lifetime: Lifetime) -> Entry {
        let spec = AttachmentSpec {
            name: name.into(),
            platform: "e2b".parse().unwrap(),
            sandbox: sandbox.parse().unwrap(),
            grant: grant.parse().unwrap(),
            ttl: None,
            expires: None,
            enrolment: None,
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
        table.enter(first.clone(), LIMITS, &Platforms::new()).unwrap();
        let sandbox = "x".parse().unwrap();
        let sandbox_in_use = NotEntered::SandboxInUse { sandbox, name: "box1".into() };
        assert_eq!(table.enter(followed("dev", "box2", "x"), LIMITS, &Platforms::new()), Err(sandbox_in_use));
        let name_in_use = NotEntered::NameInUse("box1".into());
        assert_eq!(table.enter(followed("dev", "box1", "y"), LIMITS, &Platforms::new()), Err(name_in_use));
        table.remove(&first);
        table.enter(followed("dev", "box1", "y"), LIMITS, &Platforms::new()).unwrap();
        // The task of the first attachment may end late, and must not remove the entry of the second.
        table.remove(&first);
        assert!(table.find(&first.spec.key()).is_some());
    }

    /// A table `[platforms.NAME]` of the kind E2B with this address.
    fn platform(name: &str, api_url: &str) -> (Name, Arc<Platform>) {
        let api_url = (!api_url.is_empty()).then(|| api_url.parse().unwrap());
        let settings = PlatformSettings { kind: PlatformKind::E2b, api_url, sandbox_url: None };
        let platform = Platform {
            name: name.parse().unwrap(),
            settings,
            api_key: Template { parts: Vec::new() },
            vault_policies: Vec::new(),
            grants: None,
            shim: None,
        };
        (platform.name.clone(), Arc::new(platform))
    }

    #[test]
    fn a_sandbox_belongs_to_one_attachment_also_through_two_tables_of_one_platform() {
        let through = |platform: &str, name: &str| {
            let mut entry = followed("dev", name, "x");
            let spec = AttachmentSpec { platform: platform.parse().unwrap(), ..(*entry.spec).clone() };
            entry.spec = Arc::new(spec);
            entry
        };
        let platforms = Platforms::from([
            platform("e2b", ""),
            platform("again", "https://API.e2b.app/"),
            platform("other", "https://api.example"),
        ]);
        let table = AttachmentTable::default();
        table.enter(through("e2b", "box1"), LIMITS, &platforms).unwrap();
        let refused = table.enter(through("again", "box2"), LIMITS, &platforms);
        assert!(matches!(refused, Err(NotEntered::SandboxInUse { name, .. }) if name == "box1"));
        let conflict = table.find_conflict(&through("again", "box2").spec, &platforms);
        assert_eq!(conflict.unwrap().spec.name, "box1");
        table.enter(through("other", "box2"), LIMITS, &platforms).unwrap();
    }

    #[test]
    fn the_first_reason_for_the_end_is_kept() {
        let entry = followed("dev", "box1", "x");
        assert_eq!(entry.end_reason_text(), "it was ended");
        entry.set_end_reason(EndReason::Requested(RequestedBy::Operator));
        // The command disconnects when it sees the end of its attachment.
        entry.clone().set_end_reason(EndReason::CommandDisconnected);
        assert_eq!(entry.end_reason_text(), "it was ended by an operator");
    }

    #[test]
    fn an_error_does_not_reveal_names_of_another_grant() {
        let table = AttachmentTable::default();
        table.enter(followed("dev", "box1", "x"), LIMITS, &Platforms::new()).unwrap();
        table.enter(followed("other", "box1", "y"), LIMITS, &Platforms::new()).unwrap();
        let error = table.enter(followed("other", "box2", "x"), LIMITS, &Platforms::new()).unwrap_err();
        assert_eq!(error, NotEntered::SandboxInUseByOtherGrant("x".parse().unwrap()));
        assert!(!error.to_string().contains("box1") && !error.to_string().contains("dev"), "{error}");
    }

    #[test]
    fn each_grant_has_its_share_of_the_limit() {
        let table = AttachmentTable::default();
        table.enter(followed("dev", "box1", "x"), LIMITS, &Platforms::new()).unwrap();
        table.enter(entry("dev", "box2", "y", Lifetime::Detached), LIMITS, &Platforms::new()).unwrap();
        let full = NotEntered::GrantFull { grant: "dev".parse().unwrap(), share: 2 };
        assert_eq!(table.enter(followed("dev", "box3", "z"), LIMITS, &Platforms::new()), Err(full));
        table.enter(followed("other", "box1", "z"), LIMITS, &Platforms::new()).unwrap();
        table.enter(entry("dev", "box4", "u", Lifetime::Configured), LIMITS, &Platforms::new()).unwrap();
    }

    #[test]
    fn configured_attachments_are_limited_and_an_ended_one_frees_its_sandbox() {
        let table = AttachmentTable::default();
        let over = entry("dev", "box1", "x", Lifetime::Configured);
        let state = AttachmentState::Over { why: "gone".into(), cause: OverCause::NoSandbox };
        over.status.send_modify(|status| status.state = state);
        table.enter(over, LIMITS, &Platforms::new()).unwrap();
        table.enter(followed("dev", "box2", "x"), LIMITS, &Platforms::new()).unwrap();
        table.enter(entry("dev", "box3", "y", Lifetime::Configured), LIMITS, &Platforms::new()).unwrap();
        assert_eq!(
            table.enter(entry("dev", "box4", "z", Lifetime::Configured), LIMITS, &Platforms::new()),
            Err(NotEntered::Full(2))
        );
        assert_eq!(table.configured().len(), 2);
    }
}
