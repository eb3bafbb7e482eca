//! The run: every host up, rounds in turn, the best of each kept.
//!
//! A contender that fails stays in the report with the reason, and with what was measured before.

use std::path::Path;
use std::time::Duration;

use crate::awake::Awake;
use crate::bench_error::BenchError;
use crate::contender::{Contender, Prepared};
use crate::measure::{Pace, Round, Small, round};
use crate::process::Running;
use crate::program_paths::ProgramPaths;
use crate::weight::{Weight, weigh};

/// A contender and what was found about it.
#[derive(Debug)]
pub(crate) struct ContenderResult {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) rounds: Vec<Round>,
    pub(crate) weight: Option<Weight>,
    pub(crate) failure: Option<String>,
}

/// Runs all of them; `dir` is for their files.
pub(crate) fn run(
    contenders: &[&Contender],
    pace: Pace,
    dir: &Path,
    paths: &ProgramPaths,
) -> Vec<ContenderResult> {
    let mut entries: Vec<Entry> =
        contenders.iter().map(|contender| Entry::new(contender, dir, paths)).collect();
    let awake = Awake::keep();
    if let Err(trouble) = &awake {
        eprintln!("bench: the cores may sleep: {}", trouble.sentence());
    }
    let count = entries.len().max(1);
    for number in 0..pace.rounds {
        // Another one begins each round, so that no contender always follows the same neighbour.
        for turn in 0..entries.len() {
            entries[(number + turn) % count].play(number + 1, pace);
        }
    }
    for entry in &mut entries {
        entry.weigh();
    }
    entries.into_iter().map(|entry| entry.standing).collect()
}

impl ContenderResult {
    pub(crate) fn small(&self) -> Option<Small> {
        self.rounds.iter().map(|round| round.small).min_by_key(|small| small.median)
    }

    pub(crate) fn calls_per_second(&self) -> Option<f64> {
        self.rounds.iter().map(|round| round.calls_per_second).reduce(f64::max)
    }

    pub(crate) fn large(&self) -> Option<Duration> {
        self.rounds.iter().map(|round| round.large).min()
    }

    pub(crate) fn start(&self) -> Option<Duration> {
        self.rounds.iter().map(|round| round.start).min()
    }
}

struct Entry {
    standing: ContenderResult,
    prepared: Option<Prepared>,
    _host: Option<Running>,
}

impl Entry {
    fn new(contender: &Contender, dir: &Path, paths: &ProgramPaths) -> Self {
        let Contender { name, about, .. } = *contender;
        let mut standing = ContenderResult { name, about, rounds: Vec::new(), weight: None, failure: None };
        let own = dir.join(name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"));
        let started = contender
            .prepare(&own, paths)
            .and_then(|prepared| prepared.start_host().map(|host| (prepared, host)));
        match started {
            Ok((prepared, host)) => Self { standing, prepared: Some(prepared), _host: host },
            Err(trouble) => {
                standing.fail("it did not start", &trouble);
                Self { standing, prepared: None, _host: None }
            }
        }
    }

    fn play(&mut self, number: usize, pace: Pace) {
        let (Some(prepared), None) = (&self.prepared, &self.standing.failure) else { return };
        match round(&prepared.client, pace) {
            Ok(round) => {
                eprintln!(
                    "bench: round {number}, {}: {:?} a small call ({} of them), {:.0} calls/s, {:?} a large one, {:?} to start",
                    self.standing.name,
                    round.small.median,
                    round.small.calls,
                    round.calls_per_second,
                    round.large,
                    round.start
                );
                self.standing.rounds.push(round);
            }
            Err(trouble) => self.standing.fail(&format!("in round {number}"), &trouble),
        }
    }

    fn weigh(&mut self) {
        let (Some(prepared), None) = (&self.prepared, &self.standing.failure) else { return };
        match weigh(&prepared.client) {
            Ok(weight) => self.standing.weight = Some(weight),
            Err(trouble) => self.standing.fail("while it was weighed", &trouble),
        }
    }
}

impl ContenderResult {
    fn fail(&mut self, when: &str, trouble: &BenchError) {
        let reason = format!("{when}: {}", trouble.sentence());
        eprintln!("bench: {} failed, {reason}", self.name);
        self.failure = Some(reason);
    }
}
