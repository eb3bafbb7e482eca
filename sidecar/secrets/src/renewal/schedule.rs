//! Decides what to do next about one credential, and when. The schedule has no clock and no randomness of its own: the
//! caller passes the time, and a `random` number from 0 to 1 that spreads the actions of many credentials over time.

use std::time::Duration;

use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use tokio::time::Instant;

use super::terms::{RenewalClass, Terms, read_again_after};

/// The shortest pause between two requests for one credential.
pub(super) const MIN_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause between two failed attempts.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(60);
/// The shortest pause between attempts after the credential expired: callers that need it read it themselves by then.
const RETRY_AFTER_EXPIRY: Duration = Duration::from_secs(5);
/// A renewal that grants less than this fraction of the full lifetime counts as not extended.
const EXTENDED_FRACTION: f64 = 0.9;
/// The largest random change of a wait, as a fraction: reads and renewals are earlier, retries later.
const JITTER: f64 = 0.1;
/// After a new login, leases of the old login are read again within this fraction of the time that it has left.
const OVERLAP_FRACTION: f64 = 0.75;
/// The time in which leases of the old login are read again if that login has no end.
const OVERLAP_WITHOUT_END: Duration = Duration::from_secs(60);
/// How often a lease that cannot be renewed is checked during its lifetime, within the two limits below.
const CHECKS_PER_LIFETIME: u32 = 3;
/// The shortest interval between two checks of a lease.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The longest interval between two checks of a lease; always used for renewable leases.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The random fraction of the wait for a check. Larger than [`JITTER`], since the exact time does not matter.
const CHECK_JITTER: f64 = 0.5;
/// How often a suspended read checks whether a server could take the new credential. That sends no request.
const SUSPENDED_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Check whether the lease still exists: it may have been revoked in Vault.
    Check,
    Read,
    Renew,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PlannedAction {
    pub action: Action,
    pub at: Instant,
}

/// The schedule of one credential, from one read to the next.
#[derive(Clone, Debug)]
pub struct RenewalSchedule {
    terms: Terms,
    /// The longest lifetime that was granted, which renewals request.
    full_lifetime: Option<Duration>,
    plan: Option<PlannedAction>,
    /// When to check the lease, unless `plan` is due earlier.
    next_check: Option<Instant>,
    retry: JitteredBackoff,
    pub renewals: u64,
    pub last_error: Option<String>,
    /// Whether a due read waits for a server that could take the new credential.
    pub is_reading_suspended: bool,
}

impl RenewalSchedule {
    /// The schedule of a credential that was just read.
    pub fn new(terms: Terms, random: f64) -> Self {
        let mut schedule = Self {
            terms,
            full_lifetime: terms.lifetime,
            plan: None,
            next_check: None,
            retry: Backoff::new(MIN_PAUSE, MAX_RETRY_PAUSE).with_jitter(Jitter::Later(JITTER)),
            renewals: 0,
            last_error: None,
            is_reading_suspended: false,
        };
        schedule.replan(random);
        schedule
    }

    /// The next read or renewal. `None` if the credential needs neither.
    pub fn plan(&self) -> Option<PlannedAction> {
        self.plan
    }

