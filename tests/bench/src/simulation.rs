//! Many sessions that keep their leases, at a Vault that only counts requests, on a paused clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_secrets::renewal::{
    Action, Class, Failure, Renewable, RenewalEvent, RenewalSchedule, Terms, run_renewal,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// The simulated Vault's response time.
const LATENCY: Duration = Duration::from_millis(20);

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) sessions: u32,
    pub(crate) leases: Vec<SimulatedLease>,
    pub(crate) time: Duration,
    /// Sessions begin one after the other within this.
    pub(crate) arrival: Duration,
    /// The lifetime of a login, which is replaced after two thirds of it. `None`: unlimited.
    pub(crate) login: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedLease {
    pub(crate) class: Class,
    pub(crate) life: Duration,
    /// No renewal goes beyond this.
    pub(crate) longest: Duration,
}

/// What the simulated Vault counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) reads: u64,
    pub(crate) renewals: u64,
    /// Whether a lease is still there.
    pub(crate) looks: u64,
    /// Renewals of each kind of lease.
    pub(crate) renewals_of: BTreeMap<usize, u64>,
    /// Leases that ended before another was asked for.
    pub(crate) lapses: u64,
    /// Requests in each second that had any.
    pub(crate) seconds: BTreeMap<u64, u64>,
    /// The same without look-ups, which can be postponed.
    pub(crate) seconds_without_looks: BTreeMap<u64, u64>,
}

impl Shape {
    /// The sizes that are promised: two hundred sessions with three leases each, for five hours.
    pub(crate) fn promised() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            sessions: 200,
            leases: vec![
                SimulatedLease { class: Class::Renewable, life: minutes(5), longest: Duration::MAX },
                SimulatedLease { class: Class::Renewable, life: minutes(5), longest: minutes(20) },
                SimulatedLease { class: Class::Fixed, life: minutes(10), longest: minutes(10) },
            ],
            time: minutes(5 * 60),
            arrival: minutes(1),
            login: None,
        }
    }
}

impl Seen {
    pub(crate) fn actions(&self) -> u64 {
        self.reads + self.renewals + self.looks
    }

    /// The most requests in any second.
    pub(crate) fn busiest(&self) -> u64 {
        most(&self.seconds)
    }
}

fn most(seconds: &BTreeMap<u64, u64>) -> u64 {
    seconds.values().copied().max().unwrap_or_default()
}

/// Runs the simulation. The clock must be paused; otherwise it runs in real time.
pub(crate) async fn simulate(shape: &Shape) -> Seen {
    let vault = Arc::new(Counting { began: Instant::now(), login: shape.login, seen: Mutex::default() });
    let mut tasks = JoinSet::new();
    for session in 0..shape.sessions {
        let begins = vault.began + shape.arrival * session / shape.sessions.max(1);
        for (kind, lease) in shape.leases.iter().copied().enumerate() {
            let vault = Arc::clone(&vault);
            tasks.spawn(async move {
                sleep_until(begins).await;
                let mut source = Simulated::new(vault, kind, lease);
                let terms = source.lend();
                run_renewal(source, terms).await;
            });
        }
    }
    sleep_until(vault.began + shape.time).await;
    tasks.shutdown().await;
    std::mem::take(&mut *vault.seen())
}

struct Counting {
    began: Instant,
    login: Option<Duration>,
    seen: Mutex<Seen>,
}

impl Counting {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, action: Action) {
        let second = self.began.elapsed().as_secs();
        let mut seen = self.seen();
        *seen.seconds.entry(second).or_default() += 1;
        if action != Action::Check {
            *seen.seconds_without_looks.entry(second).or_default() += 1;
        }
    }

    /// The number of the login at this time; one follows the other after two thirds of its life.
    fn login(&self, at: Instant) -> u32 {
        let Some(life) = self.login else { return 0 };
        u32::try_from((at - self.began).as_millis() / (life * 2 / 3).as_millis()).unwrap_or(u32::MAX)
    }

    /// When the login of this number begins.
    fn begins(&self, number: u32) -> Option<Instant> {
        self.login.map(|life| self.began + life * 2 / 3 * number)
    }

    fn ends(&self, number: u32) -> Option<Instant> {
        Some(self.begins(number)? + self.login?)
    }
}

/// One lease of one session.
struct Simulated {
    vault: Arc<Counting>,
    kind: usize,
    lease: SimulatedLease,
    issued: Instant,
    ends: Instant,
    login: u32,
    told: u32,
}

impl Simulated {
    fn new(vault: Arc<Counting>, kind: usize, lease: SimulatedLease) -> Self {
        let now = Instant::now();
        let login = vault.login(now);
        Self { vault, kind, lease, issued: now, ends: now, login, told: login }
    }

