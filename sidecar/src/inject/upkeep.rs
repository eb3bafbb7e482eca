//! Keeps a session's secrets of Vault's: a task for each, as long as the session has links, so that a credential is
//! renewed or read anew before its end and not when somebody needs it next.
//!
//! Must stay true: a task reads under the same lock as whoever needs the secret now, and not again what he has just
//! read; it ends with the session's last link, and holds no session back.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::credentials::{Credentials, Slot, goes_on};
use crate::metrics::{self, Outcome};
use crate::secret::{Life, Material, SecretError, SecretProblem, SecretSpec, SourceLimits};
use crate::vault::leases::{self, Class, Event, Failure, Source, Tenure, Terms};
use crate::vault::session::{Asker, SessionVault};
use crate::vault::{Kind, VaultError};

/// How a secret is read again.
#[derive(Clone)]
pub(super) struct How {
    pub(super) source: Arc<SecretSpec>,
    pub(super) secret_bytes: usize,
    pub(super) asker: Asker,
}

/// Who does it.
pub(super) struct Keeper {
    how: How,
    terms: watch::Sender<Terms>,
    /// It is over when this is cancelled.
    period: CancellationToken,
}

/// How the upkeep of a secret stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Note {
    origin: String,
    renewals: u64,
    last_error: Option<String>,
    next: Option<Instant>,
}

/// What a session has of one secret of Vault's, for people.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) secret: Name,
    /// For instance ``Vault's `database/creds/readonly` ``.
    pub(crate) origin: String,
    /// A hash of the lease's id, where there is a lease.
    pub(crate) lease: Option<String>,
    /// None where there is nothing yet, or what there is does not end.
    pub(crate) expires: Option<Instant>,
    /// Of this lease.
    pub(crate) renewals: u64,
    pub(crate) last_error: Option<String>,
    /// When it is renewed, read anew or tried again.
    pub(crate) next: Option<Instant>,
}

impl Credentials {
    /// What the session has of Vault's, or tried to have, by name.
    pub(crate) fn held(&self) -> Vec<Held> {
        let newest = self.newest();
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let held = notes.into_iter().map(|(secret, note)| {
            let material = newest.get(&secret);
            Held {
                lease: material.and_then(|material| material.lease.as_ref()?.hash.clone()),
                expires: material.and_then(|material| material.expires()),
                origin: note.origin,
                renewals: note.renewals,
                last_error: note.last_error,
                next: note.next,
                secret,
            }
        });
        held.collect()
    }

    /// Somebody who needed it has read it: whoever keeps it hears of that, or begins.
    pub(super) fn tend(self: &Arc<Self>, vault: &SessionVault, slot: &mut Slot, how: How, terms: Terms) {
        if let Some(keeper) = slot.keeper.as_mut().filter(|keeper| !keeper.period.is_cancelled()) {
            keeper.how = How { asker: Asker::Upkeep, ..how };
            keeper.terms.send_replace(terms);
            return;
        }
        let (sender, receiver) = watch::channel(terms);
        let period = vault.period();
        let tended = Tended {
            credentials: Arc::downgrade(self),
            secret: how.source.name.clone(),
            terms: receiver,
            logins: vault.logins(),
            told: 0,
        };
        let how = How { asker: Asker::Upkeep, ..how };
        slot.keeper = Some(Keeper { how, terms: sender, period: period.clone() });
        vault.tasks().spawn(async move { period.run_until_cancelled(leases::tend(tended, terms)).await });
    }

    pub(super) fn note_failure(&self, error: &SecretError) {
        let SecretProblem::Vault(trouble) = &error.cause else { return };
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let note = notes.entry(error.secret.clone()).or_default();
        note.origin.clone_from(&error.origin);
        note.last_error = Some(trouble.error.explained());
        note.next = Some(trouble.next);
    }
}

impl How {
    pub(super) fn new(source: &SecretSpec, limits: SourceLimits) -> Self {
        Self { source: Arc::new(source.clone()), secret_bytes: limits.bytes, asker: Asker::Caller }
    }
}

/// One secret, as the scheduler sees it.
struct Tended {
    credentials: Weak<Credentials>,
    secret: Name,
    terms: watch::Receiver<Terms>,
    logins: watch::Receiver<u64>,
    /// The generation of the login that the scheduler was told of.
    told: u64,
}

