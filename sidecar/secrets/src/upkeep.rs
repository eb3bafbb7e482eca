//! Keeps the secrets of a session that may change: a task for each renews or reads it before its end, and not only when
//! the next caller needs it.
//!
//! What must stay true: a task reads under the same lock as callers do, and not again what a caller has just read; it ends
//! with the period of its source (for Vault: with the session's last link), and keeps no session alive.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::renewal::{Event, Failure, Renewable, RenewalSchedule, Terms, run_renewal};
use super::source::{Asker, Source, Validity};
use super::store::{How, Keeper, Note, Slot, Store};

/// A session's view of one secret that may change, as `sessions` prints it.
#[derive(Clone, Debug)]
pub struct Held {
    pub secret: Name,
    /// For instance ``Vault's `database/creds/readonly` ``.
    pub origin: String,
    /// A hash of the lease's id, where there is a lease.
    pub lease: Option<String>,
    /// Whether anything was read, and is held without a lease: it cannot be revoked.
    pub unrevocable: bool,
    /// None where nothing was read yet, or what was read does not end.
    pub expires: Option<Instant>,
    /// Of this lease.
    pub renewals: u64,
    pub last_error: Option<String>,
    /// When it is renewed, read again or retried.
    pub next: Option<Instant>,
}

/// A caller has read the secret: its task hears of that, or is started.
pub(super) fn keep_renewed(
    store: &Arc<Store>,
    tasks: &TaskTracker,
    source: &dyn Source,
    slot: &mut Slot,
    how: How,
    terms: Terms,
) {
    let how = How { asker: Asker::Upkeep, ..how };
    if let Some(keeper) = slot.keeper.as_mut().filter(|keeper| keeper.is_running()) {
        keeper.how = how;
        keeper.terms.send_replace(terms);
        return;
    }
    let Some(material) = &slot.material else { return };
    let (sender, receiver) = watch::channel(terms);
    let period = source.period();
    let kept = KeptSecret {
        store: Arc::downgrade(store),
        secret: how.spec.name.clone(),
        terms: receiver,
        changes: material.hold().changes(),
        handled: 0,
    };
    slot.keeper = Some(Keeper { how, terms: sender, period: period.clone() });
    tasks.spawn(async move { period.run_until_cancelled(run_renewal(kept, terms)).await });
}

/// One secret, as the renewal loop sees it.
struct KeptSecret {
    store: Weak<Store>,
    secret: Name,
    terms: watch::Receiver<Terms>,
    /// Of the hold's validity.
    changes: watch::Receiver<u64>,
    /// The last of the changes that was reported to the loop.
    handled: u64,
}

impl Renewable for KeptSecret {
    async fn read(&mut self) -> Result<Terms, Failure> {
        let store = self.store.upgrade().ok_or_else(over)?;
        let slot = store.slot(&self.secret);
        let mut slot = slot.lock().await;
        if self.terms.has_changed().unwrap_or_default() {
            return Ok(*self.terms.borrow_and_update());
        }
        let how = slot.keeper.as_ref().map(|keeper| keeper.how.clone()).ok_or_else(over)?;
        let source = store.source(&how.spec).map_err(|_| over())?;
        let is_usable = slot.material.as_ref().is_some_and(|held| held.is_usable());
        let recent = slot.failure.as_ref().filter(|failure| failure.next_attempt > Instant::now());
        if let Some(failure) = recent.filter(|_| !is_usable) {
            // A caller that needs it has just tried.
            let not_before = Some(failure.next_attempt);
            return Err(Failure::Later { why: failure.detail.clone(), not_before });
        }
        match store.read_from(source, &mut slot, &how).await {
            Ok((_, terms)) => Ok(terms),
            Err(error) => Err(match error.failure() {
                Some(failure) => {
                    Failure::Later { why: failure.detail.clone(), not_before: failure.not_before }
                }
                None => {
                    let why = error.cause.to_string();
                    tracing::warn!(secret = %self.secret, why, "a secret was read again and cannot be used");
                    Failure::Later { why, not_before: None }
                }
            }),
        }
    }

    async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
        let store = self.store.upgrade().ok_or_else(over)?;
        let slot = store.slot(&self.secret);
        let slot = slot.lock().await;
        if self.terms.has_changed().unwrap_or_default() {
            return Ok(*self.terms.borrow_and_update());
        }
        let material = slot.material.as_ref().ok_or_else(over)?;
        let renewed = material.hold().renew(increment).await;
        match &renewed {
            Ok(terms) => material.extend(terms),
            Err(failure) => {
                tracing::info!(secret = %self.secret, why = failure.why(), "a lease was not renewed");
                if let Failure::Gone { .. } = failure {
                    material.expire();
                }
            }
        }
        renewed
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let store = self.store.upgrade().ok_or_else(over)?;
        let newest = store.newest();
        let Some(material) = newest.get(&self.secret) else { return Ok(()) };
        let checked = material.hold().check().await;
        if let Err(Failure::Gone { why }) = &checked {
            tracing::warn!(secret = %self.secret, why, "a lease is gone");
            material.expire();
        }
        checked
    }

    async fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.superseded() {
                return event;
            }
            tokio::select! {
                changed = self.terms.changed() => return match changed {
                    Ok(()) => Event::Read(*self.terms.borrow_and_update()),
                    Err(_) => Event::Over,
                },
                changed = self.changes.changed() => if changed.is_err() {
                    return Event::Over;
                },
            }
        }
    }

    fn note(&mut self, schedule: &RenewalSchedule) {
        let Some(store) = self.store.upgrade() else { return };
        let origin = store.newest().get(&self.secret).map(|material| material.origin.clone());
        let note = Note {
            origin: origin.unwrap_or_default(),
            renewals: schedule.renewals,
            last_error: schedule.last_error.clone(),
            next: schedule.plan().map(|plan| plan.at),
        };
        store.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(self.secret.clone(), note);
    }
}

impl KeptSecret {
    /// Reported once for each change.
    fn superseded(&mut self) -> Option<Event> {
        let change = *self.changes.borrow_and_update();
        if change == self.handled {
            return None;
        }
        let store = self.store.upgrade()?;
        let newest = store.newest();
        let Validity::Superseded { by } = newest.get(&self.secret)?.hold().validity() else { return None };
        self.handled = change;
        Some(Event::Superseded { by })
    }
}

fn over() -> Failure {
    Failure::Later { why: "the session is over".into(), not_before: None }
}
