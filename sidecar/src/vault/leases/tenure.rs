//! What to do next about one credential, and when. It has no clock and no chance of its own: who asks says the time, and
//! gives a number from 0 to 1 that keeps many from acting together.

use std::time::Duration;

use tokio::time::Instant;

use super::terms::{Class, Terms, before_the_end};

/// Between two requests for one credential.
pub(super) const SHORTEST: Duration = Duration::from_millis(500);
/// Between two tries that fail.
const LONGEST: Duration = Duration::from_secs(60);
/// Between two tries once there is nothing left to lose: whoever needs it tries by himself meanwhile.
const AFTER_THE_END: Duration = Duration::from_secs(5);
/// A renewal that gives less than this part of the full life back does not extend.
const EXTENDED: f64 = 0.9;
/// How much of a wait is left to chance.
const SPREAD: f64 = 0.1;
/// How much of the time that an old login has left is used to read everything anew.
const OVERLAP: f64 = 0.75;
/// The same where it has no end.
const ENDLESS_OVERLAP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Act {
    Read,
    Renew,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Plan {
    pub act: Act,
    pub at: Instant,
}

/// One credential from when it was read until it is read anew.
#[derive(Clone, Debug)]
pub struct Tenure {
    terms: Terms,
    /// What it was given when it was new.
    full_life: Option<Duration>,
    plan: Option<Plan>,
    failures: u32,
    pub renewals: u64,
    pub last_error: Option<String>,
}

impl Tenure {
    /// It was read just now.
    pub fn new(terms: Terms, chance: f64) -> Self {
        let mut tenure =
            Self { terms, full_life: terms.life, plan: None, failures: 0, renewals: 0, last_error: None };
        tenure.plan_anew(chance);
        tenure
    }

    /// None where it needs nothing.
    pub fn plan(&self) -> Option<Plan> {
        self.plan
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// How long it was given at first: what a renewal asks for.
    pub fn full_life(&self) -> Option<Duration> {
        self.full_life
    }

    /// Vault renewed it, perhaps for less than was asked for.
    pub fn renewed(&mut self, terms: Terms, now: Instant, chance: f64) {
        self.terms = terms;
        self.renewals += 1;
        self.succeeded();
        let full = self.full_life.unwrap_or_default();
        let is_extended = terms.life.is_none_or(|life| life.as_secs_f64() >= full.as_secs_f64() * EXTENDED);
        self.full_life = self.full_life.max(terms.life);
        match is_extended {
            true => self.plan_anew(chance),
            false => self.plan = Some(Plan { act: Act::Read, at: now }),
        }
    }

    /// There is nothing to renew, or it may not be.
    pub fn refused(&mut self, why: String, now: Instant) {
        self.last_error = Some(why);
        self.plan = Some(Plan { act: Act::Read, at: now });
    }

    /// It is tried again, some times before the end of what is held; not before Vault said.
    pub fn failed(&mut self, act: Act, why: String, not_before: Option<Instant>, now: Instant, chance: f64) {
        self.last_error = Some(why);
        let wait = SHORTEST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let wait = wait.mul_f64(1.0 + SPREAD * chance);
        let left = self.terms.end().map(|end| end.saturating_duration_since(now));
        let wait = match left {
            Some(Duration::ZERO) => wait.max(AFTER_THE_END),
            Some(left) => wait.min(left / 4).max(SHORTEST),
            None => wait,
        };
        let at = not_before.map_or(now + wait, |not_before| not_before.max(now + wait));
        // When it is time to read it anew, a renewal is no use any more.
        let act = match self.terms.due().is_some_and(|due| due <= at) {
            true => Act::Read,
            false => act,
        };
        self.plan = Some(Plan { act, at });
    }

    /// There is another login: what hangs from the one before ends `by` then, and is read anew before.
    pub fn turned(&mut self, by: Option<Instant>, now: Instant, chance: f64) {
        if !self.terms.class.is_leased() {
            return;
        }
        let overlap = by.map_or(ENDLESS_OVERLAP, |by| by.saturating_duration_since(now));
        let spread = now + overlap.mul_f64(OVERLAP * chance);
        let at = self.terms.due().map_or(spread, |due| due.min(spread));
        let at = match self.plan {
            Some(Plan { act: Act::Read, at: planned }) => at.min(planned),
            _ => at,
        };
        self.plan = Some(Plan { act: Act::Read, at: at.max(self.terms.asked_at + SHORTEST) });
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.last_error = None;
    }

    fn plan_anew(&mut self, chance: f64) {
        let Terms { class, asked_at, life, bound } = self.terms;
        let earlier = 1.0 - SPREAD * chance;
        let wait = match class {
            Class::Advised { every } | Class::Static { every } => Some((Act::Read, every.mul_f64(earlier))),
            Class::Renewable
                if bound.is_none_or(|bound| life.is_some_and(|life| asked_at + life < bound)) =>
            {
                life.map(|life| (Act::Renew, life.mul_f64(2.0 / 3.0 * earlier)))
            }
            Class::Renewable | Class::Fixed | Class::OwnEnd => self.terms.end().map(|end| {
                let life = end.saturating_duration_since(asked_at);
                (Act::Read, before_the_end(life).mul_f64(earlier))
            }),
        };
        self.plan = wait.map(|(act, wait)| Plan { act, at: asked_at + wait.max(SHORTEST) });
    }
}
