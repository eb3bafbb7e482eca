//! What to do next about one credential, and when. It has no clock and no randomness of its own: the caller passes the
//! time, and a number from 0 to 1 that spreads many credentials over time.

use std::time::Duration;

use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use tokio::time::Instant;

use super::terms::{Class, Terms, before_the_end};

/// Between two requests for one credential.
pub(super) const SHORTEST: Duration = Duration::from_millis(500);
/// The longest wait between two attempts that fail.
const LONGEST: Duration = Duration::from_secs(60);
/// Between two attempts once the credential has ended: callers that need it read it themselves meanwhile.
const AFTER_THE_END: Duration = Duration::from_secs(5);
/// A renewal that gives less than this part of the full life back does not extend.
const EXTENDED: f64 = 0.9;
/// How much of a wait is random.
const SPREAD: f64 = 0.1;
/// How much of the time that an old login has left is used to read everything anew.
const OVERLAP: f64 = 0.75;
/// The same where it has no end.
const ENDLESS_OVERLAP: Duration = Duration::from_secs(60);
/// Into so many parts looks divide the life of a lease that cannot be renewed,
const LOOKS: u32 = 3;
/// but there is this much between two of them, at least
const SOONEST_LOOK: Duration = Duration::from_secs(10);
/// and at most; those that are renewed are looked at no more often than that.
const LATEST_LOOK: Duration = Duration::from_secs(5 * 60);
/// How much of the wait for a look-up is random: none has to come at a certain time.
const LOOK_SPREAD: f64 = 0.5;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Act {
    /// Check whether it still exists: it may have been revoked in Vault.
    Look,
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
pub struct RenewalSchedule {
    terms: Terms,
    /// What it was given when it was new.
    full_life: Option<Duration>,
    plan: Option<Plan>,
    /// When it is looked at, if nothing else is done before.
    look: Option<Instant>,
    retry: JitteredBackoff,
    pub renewals: u64,
    pub last_error: Option<String>,
}

impl RenewalSchedule {
    /// It was read just now.
    pub fn new(terms: Terms, chance: f64) -> Self {
        let mut schedule = Self {
            terms,
            full_life: terms.life,
            plan: None,
            look: None,
            retry: Backoff::new(SHORTEST, LONGEST).with_jitter(Jitter::Later(SPREAD)),
            renewals: 0,
            last_error: None,
        };
        schedule.plan_anew(chance);
        schedule
    }

    /// What is to be done to keep it. None where it needs nothing.
    pub fn plan(&self) -> Option<Plan> {
        self.plan
    }

    /// What is to be done next: that, or a look before.
    pub fn next(&self) -> Option<Plan> {
        let look = self.look.map(|at| Plan { act: Act::Look, at });
        look.filter(|look| self.plan.is_some_and(|plan| look.at < plan.at)).or(self.plan)
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

    /// It is still there, as far as could be seen.
    pub fn looked(&mut self, now: Instant, chance: f64) {
        self.look = self.look_every().map(|every| now + every.mul_f64(1.0 - LOOK_SPREAD * chance));
    }

    /// There is nothing to renew, or it may not be.
    pub fn refused(&mut self, why: String, now: Instant) {
        self.last_error = Some(why);
        self.look = None;
        self.plan = Some(Plan { act: Act::Read, at: now });
    }

    /// It is tried again, some times before the end of what is held; not before Vault said.
    pub fn failed(&mut self, act: Act, why: String, not_before: Option<Instant>, now: Instant, chance: f64) {
        self.last_error = Some(why);
        // A source that fails is not asked for look-ups too.
        self.look = None;
        let wait = self.retry.next_delay(chance);
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

    /// What it depends on was superseded (a new login): the credential ends `by` then, and is read again before.
    pub fn superseded(&mut self, by: Option<Instant>, now: Instant, chance: f64) {
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
        self.retry.reset();
        self.last_error = None;
    }

    /// Only what depends on a token can have been revoked.
    fn look_every(&self) -> Option<Duration> {
        match self.terms.class {
            Class::Fixed => self.terms.life.map(|life| (life / LOOKS).clamp(SOONEST_LOOK, LATEST_LOOK)),
            Class::Renewable => Some(LATEST_LOOK),
            Class::Advised { .. } | Class::OwnEnd | Class::Static { .. } => None,
        }
    }

    fn plan_anew(&mut self, chance: f64) {
        let Terms { class, asked_at, life, bound } = self.terms;
        self.looked(asked_at, chance);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn terms(class: Class, life: Option<Duration>) -> Terms {
        Terms { class, asked_at: Instant::now(), life, bound: None }
    }

    fn planned(schedule: &RenewalSchedule) -> (Act, f64) {
        let plan = schedule.plan().unwrap();
        (plan.act, (plan.at - schedule.terms.asked_at).as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn each_class_has_its_plan() {
        let every = 5 * MINUTE;
        let hour = Some(60 * MINUTE);
        for (class, life, act, latest) in [
            (Class::Renewable, hour, Act::Renew, 2400.0),
            (Class::Fixed, hour, Act::Read, 3060.0),
            (Class::OwnEnd, hour, Act::Read, 3060.0),
            (Class::Advised { every }, None, Act::Read, 300.0),
            (Class::Static { every }, None, Act::Read, 300.0),
        ] {
            assert_eq!(planned(&RenewalSchedule::new(terms(class, life), 0.0)), (act, latest), "{class:?}");
            let earliest = planned(&RenewalSchedule::new(terms(class, life), 0.999)).1;
            assert!(earliest > latest * 0.9 && earliest < latest * 0.91, "{class:?}: {earliest}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_looked_at_now_and_then_until_something_else_is_due() {
        let day = 24 * 60 * MINUTE;
        let looks = |class, life: Duration| -> Vec<u64> {
            let mut schedule = RenewalSchedule::new(terms(class, Some(life)), 0.0);
            let mut looks = Vec::new();
            while let Some(Plan { act: Act::Look, at }) = schedule.next() {
                looks.push((at - schedule.terms.asked_at).as_secs());
                schedule.looked(at, 0.0);
            }
            assert_eq!(schedule.next(), schedule.plan());
            looks
        };
        assert_eq!(looks(Class::Fixed, 10 * MINUTE), [200, 400]);
        assert_eq!(looks(Class::Fixed, Duration::from_secs(24)), [10]);
        assert!(looks(Class::Fixed, Duration::from_secs(12)).is_empty());
        assert!(looks(Class::Renewable, 5 * MINUTE).is_empty());
        assert_eq!(looks(Class::Renewable, 15 * MINUTE), [300]);
        for class in [Class::Fixed, Class::Renewable] {
            assert!(looks(class, day).len() < 250, "no more often than every five minutes");
        }
        for class in [Class::OwnEnd, Class::Static { every: day }, Class::Advised { every: day }] {
            assert!(looks(class, day).is_empty());
        }
        // Nor while Vault does not do what it is asked for, or once it is known to be gone.
        let mut schedule = RenewalSchedule::new(terms(Class::Fixed, Some(day)), 0.0);
        let asked_not_before = Some(Instant::now() + day);
        schedule.failed(Act::Read, "busy".into(), asked_not_before, Instant::now(), 0.0);
        assert_eq!(schedule.next().map(|plan| Some(plan.at)), Some(asked_not_before));
        let mut schedule = RenewalSchedule::new(terms(Class::Fixed, Some(day)), 0.0);
        schedule.refused("gone".into(), Instant::now() + MINUTE * 10);
        assert_eq!(schedule.next().map(|plan| plan.act), Some(Act::Read));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_needs_nothing_and_what_has_no_time_is_not_spun_on() {
        assert_eq!(RenewalSchedule::new(terms(Class::OwnEnd, None), 0.5).plan(), None);
        assert_eq!(RenewalSchedule::new(terms(Class::Renewable, None), 0.5).plan(), None);
        for class in [Class::Renewable, Class::Fixed, Class::OwnEnd, Class::Static { every: Duration::ZERO }]
        {
            for life in [Duration::ZERO, Duration::from_millis(1)] {
                let (_, wait) = planned(&RenewalSchedule::new(terms(class, Some(life)), 0.9));
                assert_eq!(wait, SHORTEST.as_secs_f64(), "{class:?}");
            }
        }
        // A hundred years, as far as a clock counts here.
        let years = Duration::from_secs(10 * 365 * 24 * 3600);
        assert_eq!(planned(&RenewalSchedule::new(terms(Class::Renewable, Some(years)), 0.0)).0, Act::Renew);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_does_not_extend_is_the_beginning_of_the_end() {
        let mut schedule = RenewalSchedule::new(terms(Class::Renewable, Some(MINUTE)), 0.0);
        tokio::time::advance(Duration::from_secs(40)).await;
        schedule.renewed(terms(Class::Renewable, Some(MINUTE)), Instant::now(), 0.0);
        assert_eq!(planned(&schedule), (Act::Renew, 40.0));
        tokio::time::advance(Duration::from_secs(40)).await;
        schedule.renewed(terms(Class::Renewable, Some(Duration::from_secs(50))), Instant::now(), 0.0);
        assert_eq!(planned(&schedule), (Act::Read, 0.0), "success or not");
        assert_eq!(schedule.renewals, 2);
        schedule.renewed(terms(Class::Renewable, Some(Duration::ZERO)), Instant::now(), 0.0);
        assert_eq!(planned(&schedule), (Act::Read, 0.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_its_token_cuts_off_is_not_renewed_but_replaced() {
        let cut = |life: u64, bound: u64| {
            let terms = terms(Class::Renewable, Some(Duration::from_secs(life)));
            let bound = Some(terms.asked_at + Duration::from_secs(bound));
            planned(&RenewalSchedule::new(Terms { bound, ..terms }, 0.0))
        };
        assert_eq!(cut(60, 6), (Act::Read, 4.0));
        assert_eq!(cut(60, 61), (Act::Renew, 40.0));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_before_the_end_and_slower_after_it() {
        let start = Instant::now();
        let mut schedule = RenewalSchedule::new(terms(Class::Renewable, Some(MINUTE)), 0.0);
        let mut tries = Vec::new();
        while start.elapsed() < 10 * MINUTE {
            let plan = schedule.plan().unwrap();
            tokio::time::sleep_until(plan.at).await;
            tries.push((start.elapsed(), plan.act));
            schedule.failed(plan.act, "sealed".into(), None, Instant::now(), 0.5);
        }
        let gaps: Vec<Duration> = tries.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.iter().all(|gap| (SHORTEST..=LONGEST * 2).contains(gap)), "{gaps:?}");
        let before: Vec<_> = tries.iter().filter(|(at, _)| *at < MINUTE).collect();
        assert!((6..20).contains(&before.len()), "{tries:?}");
        assert_eq!(before.last().unwrap().1, Act::Read, "at last it is not renewed any more: {tries:?}");
        assert!(tries.len() - before.len() < 25, "{tries:?}");
        assert_eq!(schedule.last_error.as_deref(), Some("sealed"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_vault_is_not_asked_before_the_time_it_gave() {
        let mut schedule = RenewalSchedule::new(terms(Class::Fixed, Some(MINUTE)), 0.0);
        let not_before = Instant::now() + Duration::from_secs(17);
        schedule.failed(Act::Read, "busy".into(), Some(not_before), Instant::now(), 0.0);
        assert_eq!(schedule.plan().unwrap().at, not_before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_that_turned_moves_what_hangs_from_it_and_nothing_else() {
        let now = Instant::now();
        let by = Some(now + Duration::from_secs(100));
        let turned = |class, life, chance| {
            let mut schedule = RenewalSchedule::new(terms(class, Some(life)), 0.0);
            schedule.superseded(by, now, chance);
            planned(&schedule)
        };
        let hour = 60 * MINUTE;
        assert_eq!(turned(Class::Renewable, hour, 0.4), (Act::Read, 30.0));
        assert_eq!(turned(Class::Fixed, hour, 1.0), (Act::Read, 75.0));
        assert_eq!(
            turned(Class::Fixed, Duration::from_secs(30), 1.0),
            (Act::Read, 20.0),
            "its own end is nearer"
        );
        assert_eq!(turned(Class::OwnEnd, hour, 0.4), (Act::Read, 3060.0));
    }
}
