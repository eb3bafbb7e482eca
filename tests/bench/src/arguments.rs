//! The command line of the benchmark.

use std::path::PathBuf;

use crate::codec::Body;
use crate::hostile::attack::Attack;
use crate::measure::RoundLimits;

#[derive(Debug)]
pub(crate) enum Mode {
    /// Attack the sidecar that listens on this socket until stdin ends.
    Attack(Attack, PathBuf),
    /// Encode and decode this many frames; run under callgrind.
    Codec(Body, u64),
    /// Try this many texts in search of those that take longest to scrub.
    SlowTexts(usize),
    Run(Plan),
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) limits: RoundLimits,
    /// How often the contenders are started and measured.
    pub(crate) runs: usize,
    pub(crate) counting: Counting,
    /// The names given with `--only`; empty means all.
    only: Vec<String>,
    /// The directory for the report's files; `None`: the report is only printed.
    pub(crate) out: Option<PathBuf>,
}

/// Whether instructions are counted under callgrind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Counting {
    Off,
    On,
}

impl Plan {
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// The mode, or an error message for invalid arguments.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Mode, String> {
    let arguments: Vec<String> = arguments.collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["attack", name, socket] => {
            let attack = Attack::ALL.into_iter().find(|attack| attack.name() == name);
            return attack.map(|attack| Mode::Attack(attack, socket.into())).ok_or_else(|| USAGE.into());
        }
        ["codec", body, count] => {
            let body = match body {
                "full" => Body::Full,
                "small" => Body::Small,
                _ => return Err(USAGE.into()),
            };
            return count.parse().map(|count| Mode::Codec(body, count)).map_err(|_| USAGE.into());
        }
        ["slow-texts", count] => {
            return count.parse().map(Mode::SlowTexts).map_err(|_| USAGE.into());
        }
        _ => {}
    }
    let mut runs = None;
    let mut plan =
        Plan { limits: RoundLimits::FULL, runs: 1, counting: Counting::On, only: Vec::new(), out: None };
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        match argument {
            "--no-counts" => plan.counting = Counting::Off,
            "--only" => plan.only.push(rest.next().ok_or(USAGE)?.into()),
            "--out" => plan.out = Some(rest.next().ok_or(USAGE)?.into()),
            "--runs" => {
                runs = rest.next().and_then(|runs| runs.parse().ok()).filter(|runs| *runs > 0);
                runs.ok_or(USAGE)?;
            }
            "--quick" => plan.limits = RoundLimits::QUICK,
            _ => return Err(USAGE.into()),
        }
    }
    if let Some(runs) = runs {
        plan.runs = runs;
    } else if plan.out.is_some() {
        plan.runs = PUBLISHED_RUNS;
    }
    Ok(Mode::Run(plan))
}

/// A published ratio is the median of this many runs: a single one depends on the cores on which the processes land.
const PUBLISHED_RUNS: usize = 5;

const USAGE: &str = "\
usage: bench [--out DIR] [--quick] [--runs COUNT] [--no-counts] [--only NAME]…
       bench slow-texts COUNT

Runs all contenders and prints the report; with --out it is also written to DIR (BENCHMARKS.md, benchmarks.svg).
With `slow-texts` it tries so many texts instead, in search of those that take longest to scrub, and prints the slowest.
--quick          short rounds, to check that everything works
--runs COUNT     start and measure the contenders this often, and show the medians of the runs. Default: 1, with --out 5
--no-counts      do not count instructions
--only NAME      this contender, or `hostile`, `crowd`, `leases`, `vault`, `run`, `platforms`, `attachments`,
                 `install` or `scrubbing`; may be repeated

COFFERDAM_BIN and COFFERDAM_SHIM_BIN name the sidecar and the static shim, COFFERDAM_TEST_TOOLS the tools' directory.";

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(line: &str) -> Result<Mode, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn unknown_arguments_are_explained() {
        assert!(mode("--slow").unwrap_err().starts_with("usage"));
        assert!(mode("--only").is_err());
        assert!(mode("--runs 0").is_err() && mode("--runs many").is_err());
        assert!(mode("codec medium 3").is_err());
        assert!(mode("attack politely /s").is_err());
        assert!(matches!(mode("attack messages /s"), Ok(Mode::Attack(Attack::Messages, _))));
        assert!(matches!(mode("slow-texts 20"), Ok(Mode::SlowTexts(20))));
        assert!(mode("slow-texts many").is_err());
    }

    #[test]
    fn only_the_named_contenders_run() {
        let Ok(Mode::Run(plan)) = mode("--only direct --quick") else { panic!("not a plan") };
        assert!(plan.includes("direct") && !plan.includes("cofferdam"));
        assert_eq!(plan.runs, 1);
    }

    #[test]
    fn a_report_for_publication_is_of_five_runs_unless_told_otherwise() {
        for (line, runs) in
            [("--out /tmp", 5), ("--out /tmp --runs 2", 2), ("--runs 3 --out /tmp", 3), ("", 1)]
        {
            let Ok(Mode::Run(plan)) = mode(line) else { panic!("not a plan: {line}") };
            assert_eq!(plan.runs, runs, "{line}");
        }
    }
}
