//! The report's section about the start of `cofferdam run`.

use std::fmt::Write;

use super::Measurement;
use super::units::time;
use crate::local_run::LocalRunResults;

pub(super) fn section(trial: &Measurement<LocalRunResults>, out: &mut String) {
    let Some(run) = trial.results() else { return };
    out.push_str(
        "\n## Starting a local sandbox\n\n\
         | command | to `tools/list` | beyond the server in the sandbox |\n|---|--:|--:|\n",
    );
    for (what, took) in [
        ("the server, without a sandbox", run.unconfined),
        ("the server in the sandbox, without Cofferdam", run.sandboxed),
        ("`cofferdam run`, which starts a sidecar", run.alone),
        ("`cofferdam run` beside another run, whose sidecar it shares", run.shared),
    ] {
        let beyond = took.checked_sub(run.sandboxed).filter(|beyond| !beyond.is_zero());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {what} | {} | {} |", time(took), beyond.map_or_else(|| "–".into(), time));
    }
}
