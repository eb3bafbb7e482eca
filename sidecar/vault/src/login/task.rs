//! The task that keeps the login valid: it renews the token at two thirds of its lifetime, logs in again while the old
//! token is still valid, and backs off after failures.
//!
//! What must stay true: there is a pause between two requests; a renewal that succeeds without restoring the full lifetime
//! means that the token has reached its maximum, so the task logs in again; a token is used until it expires, whatever
//! fails meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_base::metrics::{self, Outcome};
use tokio::time::{Instant, sleep_until};

use super::backend::{GrantedToken, LoginBackend};
use super::timing::{self, LoginBackoff};
use super::{LoginToken, RetryableFailure, SharedLogin};
use crate::error::{Kind, VaultError};

/// A renewal that restores less than this fraction of the full lifetime has reached the maximum of the token.
const EXTENDED_FRACTION: f64 = 0.9;
/// After a failure with less than this fraction of the lifetime left, the next attempt is a login.
const LOGIN_BELOW_FRACTION: f64 = 0.25;
/// The least time between two verifications of a token that Vault refused.
const VERIFICATION_INTERVAL: Duration = Duration::from_secs(2);
/// The longest timer; a later action takes several.
const MAX_TIMER: Duration = Duration::from_secs(24 * 3600);
/// A file whose token is about to expire is read again at least this often.
const MAX_FILE_RECHECK_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct LoginTask<B> {
    backend: B,
    shared: Arc<SharedLogin>,
    held: Option<HeldLogin>,
    next: NextAction,
    /// When to verify a token that Vault refused.
    verify_at: Option<Instant>,
    backoff: LoginBackoff,
    generation: u64,
    last_attempt: Instant,
    last_verified: Option<Instant>,
    /// From `Retry-After`: no request is sent before this.
    not_before: Instant,
}

struct HeldLogin {
    token: Arc<LoginToken>,
    /// The lifetime that it was issued for.
    full_lifetime: Duration,
}

#[derive(Clone, Copy, Debug)]
struct NextAction {
    action: Action,
    at: Instant,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    LogIn,
    Renew,
}

