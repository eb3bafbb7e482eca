//! Measures the renewal scheduler alone, on a paused clock, with a fake Vault that counts requests: two hundred sessions with
//! three leases each, for five hours.

use std::time::Duration;

use crate::bench_error::BenchError;
use crate::clock::now;
use crate::simulation::{RequestCounts, SimulationParameters, simulate};

/// The name of this measurement for `--only`.
pub(crate) const LEASES: &str = "leases";

#[derive(Clone, Debug)]
pub(crate) struct LeaseResults {
    pub(crate) sessions: u32,
    pub(crate) lease_count: u32,
    pub(crate) simulated: Duration,
    /// Renewals, reads and look-ups.
    pub(crate) requests: u64,
    /// Leases that expired before they were renewed or replaced.
    pub(crate) expired: u64,
    /// The maximum number of requests in one second.
    pub(crate) max_per_second: u64,
    /// The real time per request of the scheduler with its timers and tasks, in the best run.
    pub(crate) time_per_request: Duration,
}

pub(crate) fn run(rounds: usize) -> Result<LeaseResults, BenchError> {
    let parameters = SimulationParameters::target();
    let mut best: Option<(Duration, RequestCounts)> = None;
    for _ in 0..rounds.max(1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime
            .map_err(|source| BenchError::Start { what: "a runtime on a paused clock".into(), source })?;
        let began = now();
        let counts = runtime.block_on(simulate(&parameters));
        let took = began.elapsed();
        if best.as_ref().is_none_or(|(best, _)| took < *best) {
            best = Some((took, counts));
        }
    }
    let (took, counts) = best.ok_or_else(|| BenchError::Missing("a run".into()))?;
    let requests = counts.total();
    Ok(LeaseResults {
        sessions: parameters.sessions,
        lease_count: parameters.sessions * u32::try_from(parameters.leases.len()).unwrap_or(u32::MAX),
        simulated: parameters.time,
        requests,
        expired: counts.expired,
        max_per_second: counts.max_per_second(),
        time_per_request: took / u32::try_from(requests.max(1)).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulation_counts_its_requests() {
        let leases = run(1).unwrap();
        assert_eq!((leases.sessions, leases.lease_count, leases.expired), (200, 600, 0));
        assert!(leases.requests > 10_000 && leases.max_per_second > 1, "{leases:?}");
    }
}