    /// What to do next: [`RenewalSchedule::plan`], or a check before it.
    pub fn next(&self) -> Option<PlannedAction> {
        let check = self.next_check.map(|at| PlannedAction { action: Action::Check, at });
        check.filter(|check| self.plan.is_some_and(|plan| check.at < plan.at)).or(self.plan)
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn full_lifetime(&self) -> Option<Duration> {
        self.full_lifetime
    }

    /// Records that the source renewed the credential, perhaps for less time than requested.
    pub fn renewed(&mut self, terms: Terms, now: Instant, random: f64) {
        self.terms = terms;
        self.renewals += 1;
        self.succeeded();
        let full = self.full_lifetime.unwrap_or_default();
        let is_extended = terms
            .lifetime
            .is_none_or(|lifetime| lifetime.as_secs_f64() >= full.as_secs_f64() * EXTENDED_FRACTION);
        self.full_lifetime = self.full_lifetime.max(terms.lifetime);
        match is_extended {
            true => self.replan(random),
            false => self.plan = Some(PlannedAction { action: Action::Read, at: now }),
        }
    }

    /// Records that a check found the lease, or could not be made.
    pub fn checked(&mut self, now: Instant, random: f64) {
        self.next_check = self.check_interval().map(|every| now + every.mul_f64(1.0 - CHECK_JITTER * random));
    }

    /// Plans a read at once: the credential is gone or cannot be renewed.
    pub fn refused(&mut self, why: String, now: Instant) {
        self.last_error = Some(why);
        self.next_check = None;
        self.plan = Some(PlannedAction { action: Action::Read, at: now });
    }

    /// Plans a retry of an action that failed: several times before the credential expires, but not before `not_before`.
    pub fn failed(
        &mut self,
        action: Action,
        why: String,
        not_before: Option<Instant>,
        now: Instant,
        random: f64,
    ) {
        self.last_error = Some(why);
        // No checks in addition to the retries of a source that fails.
        self.next_check = None;
        let wait = self.retry.next_delay(random);
        let left = self.terms.end().map(|end| end.saturating_duration_since(now));
        let wait = match left {
            Some(Duration::ZERO) => wait.max(RETRY_AFTER_EXPIRY),
            Some(left) => wait.min(left / 4).max(MIN_PAUSE),
            None => wait,
        };
        let at = not_before.map_or(now + wait, |not_before| not_before.max(now + wait));
        // If the credential is then due to be read again, it is too late for a renewal.
        let action = match self.terms.read_again_at().is_some_and(|due| due <= at) {
            true => Action::Read,
            false => action,
        };
        self.plan = Some(PlannedAction { action, at });
    }

    /// Plans a read because a new login superseded the token that the credential depends on. The token ends at
    /// `ends_at`; the credential is read again before that.
    pub fn superseded(&mut self, ends_at: Option<Instant>, now: Instant, random: f64) {
        if !self.terms.class.is_leased() {
            return;
        }
        let overlap = ends_at.map_or(OVERLAP_WITHOUT_END, |end| end.saturating_duration_since(now));
        let spread = now + overlap.mul_f64(OVERLAP_FRACTION * random);
        let at = self.terms.read_again_at().map_or(spread, |due| due.min(spread));
        let at = match self.plan {
            Some(PlannedAction { action: Action::Read, at: planned }) => at.min(planned),
            _ => at,
        };
        self.plan =
            Some(PlannedAction { action: Action::Read, at: at.max(self.terms.requested_at + MIN_PAUSE) });
    }

    /// No server could take a new credential. Whether that has changed is checked again after a while.
    pub fn suspend_reading(&mut self, now: Instant) {
        self.next_check = None;
        self.is_reading_suspended = true;
        self.plan = Some(PlannedAction { action: Action::Read, at: now + SUSPENDED_RECHECK_INTERVAL });
    }

    fn succeeded(&mut self) {
        self.retry.reset();
        self.last_error = None;
    }

    /// Only leases are checked: nothing else can be revoked.
    fn check_interval(&self) -> Option<Duration> {
        match self.terms.class {
            RenewalClass::Fixed => self.terms.lifetime.map(|lifetime| {
                (lifetime / CHECKS_PER_LIFETIME).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
            }),
            RenewalClass::Renewable => Some(MAX_CHECK_INTERVAL),
            RenewalClass::StatedInterval { .. } | RenewalClass::OwnExpiry | RenewalClass::Static { .. } => {
                None
            }
        }
    }

    /// Plans the next action after a read or a renewal.
    fn replan(&mut self, random: f64) {
        let Terms { class, requested_at, lifetime, token_expiry } = self.terms;
        self.checked(requested_at, random);
        let earlier = 1.0 - JITTER * random;
        let wait = match class {
            RenewalClass::StatedInterval { every } | RenewalClass::Static { every } => {
                Some((Action::Read, every.mul_f64(earlier)))
            }
            RenewalClass::Renewable
                if token_expiry.is_none_or(|token_expiry| {
                    lifetime.is_some_and(|lifetime| requested_at + lifetime < token_expiry)
                }) =>
            {
                lifetime.map(|lifetime| (Action::Renew, lifetime.mul_f64(2.0 / 3.0 * earlier)))
            }
            RenewalClass::Renewable | RenewalClass::Fixed | RenewalClass::OwnExpiry => {
                self.terms.end().map(|end| {
                    let lifetime = end.saturating_duration_since(requested_at);
                    (Action::Read, read_again_after(lifetime).mul_f64(earlier))
                })
            }
        };
        self.plan =
            wait.map(|(action, wait)| PlannedAction { action, at: requested_at + wait.max(MIN_PAUSE) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn terms(class: RenewalClass, lifetime: Option<Duration>) -> Terms {
        Terms { class, requested_at: Instant::now(), lifetime, token_expiry: None }
    }

    fn planned(schedule: &RenewalSchedule) -> (Action, f64) {
        let plan = schedule.plan().unwrap();
        (plan.action, (plan.at - schedule.terms.requested_at).as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn each_class_has_its_plan() {
        let every = 5 * MINUTE;
        let hour = Some(60 * MINUTE);
        for (class, lifetime, action, latest) in [
            (RenewalClass::Renewable, hour, Action::Renew, 2400.0),
            (RenewalClass::Fixed, hour, Action::Read, 3060.0),
            (RenewalClass::OwnExpiry, hour, Action::Read, 3060.0),
            (RenewalClass::StatedInterval { every }, None, Action::Read, 300.0),
            (RenewalClass::Static { every }, None, Action::Read, 300.0),
        ] {
            assert_eq!(
                planned(&RenewalSchedule::new(terms(class, lifetime), 0.0)),
                (action, latest),
                "{class:?}"
            );
            let earliest = planned(&RenewalSchedule::new(terms(class, lifetime), 0.999)).1;
            assert!(earliest > latest * 0.9 && earliest < latest * 0.91, "{class:?}: {earliest}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_checked_at_intervals_until_its_next_read_or_renewal() {
        let day = 24 * 60 * MINUTE;
        let checks = |class, lifetime: Duration| -> Vec<u64> {
            let mut schedule = RenewalSchedule::new(terms(class, Some(lifetime)), 0.0);
            let mut checks = Vec::new();
            while let Some(PlannedAction { action: Action::Check, at }) = schedule.next() {
                checks.push((at - schedule.terms.requested_at).as_secs());
                schedule.checked(at, 0.0);
            }
            assert_eq!(schedule.next(), schedule.plan());
            checks
        };
        assert_eq!(checks(RenewalClass::Fixed, 10 * MINUTE), [200, 400]);
        assert_eq!(checks(RenewalClass::Fixed, Duration::from_secs(24)), [10]);
        assert!(checks(RenewalClass::Fixed, Duration::from_secs(12)).is_empty());
        assert!(checks(RenewalClass::Renewable, 5 * MINUTE).is_empty());
        assert_eq!(checks(RenewalClass::Renewable, 15 * MINUTE), [300]);
        for class in [RenewalClass::Fixed, RenewalClass::Renewable] {
            assert!(checks(class, day).len() < 250, "no more often than every five minutes");
        }
        for class in [
            RenewalClass::OwnExpiry,
            RenewalClass::Static { every: day },
            RenewalClass::StatedInterval { every: day },
        ] {
            assert!(checks(class, day).is_empty());
        }
        // No checks while the source fails, or once the lease is known to be gone.
        let mut schedule = RenewalSchedule::new(terms(RenewalClass::Fixed, Some(day)), 0.0);
        let not_before = Some(Instant::now() + day);
        schedule.failed(Action::Read, "busy".into(), not_before, Instant::now(), 0.0);
        assert_eq!(schedule.next().map(|plan| Some(plan.at)), Some(not_before));
        let mut schedule = RenewalSchedule::new(terms(RenewalClass::Fixed, Some(day)), 0.0);
        schedule.refused("gone".into(), Instant::now() + MINUTE * 10);
        assert_eq!(schedule.next().map(|plan| plan.action), Some(Action::Read));
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_end_nothing_is_planned_and_a_life_of_zero_causes_no_busy_loop() {
        assert_eq!(RenewalSchedule::new(terms(RenewalClass::OwnExpiry, None), 0.5).plan(), None);
        assert_eq!(RenewalSchedule::new(terms(RenewalClass::Renewable, None), 0.5).plan(), None);
        for class in [
            RenewalClass::Renewable,
            RenewalClass::Fixed,
            RenewalClass::OwnExpiry,
            RenewalClass::Static { every: Duration::ZERO },
        ] {
            for lifetime in [Duration::ZERO, Duration::from_millis(1)] {
                let (_, wait) = planned(&RenewalSchedule::new(terms(class, Some(lifetime)), 0.9));
                assert_eq!(wait, MIN_PAUSE.as_secs_f64(), "{class:?}");
            }
        }
        // The longest lifetime that is scheduled.
        let years = Duration::from_secs(10 * 365 * 24 * 3600);
        assert_eq!(
            planned(&RenewalSchedule::new(terms(RenewalClass::Renewable, Some(years)), 0.0)).0,
            Action::Renew
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_does_not_extend_is_followed_by_a_read() {
        let mut schedule = RenewalSchedule::new(terms(RenewalClass::Renewable, Some(MINUTE)), 0.0);
        tokio::time::advance(Duration::from_secs(40)).await;
        schedule.renewed(terms(RenewalClass::Renewable, Some(MINUTE)), Instant::now(), 0.0);
        assert_eq!(planned(&schedule), (Action::Renew, 40.0));
        tokio::time::advance(Duration::from_secs(40)).await;
        schedule.renewed(terms(RenewalClass::Renewable, Some(Duration::from_secs(50))), Instant::now(), 0.0);
        assert_eq!(planned(&schedule), (Action::Read, 0.0), "although the renewal succeeded");
        assert_eq!(schedule.renewals, 2);
        schedule.renewed(terms(RenewalClass::Renewable, Some(Duration::ZERO)), Instant::now(), 0.0);
        assert_eq!(planned(&schedule), (Action::Read, 0.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ends_early_with_its_token_is_read_again_instead_of_renewed() {
        let planned_with = |lifetime: u64, token_lifetime: u64| {
            let terms = terms(RenewalClass::Renewable, Some(Duration::from_secs(lifetime)));
            let token_expiry = Some(terms.requested_at + Duration::from_secs(token_lifetime));
            planned(&RenewalSchedule::new(Terms { token_expiry, ..terms }, 0.0))
        };
        assert_eq!(planned_with(60, 6), (Action::Read, 4.0));
        assert_eq!(planned_with(60, 61), (Action::Renew, 40.0));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_before_the_end_and_slower_after_it() {
        let start = Instant::now();
        let mut schedule = RenewalSchedule::new(terms(RenewalClass::Renewable, Some(MINUTE)), 0.0);
        let mut attempts = Vec::new();
        while start.elapsed() < 10 * MINUTE {
            let plan = schedule.plan().unwrap();
            tokio::time::sleep_until(plan.at).await;
            attempts.push((start.elapsed(), plan.action));
            schedule.failed(plan.action, "sealed".into(), None, Instant::now(), 0.5);
        }
        let gaps: Vec<Duration> = attempts.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.iter().all(|gap| (MIN_PAUSE..=MAX_RETRY_PAUSE * 2).contains(gap)), "{gaps:?}");
        let before: Vec<_> = attempts.iter().filter(|(at, _)| *at < MINUTE).collect();
        assert!((6..20).contains(&before.len()), "{attempts:?}");
        assert_eq!(
            before.last().unwrap().1,
            Action::Read,
            "the last attempt before the end is a read: {attempts:?}"
        );
        assert!(attempts.len() - before.len() < 25, "{attempts:?}");
        assert_eq!(schedule.last_error.as_deref(), Some("sealed"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_is_not_planned_before_the_time_that_vault_requested() {
        let mut schedule = RenewalSchedule::new(terms(RenewalClass::Fixed, Some(MINUTE)), 0.0);
        let not_before = Instant::now() + Duration::from_secs(17);
        schedule.failed(Action::Read, "busy".into(), Some(not_before), Instant::now(), 0.0);
        assert_eq!(schedule.plan().unwrap().at, not_before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_login_brings_forward_the_reads_of_leases_of_the_old_login_only() {
        let now = Instant::now();
        let ends_at = Some(now + Duration::from_secs(100));
        let superseded = |class, lifetime, random| {
            let mut schedule = RenewalSchedule::new(terms(class, Some(lifetime)), 0.0);
            schedule.superseded(ends_at, now, random);
            planned(&schedule)
        };
        let hour = 60 * MINUTE;
        assert_eq!(superseded(RenewalClass::Renewable, hour, 0.4), (Action::Read, 30.0));
        assert_eq!(superseded(RenewalClass::Fixed, hour, 1.0), (Action::Read, 75.0));
        assert_eq!(
            superseded(RenewalClass::Fixed, Duration::from_secs(30), 1.0),
            (Action::Read, 20.0),
            "the credential's own expiry is nearer"
        );
        assert_eq!(superseded(RenewalClass::OwnExpiry, hour, 0.4), (Action::Read, 3060.0));
    }
}
