//! The scheduler of leases alone, on a paused clock, with a fake Vault that counts requests: two hundred sessions with three leases
//! each, for five hours.

use std::time::Duration;

use crate::bench_error::BenchError;
use crate::clock::now;
use crate::simulation::{RequestCounts, SimulationParameters, simulate};

/// Its name for `--only`.
pub(crate) const LEASES: &str = "leases";

#[derive(Clone, Debug)]
pub(crate) struct Leases {
    pub(crate) sessions: u32,
    pub(crate) leases: u32,
    pub(crate) simulated: Duration,
    /// Renewals, reads and checks.
    pub(crate) actions: u64,
    pub(crate) lapses: u64,
    /// The most actions in one second.
    pub(crate) busiest: u64,
    /// The time per action of the scheduler with its timers and tasks, in the best run.
    pub(crate) each: Duration,
}

pub(crate) fn run(rounds: usize) -> Result<Leases, BenchError> {
    let parameters = SimulationParameters::promised();
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
    let actions = counts.actions();
    Ok(Leases {
        sessions: parameters.sessions,
        leases: parameters.sessions * u32::try_from(parameters.leases.len()).unwrap_or(u32::MAX),
        simulated: parameters.time,
        actions,
        lapses: counts.lapses,
        busiest: counts.busiest(),
        each: took / u32::try_from(actions.max(1)).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulation_counts_its_requests() {
        let leases = run(1).unwrap();
        assert_eq!((leases.sessions, leases.leases, leases.lapses), (200, 600, 0));
        assert!(leases.actions > 10_000 && leases.busiest > 1, "{leases:?}");
    }
}
