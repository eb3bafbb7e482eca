//! Benchmarks Cofferdam and its alternatives in one run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`attachments`] | a thousand attached sandboxes in one sidecar |
//! | [`awake`] | keeps the cores from sleeping while something is measured |
//! | [`bench_error`] | errors of the benchmark |
//! | [`client`] | a harness for measuring: raw MCP lines |
//! | [`clock`] | the only reader of the clock |
//! | [`codec`] | the relay's codec alone, for counting |
//! | [`contender`] | the definition of a contender, and its command lines with paths filled in |
//! | [`contenders`] | the contenders |
//! | [`credential_rotation`] | calls with credentials from Vault, and while these are replaced |
//! | [`footprint`] | the size of programs, their resident memory and their activity |
//! | [`front_door`] | installing, the first import, the sizes of what is published |
//! | [`hostile`] | an honest link beside a hostile sandbox |
//! | [`instructions`] | instructions per frame and per call, counted with callgrind |
//! | [`leases`] | the renewal scheduler for leases alone |
//! | [`local_run`] | `cofferdam run` beside the same sandbox without Cofferdam |
//! | [`many_sessions`] | a thousand sessions on one sidecar: their memory, their calls |
//! | [`measure`] | the measurements of one round |
//! | [`platforms`] | sandboxes on doubles of E2B and Daytona beside a local hub |
//! | [`process`] | starts and ends processes; no other module does |
//! | [`program_paths`] | where the shim, the sidecar and the contenders' programs are found |
//! | [`relay`] | a link without a shim |
//! | [`report`] | tables and chart |
//! | [`rounds`] | measures the contenders in turn, in several rounds |
//! | [`scrubbing`] | the scrubber alone |
//! | [`simulation`] | the simulation behind `leases` |
//! | [`statistics`] | medians with confidence intervals |
//!
//! Nothing is asserted about time: the numbers are compared with each other and reported.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use crate::arguments::{Counting, Mode, Plan};
use crate::awake::AwakeCores;
use crate::bench_error::BenchError;
use crate::program_paths::ProgramPaths;
use crate::report::builds::MeasuredBuilds;
use crate::report::machine::Host;
use crate::report::{Measurement, ReportData};

mod arguments;
mod attachments;
mod awake;
mod bench_error;
mod client;
mod clock;
mod codec;
mod contender;
mod contenders;
mod credential_rotation;
mod footprint;
mod front_door;
mod hostile;
mod instructions;
mod leases;
mod local_run;
mod many_sessions;
mod measure;
mod platforms;
mod process;
mod program_paths;
mod relay;
mod report;
mod rounds;
mod scrubbing;
mod simulation;
mod statistics;

fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Mode::Attack(attack, socket)) => {
            hostile::attack::run(attack, &socket).map_err(|error| error.with_causes())
        }
        Ok(Mode::Codec(body, count)) => codec::run(body, count),
        Ok(Mode::SlowTexts(count)) => scrubbing::search::run(count).map_err(|error| error.with_causes()),
        Ok(Mode::Run(plan)) => run(&plan).map_err(|error| error.with_causes()),
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
        contenders::CONTENDERS.iter().filter(|contender| plan.includes(contender.name)).collect();
    let awake_cores = AwakeCores::hold();
    let results = rounds::run(&contenders, plan, directory.path(), &paths);
    let counts = match plan.counting {
        Counting::Off => Vec::new(),
        Counting::On => instructions::count_all(directory.path(), &paths),
    };
    let hostile =
        Measurement::of(plan, hostile::HOSTILE, || hostile::run(plan.limits, directory.path(), &paths));
    let many_sessions = Measurement::of(plan, many_sessions::MANY_SESSIONS, || {
        many_sessions::run_all(plan.runs, plan.limits, directory.path(), &paths)
    });
    let leases = Measurement::of(plan, leases::LEASES, || leases::run(plan.limits.rounds));
    let credential_rotation = Measurement::of(plan, credential_rotation::CREDENTIAL_ROTATION, || {
        credential_rotation::run(plan.limits, directory.path(), &paths)
    });
    let local_run =
        Measurement::of(plan, local_run::LOCAL_RUN, || local_run::run(plan.limits, directory.path(), &paths));
    let platforms =
        Measurement::of(plan, platforms::PLATFORMS, || platforms::run(plan.limits, directory.path(), &paths));
    let attachments = Measurement::of(plan, attachments::ATTACHMENTS, || {
        attachments::run(plan.limits, directory.path(), &paths)
    });
    let front_door = Measurement::of(plan, front_door::FRONT_DOOR, || {
        front_door::run(plan.limits, directory.path(), &paths)
    });
    let scrubbing = Measurement::of(plan, scrubbing::SCRUBBING, || scrubbing::run(3 * plan.limits.rounds));
    let report = ReportData {
        results,
        hostile,
        many_sessions,
        leases,
        credential_rotation,
        local_run,
        platforms,
        attachments,
        front_door,
        scrubbing,
        builds: MeasuredBuilds::of(&paths),
        counts,
        rounds: plan.limits.rounds,
        runs: plan.runs,
        host: Host::describe(&paths, awake_cores.sleep()),
        date: clock::today(),
    };
    let printed = std::io::stdout().write_all(report.text("").as_bytes());
    printed.map_err(|source| BenchError::Write { what: "the report to the terminal".into(), source })?;
    match &plan.out {
        Some(out) => report.write(out),
        None => Ok(()),
    }
}
