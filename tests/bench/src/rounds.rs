//! Starts every contender's program on the host, then measures the contenders in turn, round after round. Several runs start
//! all programs again: which cores they are placed on differs from run to run.
//!
//! A contender that fails stays in the report with the reason, and with what was measured before.

use std::path::Path;

use crate::arguments::Plan;
use crate::bench_error::BenchError;
use crate::contender::{Contender, PreparedContender};
use crate::footprint::{ResidentMemory, measure_memory};
use crate::measure::{Round, RoundLimits, SmallCalls, round};
use crate::process::Running;
use crate::program_paths::ProgramPaths;
use crate::statistics::Estimate;

/// A contender and its measurements.
#[derive(Debug)]
pub(crate) struct ContenderResult {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The rounds of each run.
    pub(crate) runs: Vec<Vec<Round>>,
    pub(crate) memory: Option<ResidentMemory>,
    pub(crate) failure: Option<String>,
}

/// Runs all contenders; `dir` is for their files.
pub(crate) fn run(
    contenders: &[&Contender],
    plan: &Plan,
    dir: &Path,
    paths: &ProgramPaths,
) -> Vec<ContenderResult> {
    let mut results: Vec<ContenderResult> =
        contenders.iter().map(|contender| ContenderResult::new(contender)).collect();
    for number in 1..=plan.runs {
        run_once(contenders, plan.limits, &dir.join(format!("run-{number}")), paths, &mut results);
    }
    results
}

/// Starts and measures every contender that has not failed, and adds what was measured to the results.
fn run_once(
    contenders: &[&Contender],
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
    results: &mut [ContenderResult],
) {
    let pairs = contenders.iter().zip(results);
    let mut entries: Vec<Entry> =
        pairs.filter_map(|(contender, result)| Entry::start(contender, dir, paths, result)).collect();
    let count = entries.len().max(1);
    for number in 0..limits.rounds {
        // Each round starts with another contender, so that none always has the same position.
        for turn in 0..entries.len() {
            entries[(number + turn) % count].run_round(number + 1, limits);
        }
    }
    for entry in &mut entries {
        entry.measure_memory();
    }
}

impl ContenderResult {
    fn new(contender: &Contender) -> Self {
        let Contender { name, about, .. } = *contender;
        Self { name, about, runs: Vec::new(), memory: None, failure: None }
    }

    /// The median over the runs of each run's best round.
    pub(crate) fn best_small_calls(&self) -> Option<SmallCalls> {
        let mut best: Vec<_> = self.runs.iter().filter_map(|run| best_small_calls(run)).collect();
        best.sort_unstable_by_key(|small| small.median);
        best.get(best.len().checked_sub(1)? / 2).copied()
    }

    /// The median over the runs of a value of each run.
    pub(crate) fn median_of(&self, measure: impl Fn(&[Round]) -> Option<f64>) -> Option<f64> {
        let values = self.runs.iter().filter_map(|run| measure(run));
        Estimate::of(values).map(|estimate| estimate.median)
    }
}

/// The best round of a run by its median.
pub(crate) fn best_small_calls(run: &[Round]) -> Option<SmallCalls> {
    run.iter().map(|round| round.small).min_by_key(|small| small.median)
}

/// Seconds of a small call, in the best round of a run.
pub(crate) fn small_call(run: &[Round]) -> Option<f64> {
    best_small_calls(run).map(|small| small.median.as_secs_f64())
}

/// The most calls per second of a run's rounds.
pub(crate) fn calls_per_second(run: &[Round]) -> Option<f64> {
    run.iter().map(|round| round.calls_per_second).reduce(f64::max)
}

/// Seconds of a large call, in the best round of a run.
pub(crate) fn large_call(run: &[Round]) -> Option<f64> {
    run.iter().map(|round| round.large.as_secs_f64()).reduce(f64::min)
}

/// Seconds until the client has started, in the best round of a run.
pub(crate) fn start_time(run: &[Round]) -> Option<f64> {
    run.iter().map(|round| round.start.as_secs_f64()).reduce(f64::min)
}

/// A contender whose programs run, and where its measurements go.
struct Entry<'a> {
    result: &'a mut ContenderResult,
    prepared: PreparedContender,
    _host: Option<Running>,
}

impl<'a> Entry<'a> {
    /// `None` if the contender has failed, now or in an earlier run.
    fn start(
        contender: &Contender,
        dir: &Path,
        paths: &ProgramPaths,
        result: &'a mut ContenderResult,
    ) -> Option<Self> {
        if result.failure.is_some() {
            return None;
        }
        let contender_dir =
            dir.join(contender.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"));
        let started = contender
            .prepare(&contender_dir, paths)
            .and_then(|prepared| prepared.start_host().map(|host| (prepared, host)));
        match started {
            Ok((prepared, host)) => {
                result.runs.push(Vec::new());
                Some(Self { result, prepared, _host: host })
            }
            Err(error) => {
                result.fail("it did not start", &error);
                None
            }
        }
    }

    fn run_round(&mut self, number: usize, limits: RoundLimits) {
        if self.result.failure.is_some() {
            return;
        }
        match round(&self.prepared.client, limits) {
            Ok(round) => {
                eprintln!(
                    "bench: round {number}, {}: {:?} per small call ({} calls), {:.0} calls/s, {:?} per large call, {:?} to start",
                    self.result.name,
                    round.small.median,
                    round.small.calls,
                    round.calls_per_second,
                    round.large,
                    round.start
                );
                self.result.runs.last_mut().expect("an entry begins its run").push(round);
            }
            Err(error) => self.result.fail(&format!("in round {number}"), &error),
        }
    }

    fn measure_memory(&mut self) {
        if self.result.failure.is_some() {
            return;
        }
        match measure_memory(&self.prepared.client) {
            Ok(memory) => self.result.memory = Some(memory),
            Err(error) => self.result.fail("while its memory was measured", &error),
        }
    }
}

impl ContenderResult {
    fn fail(&mut self, when: &str, error: &BenchError) {
        let reason = format!("{when}: {}", error.with_causes());
        eprintln!("bench: {} failed, {reason}", self.name);
        self.failure = Some(reason);
    }
}
