//! The task that keeps one secret of a session valid: it renews the lease or reads the secret again before it expires,
//! whether or not a caller needs it.
//!
//! What must stay true: a task reads under the same lock as callers, and does not repeat a read that a caller has just made;
//! it creates no new credential while every server that uses the secret keeps its first value (`replace = "never"`); it
//! ends when its source cancels [`Source::renewal_stop`] (for Vault: with the session's last link); it holds the store
//! weakly, so it keeps no session alive.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::renewal::{Failure, Renewable, RenewalEvent, RenewalSchedule, Terms, run_renewal};
use super::source::{Requester, Source, Validity};
use super::store::{ReadRequest, Reading, RenewalStatus, RenewalTask, SecretEntry, Store};

/// Passes the terms of a caller's read on to the secret's task; starts the task if none is running.
pub(super) fn start_or_update(
    store: &Arc<Store>,
    tasks: &TaskTracker,
    source: &dyn Source,
    entry: &mut SecretEntry,
    request: ReadRequest,
    terms: Terms,
) {
    let request = ReadRequest { requester: Requester::RenewalTask, ..request };
    if let Some(task) = entry.renewal_task.as_mut().filter(|task| task.is_running()) {
        task.request = request;
        task.terms.send_replace(terms);
        return;
    }
    let Some(material) = &entry.material else { return };
    let (sender, receiver) = watch::channel(terms);
    let stop = source.renewal_stop();
    let renewed_secret = RenewedSecret {
        store: Arc::downgrade(store),
        secret: request.spec.name.clone(),
        terms: receiver,
        changes: material.hold().changes(),
        handled: 0,
    };
    entry.renewal_task = Some(RenewalTask { request, terms: sender, stop: stop.clone() });
    tasks.spawn(async move { stop.run_until_cancelled(run_renewal(renewed_secret, terms)).await });
}

/// One secret of a session, as [`run_renewal`] drives it.
struct RenewedSecret {
    store: Weak<Store>,
    secret: Name,
    /// The terms of the values that callers have read.
    terms: watch::Receiver<Terms>,
    /// Counts the events that may have changed the lease's validity, such as a new login; see
    /// [`Hold::changes`](super::source::Hold::changes).
    changes: watch::Receiver<u64>,
    /// The value of `changes` that was last reported as superseded.
    handled: u64,
}

impl Renewable for RenewedSecret {
    async fn read(&mut self) -> Result<Terms, Failure> {
        let store = self.store.upgrade().ok_or_else(session_ended)?;
        let entry = store.entry(&self.secret);
        let mut entry = entry.lock().await;
        if self.terms.has_changed().unwrap_or_default() {
            return Ok(*self.terms.borrow_and_update());
        }
        let task = entry.renewal_task.as_ref().ok_or_else(|| later("the secret has no renewal task"))?;
        let request = task.request.clone();
        if request.spec.origin.makes_credentials() && !store.uses.wants_new_value(&self.secret) {
            return Err(Failure::Unwanted);
        }
        let source = store.source(&request.spec).map_err(|error| later(error.cause))?;
        let is_usable = entry.material.as_ref().is_some_and(|held| held.is_usable());
        let recent = entry.failure.as_ref().filter(|failure| failure.next_attempt > Instant::now());
        if let Some(failure) = recent.filter(|_| !is_usable) {
            // A caller has just tried and failed.
            let not_before = Some(failure.next_attempt);
            return Err(Failure::Later { why: failure.explained(), not_before });
        }
        match store.read_from(source, &mut entry, &request).await {
            Ok((_, terms)) => Ok(terms),
            Err(error) => Err(match error.failure() {
                Some(failure) => Failure::Later { why: failure.explained(), not_before: failure.not_before },
                None => {
                    let why = error.cause.to_string();
                    tracing::warn!(secret = %self.secret, why, "a secret was read again, but its new content cannot be used");
                    Failure::Later { why, not_before: None }
                }
            }),
        }
    }

    async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
        let store = self.store.upgrade().ok_or_else(session_ended)?;
        let entry = store.entry(&self.secret);
        let entry = entry.lock().await;
        if self.terms.has_changed().unwrap_or_default() {
            return Ok(*self.terms.borrow_and_update());
        }
        let material = entry.material.as_ref().ok_or_else(|| later("the secret has no value to renew"))?;
        let renewed = material.hold().renew(increment).await;
        match &renewed {
            Ok(terms) => material.extend(terms),
            Err(failure) => {
                tracing::info!(secret = %self.secret, why = failure.why(), "renewing a lease failed");
                if let Failure::Gone { .. } = failure {
                    material.expire();
                }
            }
        }
        renewed
    }

    async fn check(&mut self) -> Result<(), Failure> {
        let store = self.store.upgrade().ok_or_else(session_ended)?;
        let newest = store.newest();
        let Some(material) = newest.get(&self.secret) else { return Ok(()) };
        let checked = material.hold().check().await;
        if let Err(Failure::Gone { why }) = &checked {
            tracing::warn!(secret = %self.secret, why, "a lease is gone");
            material.expire();
        }
        checked
    }

    async fn event(&mut self) -> RenewalEvent {
        loop {
            if let Some(event) = self.superseded_event() {
                return event;
            }
            tokio::select! {
                changed = self.terms.changed() => return match changed {
                    Ok(()) => RenewalEvent::Read(*self.terms.borrow_and_update()),
                    Err(_) => RenewalEvent::NoLongerNeeded,
                },
                changed = self.changes.changed() => if changed.is_err() {
                    return RenewalEvent::NoLongerNeeded;
                },
            }
        }
    }

    fn report(&mut self, schedule: &RenewalSchedule) {
        let Some(store) = self.store.upgrade() else { return };
        let origin = store.newest().get(&self.secret).map(|material| material.origin.clone());
        let status = RenewalStatus {
            origin: origin.unwrap_or_default(),
            renewals: schedule.renewals,
            last_error: schedule.last_error.clone(),
            next: schedule.plan().map(|plan| plan.at).filter(|_| !schedule.is_reading_suspended),
            reading: match schedule.is_reading_suspended {
                true => Reading::Suspended,
                false => Reading::Scheduled,
            },
        };
        store
            .renewal_statuses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(self.secret.clone(), status);
    }
}

impl RenewedSecret {
    /// The event that a new login superseded the lease's token. Each change is returned at most once.
    fn superseded_event(&mut self) -> Option<RenewalEvent> {
        let change = *self.changes.borrow_and_update();
        if change == self.handled {
            return None;
        }
        let store = self.store.upgrade()?;
        let newest = store.newest();
        let Validity::Superseded { ends_at } = newest.get(&self.secret)?.hold().validity() else {
            return None;
        };
        self.handled = change;
        Some(RenewalEvent::Superseded { ends_at })
    }
}

/// For a store that is gone. No later attempt is made: this task ends too, because `terms` was closed with the store.
fn session_ended() -> Failure {
    later("the session has ended")
}

fn later(why: impl ToString) -> Failure {
    Failure::Later { why: why.to_string(), not_before: None }
}
