//! Measures the time from the start of `cofferdam run` to the response to `tools/list`, compared with the same server in the
//! same sandbox without Cofferdam.
//!
//! The sandbox without Cofferdam is started with the command line that `cofferdam run --dry-run` prints for the server,
//! without the mounts from the directory of that run, which a dry run does not create. `cofferdam run` is measured twice:
//! alone, when it starts a sidecar and ends it, and beside another run whose sidecar it shares.

use std::path::Path;
use std::time::Duration;

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::contender::{CommandLine, Contender, Ready};
use crate::contenders::SECRET;
use crate::measure::RoundLimits;
use crate::process::output_of;
use crate::program_paths::ProgramPaths;

/// The name of this measurement for `--only`.
pub(crate) const LOCAL_RUN: &str = "run";

/// Times from the start of a command to the response to `tools/list`: the best round of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalRunResults {
    /// The server without a sandbox.
    pub(crate) unconfined: Duration,
    /// The server in the sandbox of `cofferdam run`, without Cofferdam.
    pub(crate) sandbox_without_cofferdam: Duration,
    /// `cofferdam run`, which starts a sidecar.
    pub(crate) run_alone: Duration,
    /// `cofferdam run` beside another run, whose sidecar it shares.
    pub(crate) run_beside_another: Duration,
}

/// Runs all rounds; `dir` is for the files of the runs.
pub(crate) fn run(
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<LocalRunResults, BenchError> {
    let dir = dir.join(LOCAL_RUN);
    let prepared = RUN.prepare(&dir, paths)?;
    let cofferdam_run = prepared.client.in_directory(&dir.join(PROJECT));
    let server = paths.fill("{server}".into())?;
    let sandbox_without_cofferdam = without_cofferdam(&cofferdam_run, &server)?;
    let unconfined = cofferdam_run.with_arguments(vec![server]);
    let mut best = [Duration::MAX; 4];
    for number in 1..=limits.rounds.min(MAX_ROUNDS) {
        let single_starts =
            [&unconfined, &sandbox_without_cofferdam, &cofferdam_run].map(|line| limits.start_time(line));
        let mut other_run = Client::start(&cofferdam_run)?;
        let beside_another = limits.start_time(&cofferdam_run);
        other_run.end();
        for (best, took) in best.iter_mut().zip(single_starts.into_iter().chain([beside_another])) {
            *best = took?.min(*best);
        }
        eprintln!(
            "bench: round {number}, best starts unconfined, sandboxed, run alone, run beside another: {best:?}"
        );
    }
    let [unconfined, sandbox_without_cofferdam, run_alone, run_beside_another] = best;
    Ok(LocalRunResults { unconfined, sandbox_without_cofferdam, run_alone, run_beside_another })
}

const PROJECT: &str = "project";
const RUN: Contender = Contender {
    name: LOCAL_RUN,
    about: "`cofferdam run` with bubblewrap",
    directories: &["admin", "home", PROJECT, "state"],
    files: &[("cofferdam.toml", include_str!("cofferdam.toml")), ("secret", SECRET)],
    host: &[],
    ready: Ready::AtOnce,
    enrol: &[],
    client: &[
        "{cofferdam}",
        "run",
        "-c",
        "{dir}/cofferdam.toml",
        "--quiet",
        "--sandbox",
        "bwrap",
        "--grant",
        "bench",
        "--shim",
        "{shim}",
        END_OF_OPTIONS,
        "cofferdam-shim",
        "--server",
        "bench",
    ],
    env: &[("HOME", "{dir}/home")],
};
const END_OF_OPTIONS: &str = "--";
/// A round starts and ends several sandboxes and sidecars.
const MAX_ROUNDS: usize = 6;
/// The character with which a dry run quotes words that a shell would interpret.
const QUOTE: char = '\'';
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(10);

/// The command line of bubblewrap that `run` would use for this server, without the mounts of Cofferdam.
fn without_cofferdam(run: &CommandLine, server: &str) -> Result<CommandLine, BenchError> {
    let options = run.argv.iter().take_while(|word| *word != END_OF_OPTIONS);
    let dry_run = ["--dry-run", END_OF_OPTIONS, server].map(str::to_owned);
    let dry_run = run.with_arguments(options.cloned().chain(dry_run).collect());
    let printed = output_of(dry_run.command(), DRY_RUN_TIMEOUT);
    let printed = printed.ok_or_else(|| BenchError::Ended {
        what: "cofferdam run --dry-run".into(),
        last_log_line: dry_run.last_log_line(),
    })?;
    if printed.contains(QUOTE) {
        return Err(BenchError::UnexpectedResponse("a path that has to be quoted in a command line".into()));
    }
    let words = printed.split_whitespace().map(str::to_owned).collect();
    Ok(run.with_arguments(without_missing_mounts(words, |path| Path::new(path).exists())))
}

/// Removes the mounts whose source does not exist.
fn without_missing_mounts(words: Vec<String>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if !matches!(word.as_str(), "--bind" | "--ro-bind") {
            kept.push(word);
            continue;
        }
        let mount: Vec<String> = words.by_ref().take(2).collect();
        if mount.first().is_some_and(|source| exists(source)) {
            kept.push(word);
            kept.extend(mount);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_the_directory_that_a_dry_run_does_not_create_are_removed() {
        let words = "bwrap --ro-bind /usr /usr --ro-bind /tmp/run-1/shim /opt/shim --bind /p /p -- /s";
        let words = words.split(' ').map(str::to_owned).collect();
        let kept = without_missing_mounts(words, |path| !path.contains("run-1"));
        assert_eq!(kept.join(" "), "bwrap --ro-bind /usr /usr --bind /p /p -- /s");
    }
}
