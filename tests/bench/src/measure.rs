//! The measurements of a contender in one round.
//!
//! Every part of a round is bounded in time and in number: a slow contender makes fewer calls, not a longer round.

use std::time::Duration;

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::clock::{Deadline, now};
use crate::contender::CommandLine;

/// The results of one round of a contender. `start` and `large` are medians.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) start: Duration,
    pub(crate) small: SmallCalls,
    pub(crate) calls_per_second: f64,
    pub(crate) large: Duration,
}

/// Durations of small calls that were made one at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallCalls {
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) calls: usize,
}

impl SmallCalls {
    pub(crate) fn of(mut took: Vec<Duration>) -> Self {
        Self { median: percentile(&mut took, 50), p99: percentile(&mut took, 99), calls: took.len() }
    }
}

/// The number of rounds, and the time for each part of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundLimits {
    pub(crate) rounds: usize,
    starting: Duration,
    warm_up: Duration,
    small: Duration,
    throughput: Duration,
    large: Duration,
}

impl RoundLimits {
    pub(crate) const FULL: Self = Self::of(12, 400);
    /// To check that everything works; the numbers mean little.
    pub(crate) const QUICK: Self = Self::of(2, 250);

    /// Makes small calls one at a time, at most `max_calls` and as many as a round has time for.
    pub(crate) fn small_calls(
        self,
        max_calls: usize,
        mut call: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<SmallCalls, BenchError> {
        let deadline = Deadline::after(self.small);
        let mut took = Vec::with_capacity(max_calls);
        while !deadline.is_over() && took.len() < max_calls {
            let begin = now();
            call()?;
            took.push(begin.elapsed());
        }
        Ok(SmallCalls::of(took))
    }

    /// Whether this is not a quick run.
    pub(crate) fn is_full(self) -> bool {
        self.rounds >= Self::FULL.rounds
    }

    /// The median time from starting this client to the response to `tools/list`.
    pub(crate) fn start_time(self, line: &CommandLine) -> Result<Duration, BenchError> {
        let (mut client, start) = measure_start(line, self.starting)?;
        client.end();
        Ok(start)
    }

    /// Makes small calls that are not measured.
    pub(crate) fn warm_up(self, client: &mut Client) -> Result<(), BenchError> {
        let deadline = Deadline::after(self.warm_up);
        while !deadline.is_over() {
            client.small_call()?;
        }
        Ok(())
    }

    const fn of(rounds: usize, unit: u64) -> Self {
        Self {
            rounds,
            starting: Duration::from_millis(unit / 2),
            warm_up: Duration::from_millis(unit / 2),
            small: Duration::from_millis(unit),
            throughput: Duration::from_millis(unit),
            large: Duration::from_millis(unit / 2),
        }
    }
}

/// Calls in flight while throughput is measured.
pub(crate) const IN_FLIGHT: usize = 32;
/// The large result, bytes of text.
pub(crate) const LARGE: usize = 1 << 20;

const MAX_STARTS: usize = 25;
const MAX_CALLS: usize = 20_000;
const MAX_LARGE_CALLS: usize = 200;

/// Makes the four measurements. The last client started for the first, the start time, is used for the other three.
pub(crate) fn round(client: &CommandLine, limits: RoundLimits) -> Result<Round, BenchError> {
    let (mut client, start) = measure_start(client, limits.starting)?;
    limits.warm_up(&mut client)?;
    let small = limits.small_calls(MAX_CALLS, || client.small_call())?;
    let calls_per_second = measure_throughput(&mut client, limits.throughput)?;
    let large = measure_large_calls(&mut client, limits.large)?;
    client.end();
    Ok(Round { start, small, calls_per_second, large })
}

/// The median time from starting the client to the response to `tools/list`, and the last client.
fn measure_start(line: &CommandLine, time: Duration) -> Result<(Client, Duration), BenchError> {
    let deadline = Deadline::after(time);
    let mut took = Vec::new();
    loop {
        let begin = now();
        let mut client = Client::start(line)?;
        took.push(begin.elapsed());
        if deadline.is_over() || took.len() == MAX_STARTS {
            return Ok((client, percentile(&mut took, 50)));
        }
        client.end();
    }
}

/// Calls per second with [`IN_FLIGHT`] requests in flight at any time.
fn measure_throughput(client: &mut Client, time: Duration) -> Result<f64, BenchError> {
    let begin = now();
    let deadline = Deadline::after(time);
    let mut in_flight = Vec::with_capacity(IN_FLIGHT);
    for _ in 0..IN_FLIGHT {
        in_flight.push(client.send_small_call()?);
    }
    let mut responses = 0_u32;
    while !in_flight.is_empty() {
        let id = client.next_small_response()?;
        // Contenders may respond in another order, but once to each request.
        let position = in_flight.iter().position(|in_flight| *in_flight == id);
        let position = position.ok_or_else(|| {
            BenchError::UnexpectedResponse(format!("to request {id}, which is not in flight"))
        })?;
        in_flight.swap_remove(position);
        responses += 1;
        if !deadline.is_over() {
            in_flight.push(client.send_small_call()?);
        }
    }
    Ok(f64::from(responses) / begin.elapsed().as_secs_f64())
}

fn measure_large_calls(client: &mut Client, time: Duration) -> Result<Duration, BenchError> {
    client.large_call(LARGE)?; // buffers grow once
    let deadline = Deadline::after(time);
    let mut took = Vec::new();
    while took.is_empty() || (!deadline.is_over() && took.len() < MAX_LARGE_CALLS) {
        let begin = now();
        client.large_call(LARGE)?;
        took.push(begin.elapsed());
    }
    Ok(percentile(&mut took, 50))
}

/// The smallest value that at least `percent` of the values do not exceed; zero if there are no values.
pub(crate) fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(percentile(&mut values, 50), Duration::from_micros(100));
        assert_eq!(percentile(&mut values, 99), Duration::from_micros(198));
        assert_eq!(percentile(&mut [Duration::from_micros(7)], 99), Duration::from_micros(7));
        assert_eq!(percentile(&mut [], 50), Duration::ZERO);
    }
}