impl Source for Tended {
    async fn read(&mut self) -> Result<Terms, Failure> {
        let credentials = self.credentials.upgrade().ok_or_else(over)?;
        let slot = credentials.slot(&self.secret);
        let mut slot = slot.lock().await;
        if self.terms.has_changed().unwrap_or_default() {
            return Ok(*self.terms.borrow_and_update());
        }
        let how = slot.keeper.as_ref().map(|keeper| keeper.how.clone());
        let (Some(vault), Some(how)) = (credentials.vault(), how) else { return Err(over()) };
        let is_held = slot.material.as_ref().is_some_and(|held| goes_on(held, vault));
        if let Some(trouble) =
            slot.trouble.as_ref().filter(|trouble| !is_held && trouble.next > Instant::now())
        {
            // Somebody who needs it has just tried.
            return Err(Failure::Later { why: trouble.error.explained(), not_before: Some(trouble.next) });
        }
        match credentials.read_from_vault(vault, &mut slot, &how).await {
            Ok((_, terms)) => Ok(terms),
            Err(error) => Err(match &error.cause {
                SecretProblem::Vault(trouble) => later(&trouble.error),
                cause => {
                    tracing::warn!(secret = %self.secret, why = %cause, "a secret was read anew and cannot be used");
                    Failure::Later { why: cause.to_string(), not_before: None }
                }
            }),
        }
    }

    async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
        let credentials = self.credentials.upgrade().ok_or_else(over)?;
        let slot = credentials.slot(&self.secret);
        let slot = slot.lock().await;
        if self.terms.has_changed().unwrap_or_default() {
            return Ok(*self.terms.borrow_and_update());
        }
        let (Some(vault), Some(material)) = (credentials.vault(), &slot.material) else { return Err(over()) };
        let nothing = || Failure::Gone { why: "there is no lease".into() };
        let token = material.token().ok_or_else(nothing)?;
        let renewed = vault.renew_lease(token, increment).await;
        metrics::vault().renewal(Outcome::of(&renewed));
        match renewed {
            Ok(envelope) => {
                let terms = Terms {
                    class: Class::Renewable,
                    asked_at: envelope.asked_at,
                    life: Some(envelope.lease_duration),
                    bound: vault.bound(token),
                };
                extend(material, &terms);
                Ok(terms)
            }
            Err(error) => {
                tracing::info!(secret = %self.secret, why = error.explained(), "a lease was not renewed");
                let is_over = match error.kind() {
                    Kind::Gone => true,
                    Kind::Denied => vault.is_dead(token).await,
                    _ => false,
                };
                if is_over {
                    material.expire();
                }
                Err(match error.kind() {
                    Kind::Denied | Kind::Gone | Kind::Invalid | Kind::Missing => {
                        Failure::Gone { why: error.explained() }
                    }
                    _ => later(&error),
                })
            }
        }
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let credentials = self.credentials.upgrade().ok_or_else(over)?;
        let newest = credentials.newest();
        let material = newest.get(&self.secret);
        let lent = material.and_then(|material| Some((credentials.vault()?, material, material.token()?)));
        let Some((vault, material, token)) = lent else { return Ok(()) };
        if !vault.has_lost(token).await {
            return Ok(());
        }
        let why = "somebody else has revoked it";
        tracing::warn!(secret = %self.secret, why, "a lease is gone");
        material.expire();
        Err(Failure::Gone { why: why.into() })
    }

    async fn event(&mut self) -> Event {
        loop {
            if let Some(turned) = self.turned() {
                return turned;
            }
            tokio::select! {
                changed = self.terms.changed() => return match changed {
                    Ok(()) => Event::Read(*self.terms.borrow_and_update()),
                    Err(_) => Event::Over,
                },
                changed = self.logins.changed() => if changed.is_err() {
                    return Event::Over;
                },
            }
        }
    }

    fn note(&mut self, tenure: &Tenure) {
        let Some(credentials) = self.credentials.upgrade() else { return };
        let origin = credentials.newest().get(&self.secret).map(|material| material.origin.clone());
        let note = Note {
            origin: origin.unwrap_or_default(),
            renewals: tenure.renewals,
            last_error: tenure.last_error.clone(),
            next: tenure.plan().map(|plan| plan.at),
        };
        credentials.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(self.secret.clone(), note);
    }
}

impl Tended {
    /// Said once for each login.
    fn turned(&mut self) -> Option<Event> {
        let generation = *self.logins.borrow_and_update();
        if generation == self.told {
            return None;
        }
        let credentials = self.credentials.upgrade()?;
        let newest = credentials.newest();
        let token = newest.get(&self.secret)?.token()?;
        credentials.vault().filter(|vault| vault.is_of_a_former_login(token))?;
        self.told = generation;
        Some(Event::Turned { by: token.ends() })
    }
}

fn extend(material: &Material, terms: &Terms) {
    let read_with = material.life().read_with;
    material.extend(Life { read_with, ..Life::of(terms) });
}

/// A busy Vault says when.
fn later(error: &VaultError) -> Failure {
    let not_before = match error.kind() {
        Kind::Busy { retry_after: Some(asked) } => Some(Instant::now() + asked),
        _ => None,
    };
    Failure::Later { why: error.explained(), not_before }
}

fn over() -> Failure {
    Failure::Later { why: "the session is over".into(), not_before: None }
}
