//! Cofferdam side by side with the alternatives, all in one run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`attachments`] | a thousand attached sandboxes in one sidecar |
//! | [`awake`] | keeps the cores from idling while something is measured |
//! | [`client`] | a harness for measuring: raw MCP lines |
//! | [`clock`] | the only reader of the clock |
//! | [`codec`] | the relay's codec alone, for counting |
//! | [`contender`] | a contender as data, and with its placeholders filled in |
//! | [`crowd`] | a thousand sessions on one sidecar: their memory, their calls |
//! | [`hostile`] | an honest link beside a hostile sandbox |
//! | [`instructions`] | counts under callgrind |
//! | [`leases`] | the renewal scheduler for leases alone |
//! | [`local_run`] | `cofferdam run` beside the same sandbox without Cofferdam |
//! | [`measure`] | what is measured in one round |
//! | [`platforms`] | sandboxes on doubles of E2B and Daytona beside a local hub |
//! | [`program_paths`] | paths of programs |
//! | [`process`] | starting and ending processes, the only place that does |
//! | [`relay`] | a link without a shim |
//! | [`report`] | tables and chart |
//! | [`roster`] | the contenders |
//! | [`simulation`] | the simulation behind `leases` |
//! | [`tournament`] | runs the contenders in turn |
//! | [`turnover`] | the cost of Vault credentials for a call |
//! | [`weight`] | the size of programs, their resident memory and their activity |
//!
//! Nothing is asserted about time: the numbers are compared with each other and reported.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use crate::arguments::{Counting, Mode, Plan};
use crate::bench_error::BenchError;
use crate::program_paths::ProgramPaths;
use crate::report::builds::MeasuredBuilds;
use crate::report::{Findings, Trial, machine};

mod arguments;
mod attachments;
mod awake;
mod bench_error;
mod client;
mod clock;
mod codec;
mod contender;
mod crowd;
mod hostile;
mod instructions;
mod leases;
mod local_run;
mod measure;
mod platforms;
mod process;
mod program_paths;
mod relay;
mod report;
mod roster;
mod simulation;
mod tournament;
mod turnover;
mod weight;

fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Mode::Attack(attack, socket)) => {
            hostile::attack::run(attack, &socket).map_err(|error| error.with_causes())
        }
        Ok(Mode::Codec(body, count)) => codec::run(body, count),
        Ok(Mode::Run(plan)) => run(&plan).map_err(|error| error.with_causes()),
        Ok(Mode::Spin) => {
            awake::spin();
            Ok(())
        }
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(with_causes) => {
            eprintln!("bench: {with_causes}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan) -> Result<(), BenchError> {
    let directory = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir();
    let directory =
        directory.map_err(|source| BenchError::Write { what: "a temporary directory".into(), source })?;
    let paths = ProgramPaths::new()?;
    let contenders: Vec<_> =
        roster::ROSTER.iter().filter(|contender| plan.includes(contender.name)).collect();
    let results = tournament::run(&contenders, plan.limits, directory.path(), &paths);
    let counts = match plan.counting {
        Counting::Off => Vec::new(),
        Counting::On => instructions::count_all(directory.path(), &paths),
    };
    let hostile = Trial::of(plan, hostile::HOSTILE, || hostile::run(plan.limits, directory.path(), &paths));
    let crowd = Trial::of(plan, crowd::CROWD, || crowd::run(plan.limits, directory.path(), &paths));
    let leases = Trial::of(plan, leases::LEASES, || leases::run(plan.limits.rounds));
    let turnover =
        Trial::of(plan, turnover::TURNOVER, || turnover::run(plan.limits, directory.path(), &paths));
    let local_run =
        Trial::of(plan, local_run::LOCAL_RUN, || local_run::run(plan.limits, directory.path(), &paths));
    let platforms =
        Trial::of(plan, platforms::PLATFORMS, || platforms::run(plan.limits, directory.path(), &paths));
    let attachments =
        Trial::of(plan, attachments::ATTACHMENTS, || attachments::run(plan.limits, directory.path(), &paths));
    let findings = Findings {
        results,
        hostile,
        crowd,
        leases,
        turnover,
        local_run,
        platforms,
        attachments,
        builds: MeasuredBuilds::of(&paths),
        counts,
        rounds: plan.limits.rounds,
        machine: machine::summary(),
        versions: machine::versions(&paths),
        date: clock::today(),
    };
    let printed = std::io::stdout().write_all(findings.text("").as_bytes());
    printed.map_err(|source| BenchError::Write { what: "the report to the terminal".into(), source })?;
    match &plan.out {
        Some(out) => findings.write(out),
        None => Ok(()),
    }
}
