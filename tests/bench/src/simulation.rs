//! Simulates the lease renewals of many sessions on a paused clock, with a Vault that only counts requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_secrets::renewal::{
    Action, Failure, Renewable, RenewalClass, RenewalEvent, RenewalSchedule, Terms, run_renewal,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// The simulated Vault's response time.
const LATENCY: Duration = Duration::from_millis(20);

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct SimulationParameters {
    pub(crate) sessions: u32,
    pub(crate) leases: Vec<SimulatedLease>,
    pub(crate) time: Duration,
    /// Sessions start at even intervals within this time.
    pub(crate) arrival: Duration,
    /// The lifetime of a login, which is replaced after two thirds of it. `None`: unlimited.
    pub(crate) login: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedLease {
    pub(crate) class: RenewalClass,
    pub(crate) lifetime: Duration,
    /// The maximum lifetime: renewals do not extend the lease beyond it.
    pub(crate) max_lifetime: Duration,
}

/// The requests that the simulated Vault counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestCounts {
    pub(crate) reads: u64,
    pub(crate) renewals: u64,
    /// Look-ups of whether a lease still exists.
    pub(crate) lookups: u64,
    /// Renewals of each kind of lease.
    pub(crate) renewals_of: BTreeMap<usize, u64>,
    /// Leases that expired before they were renewed or replaced.
    pub(crate) expired: u64,
    /// Requests in each second that had any.
    pub(crate) seconds: BTreeMap<u64, u64>,
    /// The same without look-ups, which can be postponed.
    pub(crate) seconds_without_lookups: BTreeMap<u64, u64>,
}

impl SimulationParameters {
    /// The sizes of the target: two hundred sessions with three leases each, for five hours.
    pub(crate) fn target() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            sessions: 200,
            leases: vec![
                SimulatedLease {
                    class: RenewalClass::Renewable,
                    lifetime: minutes(5),
                    max_lifetime: Duration::MAX,
                },
                SimulatedLease {
                    class: RenewalClass::Renewable,
                    lifetime: minutes(5),
                    max_lifetime: minutes(20),
                },
                SimulatedLease {
                    class: RenewalClass::Fixed,
                    lifetime: minutes(10),
                    max_lifetime: minutes(10),
                },
            ],
            time: minutes(5 * 60),
            arrival: minutes(1),
            login: None,
        }
    }
}

impl RequestCounts {
    pub(crate) fn total(&self) -> u64 {
        self.reads + self.renewals + self.lookups
    }

    /// The maximum number of requests in any second.
    pub(crate) fn max_per_second(&self) -> u64 {
        max_in_a_second(&self.seconds)
    }
}

fn max_in_a_second(seconds: &BTreeMap<u64, u64>) -> u64 {
    seconds.values().copied().max().unwrap_or_default()
}

/// Runs the simulation. The clock must be paused; otherwise it runs in real time.
pub(crate) async fn simulate(parameters: &SimulationParameters) -> RequestCounts {
    let vault =
        Arc::new(CountingVault { began: Instant::now(), login: parameters.login, counts: Mutex::default() });
    let mut tasks = JoinSet::new();
    for session in 0..parameters.sessions {
        let begins = vault.began + parameters.arrival * session / parameters.sessions.max(1);
        for (kind, lease) in parameters.leases.iter().copied().enumerate() {
            let vault = Arc::clone(&vault);
            tasks.spawn(async move {
                sleep_until(begins).await;
                let mut source = SimulatedSource::new(vault, kind, lease);
                let terms = source.issue();
                run_renewal(source, terms).await;
            });
        }
    }
    sleep_until(vault.began + parameters.time).await;
    tasks.shutdown().await;
    std::mem::take(&mut *vault.counts())
}

struct CountingVault {
    began: Instant,
    login: Option<Duration>,
    counts: Mutex<RequestCounts>,
}

impl CountingVault {
    fn counts(&self) -> MutexGuard<'_, RequestCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, action: Action) {
        let second = self.began.elapsed().as_secs();
        let mut counts = self.counts();
        *counts.seconds.entry(second).or_default() += 1;
        if action != Action::Check {
            *counts.seconds_without_lookups.entry(second).or_default() += 1;
        }
    }

    /// The number of the login at this time. A login is replaced after two thirds of its lifetime.
    fn login(&self, at: Instant) -> u32 {
        let Some(lifetime) = self.login else { return 0 };
        u32::try_from((at - self.began).as_millis() / (lifetime * 2 / 3).as_millis()).unwrap_or(u32::MAX)
    }

    /// When the login of this number begins.
    fn begins(&self, number: u32) -> Option<Instant> {
        self.login.map(|lifetime| self.began + lifetime * 2 / 3 * number)
    }

    fn ends(&self, number: u32) -> Option<Instant> {
        Some(self.begins(number)? + self.login?)
    }
}

/// One lease of one session.
struct SimulatedSource {
    vault: Arc<CountingVault>,
    kind: usize,
    lease: SimulatedLease,
    issued: Instant,
    ends: Instant,
    login: u32,
    announced_login: u32,
}

