//! Sandboxes that dialled out for a command when the sidecar stopped.
//!
//! Such a sandbox has a key, so after a restart of the sidecar its shims would connect again without their command. What is
//! followed belongs to its follower, so the command has to request its attachment again, as it does when it loses its
//! connection; the new attachment then takes over the enrolment.
//!
//! What must stay true: an enrolment whose command does not come back within the resume grace of its links is ended; no
//! other request than the command's own takes it over.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cofferdam_base::clock;
use relay_proto::name::Name;
use tokio::time::sleep;

use super::keeper::AttachmentKeeper;
use super::records::AttachmentRecord;
use super::request::{AttachmentKey, AttachmentSpec, Route};

/// The attachments whose commands are awaited, each by its key.
#[derive(Default)]
pub(super) struct AwaitedCommands(Mutex<BTreeMap<AttachmentKey, AttachmentRecord>>);

/// How much longer than the resume grace of its links an enrolment lasts, so that the links end first.
const AFTER_GRACE: Duration = Duration::from_secs(1);

impl AwaitedCommands {
    pub(super) fn new(records: impl IntoIterator<Item = AttachmentRecord>) -> Self {
        let keyed = records.into_iter().filter_map(|record| Some((key_of(&record)?, record)));
        Self(Mutex::new(keyed.collect()))
    }

    fn take(&self, key: &AttachmentKey) -> Option<AttachmentRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    fn take_all(&self) -> BTreeMap<AttachmentKey, AttachmentRecord> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AttachmentKeeper {
    /// Gives a requested attachment the enrolment that its command had before the sidecar stopped. If the request is for
    /// another sandbox of the same name, that enrolment is ended.
    pub(super) async fn take_over_enrolment(&self, spec: &mut AttachmentSpec) {
        let key = spec.key();
        let Some(record) = self.daemon.attachments.awaited.take(&key) else { return };
        let is_same_sandbox = spec.via == Route::DialOut
            && record.request.sandbox == spec.sandbox.as_str()
            && record.request.platform.as_deref() == Some(spec.platform.as_str());
        let enrolment =
            record.enrolment.as_ref().and_then(|id| self.daemon.enrolments.find(id, clock::now()).ok());
        match enrolment.filter(|_| is_same_sandbox) {
            Some(enrolment) => {
                spec.expires = Some(enrolment.expires);
                spec.enrolment = Some(enrolment.id);
            }
            None => self.end_stored(key, record.enrolment.as_deref()).await,
        }
    }

    /// Ends the enrolments whose commands have not come back after the resume grace. Call it when the sidecar has started.
    pub(super) async fn end_awaited_after_grace(self) {
        let grace = self.daemon.context.config.load().relay.resume_grace + AFTER_GRACE;
        if self.daemon.stop.run_until_cancelled(sleep(grace)).await.is_none() {
            return;
        }
        for (key, record) in self.daemon.attachments.awaited.take_all() {
            tracing::info!(sandbox = key.name, "its command did not come back in time: enrolment ended");
            self.end_stored(key, record.enrolment.as_deref()).await;
        }
    }

    /// Ends the enrolment of a stored attachment that does not run, and removes its file.
    pub(super) async fn end_stored(&self, key: AttachmentKey, enrolment: Option<&str>) {
        if let Some(enrolment) = enrolment {
            // Failures are logged where they occur; nothing happens if the enrolment has ended.
            let _ = self.daemon.kill(enrolment).await;
        }
        self.remove_record(key).await;
    }
}

/// `None` if the name of the grant is invalid, which no version of the sidecar writes.
fn key_of(record: &AttachmentRecord) -> Option<AttachmentKey> {
    let grant: Name = record.request.grant.parse().ok()?;
    Some(AttachmentKey { grant, name: record.request.name.clone()? })
}