impl<B: LoginBackend> LoginTask<B> {
    pub(super) fn new(backend: B, shared: Arc<SharedLogin>) -> Self {
        let now = Instant::now();
        Self {
            backend,
            shared,
            held: None,
            next: NextAction { action: Action::LogIn, at: now },
            verify_at: None,
            backoff: LoginBackoff::default(),
            generation: 0,
            last_attempt: now,
            last_verified: None,
            not_before: now,
        }
    }

    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        stop.run_until_cancelled(async {
            loop {
                self.wait().await;
                let now = Instant::now();
                if self.verify_at.take_if(|at| *at <= now).is_some() {
                    self.last_verified = Some(now);
                    self.verify().await;
                    continue;
                }
                self.last_attempt = now;
                match self.next.action {
                    Action::LogIn => self.log_in().await,
                    Action::Renew => self.renew().await,
                }
            }
        })
        .await;
    }

    /// Waits until the next action is due; shorter if a caller waits for a token, or reported a refusal.
    async fn wait(&mut self) {
        loop {
            self.schedule_verification();
            let now = Instant::now();
            let mut at = self.next.at;
            let is_awaited = self.shared.waiting.load(Ordering::Acquire) > 0;
            if is_awaited && !self.held.as_ref().is_some_and(|held| held.token.is_live()) {
                at = at.min(self.last_attempt + timing::MAX_DELAY_WITH_WAITERS).max(self.not_before);
            }
            at = at.min(self.verify_at.unwrap_or(at));
            if at <= now {
                return;
            }
            tokio::select! {
                () = sleep_until(at.min(now + MAX_TIMER)) => {}
                () = self.shared.wake.notified() => {}
            }
        }
    }

    fn schedule_verification(&mut self) {
        let refused_generation = self.shared.refused_generation.swap(0, Ordering::AcqRel);
        if self.held.as_ref().is_some_and(|held| held.token.generation == refused_generation) {
            let now = Instant::now();
            let at = self
                .last_verified
                .map_or(now, |last| now.max(last + VERIFICATION_INTERVAL))
                .max(self.not_before);
            self.verify_at.get_or_insert(at);
        }
    }

    async fn log_in(&mut self) {
        let granted = self.backend.log_in().await;
        metrics::vault().count_login(Outcome::of(&granted));
        match granted {
            Ok(granted) => self.accept(granted),
            Err(error) => self.fail(Action::LogIn, error),
        }
    }

    async fn renew(&mut self) {
        let Some(HeldLogin { token, full_lifetime }) = self.held.as_ref() else {
            return self.schedule_now(Action::LogIn);
        };
        let full_lifetime = *full_lifetime;
        let renewed = self.backend.renew(token, full_lifetime).await;
        metrics::vault().count_login_renewal(Outcome::of(&renewed));
        match renewed {
            Ok(granted) => {
                self.backoff.reset();
                let lifetime = granted.lifetime;
                let is_extended = lifetime.is_zero()
                    || lifetime.as_secs_f64() >= full_lifetime.as_secs_f64() * EXTENDED_FRACTION;
                let renewed = LoginToken { generation: self.generation, ..granted.into_token(0) };
                self.publish(renewed, full_lifetime.max(lifetime));
                match is_extended {
                    true => self.schedule_renewal(lifetime),
                    false => {
                        tracing::info!(
                            ?lifetime,
                            ?full_lifetime,
                            "the login's Vault token has reached its maximum lifetime; logging in again"
                        );
                        self.schedule_now(Action::LogIn);
                    }
                }
            }
            // Revoked, or not renewable: both need a new login.
            Err(error)
                if matches!(error.kind(), Kind::Denied | Kind::Gone | Kind::Invalid | Kind::Missing) =>
            {
                tracing::info!(why = %error.problem, "the login's Vault token cannot be renewed; logging in again");
                self.schedule_now(Action::LogIn);
            }
            Err(error) => self.fail(Action::Renew, error),
        }
    }

    async fn verify(&mut self) {
        let Some(held) = self.held.as_ref() else { return };
        // If the token is valid, or that is unknown, the next action stays.
        if let Err(error) = self.backend.verify(&held.token).await
            && matches!(error.kind(), Kind::Denied | Kind::Gone | Kind::Missing)
        {
            tracing::warn!("the login's Vault token was revoked early; logging in again");
            self.held = None;
            self.shared.discard_current();
            self.schedule_now(Action::LogIn);
        }
    }

    /// Publishes the token of a successful login and schedules what is next.
    fn accept(&mut self, granted: GrantedToken) {
        self.backoff.reset();
        let lifetime = granted.lifetime;
        let is_the_same = self.held.as_ref().is_some_and(|held| held.token.token.is_same_as(&granted.token));
        if !is_the_same {
            self.generation += 1;
        }
        let token = granted.into_token(self.generation);
        let full_lifetime = match &self.held {
            Some(held) if is_the_same => held.full_lifetime.max(lifetime),
            _ => lifetime,
        };
        let generation = self.generation;
        self.publish(token, full_lifetime);
        if is_the_same
            && !lifetime.is_zero()
            && lifetime.as_secs_f64() < full_lifetime.as_secs_f64() * EXTENDED_FRACTION
        {
            // The token of a file that was not replaced yet.
            tracing::warn!(left = ?lifetime, "the Vault token in the file is about to expire: replace it");
            let wait = (lifetime / 3).clamp(timing::MIN_DELAY, MAX_FILE_RECHECK_INTERVAL);
            self.next = NextAction { action: Action::LogIn, at: Instant::now() + wait };
            return;
        }
        tracing::info!(generation, ?lifetime, "logged in to Vault");
        self.schedule_renewal(lifetime);
    }

    fn publish(&mut self, token: LoginToken, full_lifetime: Duration) {
        let token = Arc::new(token);
        self.shared.publish(token.clone());
        self.held = Some(HeldLogin { token, full_lifetime });
    }

    fn fail(&mut self, action: Action, error: VaultError) {
        let mut wait = self.backoff.next_delay();
        let mut action = action;
        if let Some(held) = &self.held
            && let Some(left) = held.left().filter(|left| !left.is_zero())
        {
            wait = timing::shortened_before_expiry(wait, left);
            if left.as_secs_f64() < held.full_lifetime.as_secs_f64() * LOGIN_BELOW_FRACTION {
                action = Action::LogIn;
            }
        } else {
            action = Action::LogIn;
        }
        let now = Instant::now();
        if let Kind::Busy { retry_after } = error.kind() {
            self.not_before = now + timing::retry_pause(retry_after);
        }
        let at = (now + wait).max(self.not_before);
        tracing::warn!(request = %error.request, why = %error.problem, next_step = error.next_step(), wait = ?(at - now), "the login to Vault or its renewal failed");
        self.next = NextAction { action, at };
        self.shared.publish_failure(RetryableFailure { error, next_attempt: at });
    }

    /// Schedules the renewal, or a login if the token is not renewable.
    fn schedule_renewal(&mut self, lifetime: Duration) {
        let now = Instant::now();
        let Some(held) = &self.held else { return };
        let action = if held.token.renewable { Action::Renew } else { Action::LogIn };
        let at = match lifetime.is_zero() {
            true => now + MAX_TIMER * 365,
            false => timing::renew_at(now, held.left().unwrap_or(lifetime)),
        };
        self.next = NextAction { action, at };
    }

    fn schedule_now(&mut self, action: Action) {
        let at = (self.last_attempt + timing::MIN_DELAY).max(self.not_before);
        self.next = NextAction { action, at };
    }
}

impl HeldLogin {
    /// `None`: the token does not expire.
    fn left(&self) -> Option<Duration> {
        self.token.expires.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

impl GrantedToken {
    fn into_token(self, generation: u64) -> LoginToken {
        LoginToken {
            token: self.token,
            accessor: self.accessor,
            expires: self.expires,
            renewable: self.renewable,
            policies: self.policies,
            generation,
        }
    }
}
