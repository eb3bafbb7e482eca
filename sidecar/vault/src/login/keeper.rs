//! The task that keeps the login: renews at two thirds of a token's life, logs in anew while the old token still lives,
//! waits after failures.
//!
//! What must stay true: between two requests there is a pause; a renewal that Vault calls a success but that did not
//! give the full life back is taken for the beginning of the token's end; a token that is held is used until it is over,
//! whatever fails meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_base::metrics::{self, Outcome};
use tokio::time::{Instant, sleep_until};

use super::door::{Door, Granted};
use super::pace::{self, Pace};
use super::{LoginToken, Shared, Trouble};
use crate::error::{Kind, VaultError};

/// A renewal that gives less than this part of the full life back has met the token's maximum.
const EXTENDED: f64 = 0.9;
/// With less than this part of its life left, a token that cannot be renewed is replaced instead.
const LAST_PART: f64 = 0.25;
/// However often it is doubted.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// A timer is set no further ahead than this; then it is looked at again.
const FAR: Duration = Duration::from_secs(24 * 3600);
/// A file whose token is about to end is looked at again at least this often.
const NEXT_LOOK: Duration = Duration::from_secs(60);

pub(super) struct Keeper<D> {
    door: D,
    shared: Arc<Shared>,
    held: Option<Held>,
    plan: Plan,
    /// When to look whether a doubted token lives.
    look_at: Option<Instant>,
    pace: Pace,
    generation: u64,
    last_try: Instant,
    last_look: Option<Instant>,
    /// Vault asked not to be asked before.
    not_before: Instant,
}

struct Held {
    token: Arc<LoginToken>,
    /// What it was given when it was new.
    full_life: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    act: Act,
    at: Instant,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Act {
    LogIn,
    Renew,
}

impl<D: Door> Keeper<D> {
    pub(super) fn new(door: D, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self {
            door,
            shared,
            held: None,
            plan: Plan { act: Act::LogIn, at: now },
            look_at: None,
            pace: Pace::default(),
            generation: 0,
            last_try: now,
            last_look: None,
            not_before: now,
        }
    }

    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        stop.run_until_cancelled(async {
            loop {
                self.wait().await;
                let now = Instant::now();
                if self.look_at.take_if(|at| *at <= now).is_some() {
                    self.last_look = Some(now);
                    self.look().await;
                    continue;
                }
                self.last_try = now;
                match self.plan.act {
                    Act::LogIn => self.log_in().await,
                    Act::Renew => self.renew().await,
                }
            }
        })
        .await;
    }

    /// Until the plan is due; sooner for a caller that waits or was refused.
    async fn wait(&mut self) {
        loop {
            self.hear_doubt();
            let now = Instant::now();
            let mut at = self.plan.at;
            let is_awaited = self.shared.waiting.load(Ordering::Acquire) > 0;
            if is_awaited && !self.held.as_ref().is_some_and(|held| held.token.is_live()) {
                at = at.min(self.last_try + pace::WHILE_AWAITED).max(self.not_before);
            }
            at = at.min(self.look_at.unwrap_or(at));
            if at <= now {
                return;
            }
            tokio::select! {
                () = sleep_until(at.min(now + FAR)) => {}
                () = self.shared.wake.notified() => {}
            }
        }
    }

    fn hear_doubt(&mut self) {
        let doubted = self.shared.doubted.swap(0, Ordering::AcqRel);
        if self.held.as_ref().is_some_and(|held| held.token.generation == doubted) {
            let now = Instant::now();
            let at = self.last_look.map_or(now, |look| now.max(look + BETWEEN_LOOKS)).max(self.not_before);
            self.look_at.get_or_insert(at);
        }
    }

    async fn log_in(&mut self) {
        let granted = self.door.log_in().await;
        metrics::vault().login(Outcome::of(&granted));
        match granted {
            Ok(granted) => self.take(granted),
            Err(error) => self.fail(Act::LogIn, error),
        }
    }

