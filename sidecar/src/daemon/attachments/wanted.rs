//! Starts and ends the attachments that no command follows: the stored ones when the sidecar starts, and those of the
//! configuration.
//!
//! What must stay true: a stored attachment whose enrolment has ended is removed instead of started; after a reload, the
//! configured attachments are those of the new configuration, and attachments that it does not permit have ended.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use cofferdam_base::clock;
use cofferdam_base::text::error_chain;

use super::keeper::AttachmentKeeper;
use super::pacing::History;
use super::records::AttachmentRecord;
use super::request::{AttachmentSpec, InvalidRequest, Route};
use super::status::{AttachmentState, Lifetime};
use super::table::EndReason;
use crate::enrolment::{Enrolment, EnrolmentKind};

impl AttachmentKeeper {
    /// Starts the stored and the configured attachments, and applies each reload of the configuration until the sidecar
    /// stops.
    pub(crate) async fn start_and_follow_configuration(self) {
        self.daemon.context.tasks.spawn(self.clone().end_awaited_after_grace());
        let records = std::mem::take(
            &mut *self.daemon.attachments.stored.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for record in records {
            self.restore(record).await;
        }
        loop {
            self.apply_configuration().await;
            tokio::select! {
                () = self.daemon.stop.cancelled() => break,
                () = self.daemon.attachments.reconfigured.notified() => self.daemon.attachments.keys.clear(),
            }
        }
        self.daemon.attachments.keys.end().await;
    }

    /// Starts a stored attachment again, or removes its file if its enrolment has ended meanwhile.
    async fn restore(&self, record: AttachmentRecord) {
        let AttachmentRecord { request, expires, enrolment: stored_enrolment, .. } = record;
        let name = request.name.as_deref().unwrap_or_default();
        // The platform need not be configured now: its absence shows in the attachment's state, and a reload may add it.
        let platform = request.platform.as_deref().unwrap_or(request.kind.as_str()).parse();
        let spec = platform.map_err(InvalidRequest::Platform).and_then(|platform| request.check(platform));
        let mut spec = match spec {
            Ok(spec) => spec,
            Err(error) => {
                let why = error_chain(&error);
                tracing::error!(sandbox = name, why, "a stored attachment cannot be started");
                return;
            }
        };
        let key = spec.key();
        let now = clock::now();
        let enrolment = match (spec.via, stored_enrolment) {
            (Route::DialOut, Some(id)) => self.daemon.enrolments.find(&id, now).ok(),
            // The pipe's enrolment is found by its name, also by `hold`.
            _ => self.find_enrolment(&spec, now),
        };
        let until = expires.or(enrolment.as_ref().map(|enrolment| enrolment.expires));
        spec.enrolment = enrolment.as_ref().map(|enrolment| Arc::clone(&enrolment.id));
        let ended = match (until.filter(|until| *until > now), enrolment) {
            (Some(_), Some(_)) => None,
            (None, _) => Some("its enrolment expired while the sidecar was not running"),
            (Some(_), None) => Some("its enrolment was ended"),
        };
        if let Some(why) = ended {
            tracing::info!(sandbox = key.name, grant = %key.grant, why, "a stored attachment is over and was removed");
            self.remove_record(key).await;
            return;
        }
        spec.expires = until;
        if let Err(error) = self.start(spec, Lifetime::Detached, History::Attached) {
            let why = error_chain(&error);
            tracing::error!(sandbox = key.name, why, "a stored attachment was not started");
        }
    }

    /// The valid enrolment of a stored attachment, if there is one.
    fn find_enrolment(&self, spec: &AttachmentSpec, now: SystemTime) -> Option<Enrolment> {
        // A sandbox that dials out is enrolled by its key.
        let kind = match spec.via {
            Route::DialOut => EnrolmentKind::Key,
            Route::Preview | Route::Ssh => EnrolmentKind::Attached,
        };
        let valid = self.daemon.enrolments.list(now).into_iter();
        let mut matching = valid.filter(|(enrolment, enrolment_kind)| {
            *enrolment_kind == kind
                && enrolment.grant == spec.grant
                && enrolment.name.as_deref() == Some(&spec.name)
        });
        matching.next().map(|(enrolment, _)| enrolment)
    }

    /// Starts attachments that were added to the configuration, and ends those that were removed, changed, or are not
    /// permitted any more.
    async fn apply_configuration(&self) {
        let config = self.daemon.context.config.load_full();
        let mut permitted: Vec<Arc<AttachmentSpec>> = Vec::new();
        for entry in self.daemon.attachments.table.all() {
            let AttachmentSpec { platform, grant, name, .. } = &*entry.spec;
            if matches!(entry.status.borrow().state, AttachmentState::Over { .. }) {
                continue;
            }
            if config.platforms.get(platform).is_some_and(|platform| !platform.permits(grant)) {
                tracing::warn!(sandbox = name, %grant, %platform, "the platform is not for this grant any more: its attachment is ended");
            } else if permitted.iter().any(|other| other.has_same_sandbox(&entry.spec, &config.platforms)) {
                tracing::warn!(sandbox = name, %platform, "another attachment has the same sandbox, since both platforms have the same address now: this one is ended");
            } else {
                permitted.push(Arc::clone(&entry.spec));
                continue;
            }
            let _ = self.end(&entry.spec.key(), EndReason::Configuration).await;
        }
        let wanted: Vec<AttachmentSpec> = config
            .attachments
            .iter()
            .map(|(name, attachment)| AttachmentSpec::configured(name, attachment))
            .collect();
        for entry in self.daemon.attachments.table.configured() {
            let is_over = matches!(entry.status.borrow().state, AttachmentState::Over { .. });
            if is_over || !wanted.contains(&entry.spec) {
                // Failures are logged where they occur.
                let _ = self.end(&entry.spec.key(), EndReason::Configuration).await;
                self.daemon.attachments.table.remove(&entry);
            }
        }
        for spec in wanted {
            if self.daemon.attachments.table.find(&spec.key()).is_some_and(|entry| *entry.spec == spec) {
                continue;
            }
            let name = spec.name.clone();
            if let Err(error) = self.start(spec, Lifetime::Configured, History::NeverAttached) {
                tracing::error!(
                    sandbox = name,
                    why = error_chain(&error),
                    "a configured attachment was not started"
                );
            }
        }
    }
}