    /// From now on.
    fn lend(&mut self) -> Terms {
        let now = Instant::now();
        let SimulatedLease { class, life, .. } = self.lease;
        (self.issued, self.ends) = (now, now + life);
        self.login = self.vault.login(now);
        self.told = self.login;
        Terms { class, asked_at: now, life: Some(life), bound: None }
    }

    fn has_lapsed(&self) -> bool {
        let end = self.vault.ends(self.login).map_or(self.ends, |login| login.min(self.ends));
        end < Instant::now()
    }
}

impl Renewable for Simulated {
    async fn read(&mut self) -> Result<Terms, Failure> {
        self.vault.count(Action::Read);
        let asked_at = Instant::now();
        sleep(LATENCY).await;
        {
            let mut seen = self.vault.seen();
            seen.reads += 1;
            seen.lapses += u64::from(self.has_lapsed());
        }
        Ok(Terms { asked_at, ..self.lend() })
    }

    async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
        self.vault.count(Action::Renew);
        let asked_at = Instant::now();
        sleep(LATENCY).await;
        if self.has_lapsed() {
            self.vault.seen().lapses += 1;
            return Err(Failure::Gone { why: "lease not found".into() });
        }
        {
            let mut seen = self.vault.seen();
            seen.renewals += 1;
            *seen.renewals_of.entry(self.kind).or_default() += 1;
        }
        let now = Instant::now();
        let left = self.lease.longest.saturating_sub(now - self.issued);
        let life = increment.unwrap_or(self.lease.life).min(left);
        self.ends = now + life;
        Ok(Terms { class: self.lease.class, asked_at, life: Some(life), bound: None })
    }

    async fn check(&mut self) -> Result<(), Failure> {
        self.vault.count(Action::Check);
        sleep(LATENCY).await;
        self.vault.seen().looks += 1;
        Ok(())
    }

    async fn event(&mut self) -> RenewalEvent {
        let Some(turns) = self.vault.begins(self.told + 1) else { return std::future::pending().await };
        sleep_until(turns).await;
        self.told += 1;
        RenewalEvent::Superseded { by: self.vault.ends(self.login) }
    }

    fn report(&mut self, _schedule: &RenewalSchedule) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_hundred_sessions_for_five_hours_have_no_lapse_drift_or_burst() {
        let shape = Shape::promised();
        let seen = simulate(&shape).await;
        assert_eq!(seen.lapses, 0);
        // The first kind can be renewed for ever: every two thirds of its life, or up to a tenth of that earlier.
        let (life, time) = (shape.leases[0].life.as_secs_f64(), shape.time.as_secs_f64());
        let renewals = seen.renewals_of[&0] as f64 / f64::from(shape.sessions);
        let expected = time / (life * 2.0 / 3.0 * 0.95);
        assert!((renewals - expected).abs() < expected * 0.03, "{renewals} instead of {expected}");
        // The second is renewed until that does not extend it, and then replaced; the third is only replaced.
        let replaced = seen.reads as f64 / f64::from(shape.sessions);
        assert!((45.0..65.0).contains(&replaced), "{replaced}");
        // Those that are not renewed are looked up two or three times before.
        let looks = seen.looks as f64 / f64::from(shape.sessions);
        assert!((2.0 * 35.0..4.0 * 37.0).contains(&looks), "{looks}");
        // Six hundred leases that came within a minute are ten a second; random makes that three times as many at most.
        let came = f64::from(shape.sessions) * shape.leases.len() as f64 / shape.arrival.as_secs_f64();
        assert!((seen.busiest() as f64) < 4.0 * came, "{} in a second, {came} came", seen.busiest());
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_read_again_before_its_login_ends_and_spread_out() {
        let hour = Duration::from_secs(3600);
        let lease = SimulatedLease { class: Class::Renewable, life: 20 * hour, longest: Duration::MAX };
        let shape = Shape { leases: vec![lease; 3], login: Some(hour), ..Shape::promised() };
        let seen = simulate(&shape).await;
        assert_eq!((seen.lapses, seen.renewals), (0, 0));
        // Seven logins in five hours, each for six hundred leases within a quarter of an hour.
        assert_eq!(seen.reads, 7 * 600);
        // And one look at each within five minutes, which is three a second.
        assert!(seen.looks < 4 * shape.time.as_secs(), "{}", seen.looks);
        let most_reads = most(&seen.seconds_without_looks);
        assert!(most_reads <= 8, "{most_reads} reads in a second");
        assert!(seen.busiest() <= 20, "{} requests in a second", seen.busiest());
    }
}