    async fn renew(&mut self) {
        let Some(Held { token, full_life }) = self.held.as_ref() else { return self.plan_now(Act::LogIn) };
        let full_life = *full_life;
        let renewed = self.door.renew(token, full_life).await;
        metrics::vault().login_renewal(Outcome::of(&renewed));
        match renewed {
            Ok(granted) => {
                self.pace.succeeded();
                let life = granted.life;
                let is_extended = life.is_zero() || life.as_secs_f64() >= full_life.as_secs_f64() * EXTENDED;
                let renewed = LoginToken { generation: self.generation, ..granted.into_token(0) };
                self.hold(renewed, full_life.max(life));
                match is_extended {
                    true => self.plan_turn(life),
                    false => {
                        tracing::info!(
                            ?life,
                            ?full_life,
                            "the login's token meets its maximum; logging in anew"
                        );
                        self.plan_now(Act::LogIn);
                    }
                }
            }
            // Dead, or not allowed to be renewed: both need a new one.
            Err(error)
                if matches!(error.kind(), Kind::Denied | Kind::Gone | Kind::Invalid | Kind::Missing) =>
            {
                tracing::info!(why = %error.problem, "the login's token cannot be renewed; logging in anew");
                self.plan_now(Act::LogIn);
            }
            Err(error) => self.fail(Act::Renew, error),
        }
    }

    async fn look(&mut self) {
        let Some(held) = self.held.as_ref() else { return };
        // Where it is valid, or that cannot be known, the plan stays.
        if let Err(error) = self.door.look(&held.token).await
            && matches!(error.kind(), Kind::Denied | Kind::Gone | Kind::Missing)
        {
            tracing::warn!("the login's token is dead before its time; logging in anew");
            self.held = None;
            self.shared.bury();
            self.plan_now(Act::LogIn);
        }
    }

    /// A login worked.
    fn take(&mut self, granted: Granted) {
        self.pace.succeeded();
        let life = granted.life;
        let is_the_same = self.held.as_ref().is_some_and(|held| held.token.token.is_same_as(&granted.token));
        if !is_the_same {
            self.generation += 1;
        }
        let token = granted.into_token(self.generation);
        let full_life = match &self.held {
            Some(held) if is_the_same => held.full_life.max(life),
            _ => life,
        };
        let generation = self.generation;
        self.hold(token, full_life);
        if is_the_same && !life.is_zero() && life.as_secs_f64() < full_life.as_secs_f64() * EXTENDED {
            // A file that was not renewed yet.
            tracing::warn!(left = ?life, "the token of the file is about to end: put a new one there");
            let wait = (life / 3).clamp(pace::SHORTEST, NEXT_LOOK);
            self.plan = Plan { act: Act::LogIn, at: Instant::now() + wait };
            return;
        }
        tracing::info!(generation, ?life, "logged in to Vault");
        self.plan_turn(life);
    }

    fn hold(&mut self, token: LoginToken, full_life: Duration) {
        let token = Arc::new(token);
        self.shared.publish(token.clone());
        self.held = Some(Held { token, full_life });
    }

    fn fail(&mut self, act: Act, error: VaultError) {
        let mut wait = self.pace.failed();
        let mut act = act;
        if let Some(held) = &self.held
            && let Some(left) = held.left().filter(|left| !left.is_zero())
        {
            wait = pace::before_the_end(wait, left);
            if left.as_secs_f64() < held.full_life.as_secs_f64() * LAST_PART {
                act = Act::LogIn;
            }
        } else {
            act = Act::LogIn;
        }
        let now = Instant::now();
        if let Kind::Busy { retry_after } = error.kind() {
            self.not_before = now + pace::asked_for(retry_after);
        }
        let at = (now + wait).max(self.not_before);
        tracing::warn!(asked = %error.asked, why = %error.problem, next_step = error.next_step(), wait = ?(at - now), "Vault did not keep the login");
        self.plan = Plan { act, at };
        self.shared.fail(Trouble { error, next: at });
    }

    /// After a login or a full renewal.
    fn plan_turn(&mut self, life: Duration) {
        let now = Instant::now();
        let Some(held) = &self.held else { return };
        let act = if held.token.renewable { Act::Renew } else { Act::LogIn };
        let at = match life.is_zero() {
            true => now + FAR * 365,
            false => pace::turn(now, held.left().unwrap_or(life)),
        };
        self.plan = Plan { act, at };
    }

    fn plan_now(&mut self, act: Act) {
        let at = (self.last_try + pace::SHORTEST).max(self.not_before);
        self.plan = Plan { act, at };
    }
}

impl Held {
    /// None for ever.
    fn left(&self) -> Option<Duration> {
        self.token.expires.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

impl Granted {
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