impl SimulatedSource {
    fn new(vault: Arc<CountingVault>, kind: usize, lease: SimulatedLease) -> Self {
        let now = Instant::now();
        let login = vault.login(now);
        Self { vault, kind, lease, issued: now, ends: now, login, announced_login: login }
    }

    /// Issues the lease, starting now.
    fn issue(&mut self) -> Terms {
        let now = Instant::now();
        let SimulatedLease { class, lifetime, .. } = self.lease;
        (self.issued, self.ends) = (now, now + lifetime);
        self.login = self.vault.login(now);
        self.announced_login = self.login;
        Terms { class, requested_at: now, lifetime: Some(lifetime), token_expiry: None }
    }

    fn has_expired(&self) -> bool {
        let end = self.vault.ends(self.login).map_or(self.ends, |login| login.min(self.ends));
        end < Instant::now()
    }
}

impl Renewable for SimulatedSource {
    async fn read(&mut self) -> Result<Terms, Failure> {
        self.vault.count(Action::Read);
        let requested_at = Instant::now();
        sleep(LATENCY).await;
        {
            let mut counts = self.vault.counts();
            counts.reads += 1;
            counts.expired += u64::from(self.has_expired());
        }
        Ok(Terms { requested_at, ..self.issue() })
    }

    async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
        self.vault.count(Action::Renew);
        let requested_at = Instant::now();
        sleep(LATENCY).await;
        if self.has_expired() {
            self.vault.counts().expired += 1;
            return Err(Failure::Gone { why: "lease not found".into() });
        }
        {
            let mut counts = self.vault.counts();
            counts.renewals += 1;
            *counts.renewals_of.entry(self.kind).or_default() += 1;
        }
        let now = Instant::now();
        let left = self.lease.max_lifetime.saturating_sub(now - self.issued);
        let lifetime = increment.unwrap_or(self.lease.lifetime).min(left);
        self.ends = now + lifetime;
        Ok(Terms { class: self.lease.class, requested_at, lifetime: Some(lifetime), token_expiry: None })
    }

    async fn check(&mut self) -> Result<(), Failure> {
        self.vault.count(Action::Check);
        sleep(LATENCY).await;
        self.vault.counts().lookups += 1;
        Ok(())
    }

    async fn event(&mut self) -> RenewalEvent {
        let Some(next_login) = self.vault.begins(self.announced_login + 1) else {
            return std::future::pending().await;
        };
        sleep_until(next_login).await;
        self.announced_login += 1;
        RenewalEvent::Superseded { ends_at: self.vault.ends(self.login) }
    }

    fn report(&mut self, _schedule: &RenewalSchedule) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn with_two_hundred_sessions_for_five_hours_no_lease_expires_and_requests_do_not_burst() {
        let parameters = SimulationParameters::target();
        let counts = simulate(&parameters).await;
        assert_eq!(counts.expired, 0);
        // The first kind can be renewed for ever: every two thirds of its lifetime, or up to a tenth of that earlier.
        let (lifetime, time) = (parameters.leases[0].lifetime.as_secs_f64(), parameters.time.as_secs_f64());
        let renewals = counts.renewals_of[&0] as f64 / f64::from(parameters.sessions);
        let expected = time / (lifetime * 2.0 / 3.0 * 0.95);
        assert!((renewals - expected).abs() < expected * 0.03, "{renewals} instead of {expected}");
        // The second is renewed until that does not extend it, and then replaced; the third is only replaced.
        let replaced = counts.reads as f64 / f64::from(parameters.sessions);
        assert!((45.0..65.0).contains(&replaced), "{replaced}");
        // A lease that is not renewed is looked up two or three times before it is replaced.
        let lookups = counts.lookups as f64 / f64::from(parameters.sessions);
        assert!((2.0 * 35.0..4.0 * 37.0).contains(&lookups), "{lookups}");
        // Six hundred leases that start within a minute are ten a second; with jitter the peak is below four times
        // that.
        let started = f64::from(parameters.sessions) * parameters.leases.len() as f64
            / parameters.arrival.as_secs_f64();
        assert!(
            (counts.max_per_second() as f64) < 4.0 * started,
            "{} in a second, {started} started",
            counts.max_per_second()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn every_lease_is_read_again_before_its_login_ends_and_the_reads_are_spread_out() {
        let hour = Duration::from_secs(3600);
        let lease = SimulatedLease {
            class: RenewalClass::Renewable,
            lifetime: 20 * hour,
            max_lifetime: Duration::MAX,
        };
        let parameters = SimulationParameters {
            leases: vec![lease; 3],
            login: Some(hour),
            ..SimulationParameters::target()
        };
        let counts = simulate(&parameters).await;
        assert_eq!((counts.expired, counts.renewals), (0, 0));
        // Seven logins in five hours, each for six hundred leases within a quarter of an hour.
        assert_eq!(counts.reads, 7 * 600);
        // And a look-up of each lease at least every five minutes, about three a second.
        assert!(counts.lookups < 4 * parameters.time.as_secs(), "{}", counts.lookups);
        let most_reads = max_in_a_second(&counts.seconds_without_lookups);
        assert!(most_reads <= 8, "{most_reads} reads in a second");
        assert!(counts.max_per_second() <= 20, "{} requests in a second", counts.max_per_second());
    }
}
