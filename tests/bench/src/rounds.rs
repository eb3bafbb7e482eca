//! Starts every contender's program on the host, then measures the contenders in turn, round after round.
//!
//! A contender that fails stays in the report with the reason, and with what was measured before.

use std::path::Path;
use std::time::Duration;

use crate::awake::Spinners;
use crate::bench_error::BenchError;
use crate::contender::{Contender, PreparedContender};
use crate::footprint::{ResidentMemory, measure_memory};
use crate::measure::{Round, RoundLimits, SmallCalls, round};
use crate::process::Running;
use crate::program_paths::ProgramPaths;

/// A contender and its measurements.
#[derive(Debug)]
pub(crate) struct ContenderResult {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) rounds: Vec<Round>,
    pub(crate) memory: Option<ResidentMemory>,
    pub(crate) failure: Option<String>,
}

/// Runs all contenders; `dir` is for their files.
pub(crate) fn run(
    contenders: &[&Contender],
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Vec<ContenderResult> {
    let mut entries: Vec<Entry> =
        contenders.iter().map(|contender| Entry::new(contender, dir, paths)).collect();
    let awake = Spinners::start();
    if let Err(error) = &awake {
        eprintln!(
            "bench: cannot keep the cores from idling, so times may be too long: {}",
            error.with_causes()
        );
    }
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
    entries.into_iter().map(|entry| entry.result).collect()
}

impl ContenderResult {
    pub(crate) fn best_small_calls(&self) -> Option<SmallCalls> {
        self.rounds.iter().map(|round| round.small).min_by_key(|small| small.median)
    }

    pub(crate) fn calls_per_second(&self) -> Option<f64> {
        self.rounds.iter().map(|round| round.calls_per_second).reduce(f64::max)
    }

    pub(crate) fn best_large_call(&self) -> Option<Duration> {
        self.rounds.iter().map(|round| round.large).min()
    }

    pub(crate) fn best_start_time(&self) -> Option<Duration> {
        self.rounds.iter().map(|round| round.start).min()
    }
}

struct Entry {
    result: ContenderResult,
    prepared: Option<PreparedContender>,
    _host: Option<Running>,
}

impl Entry {
    fn new(contender: &Contender, dir: &Path, paths: &ProgramPaths) -> Self {
        let Contender { name, about, .. } = *contender;
        let mut result = ContenderResult { name, about, rounds: Vec::new(), memory: None, failure: None };
        let contender_dir = dir.join(name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"));
        let started = contender
            .prepare(&contender_dir, paths)
            .and_then(|prepared| prepared.start_host().map(|host| (prepared, host)));
        match started {
            Ok((prepared, host)) => Self { result, prepared: Some(prepared), _host: host },
            Err(error) => {
                result.fail("it did not start", &error);
                Self { result, prepared: None, _host: None }
            }
        }
    }

    fn run_round(&mut self, number: usize, limits: RoundLimits) {
        let (Some(prepared), None) = (&self.prepared, &self.result.failure) else { return };
        match round(&prepared.client, limits) {
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
                self.result.rounds.push(round);
            }
            Err(error) => self.result.fail(&format!("in round {number}"), &error),
        }
    }

    fn measure_memory(&mut self) {
        let (Some(prepared), None) = (&self.prepared, &self.result.failure) else { return };
        match measure_memory(&prepared.client) {
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
