//! The report's section about calls while processes are replaced because of new credentials.

use std::fmt::Write;

use super::Measurement;
use super::units::{grouped, time};
use crate::credential_rotation::CredentialRotationResults;
use crate::measure::SmallCalls;

pub(super) fn section(trial: &Measurement<CredentialRotationResults>, out: &mut String) {
    let Some(credential_rotation) = trial.results() else { return };
    out.push_str(
        "\n## While credentials are replaced\n\n\
         | | one small call, p50 | p99 | longest | calls |\n|---|--:|--:|--:|--:|\n",
    );
    let mut row = |what: &str, small: SmallCalls, longest: &str| {
        let calls = grouped(small.calls as u64);
        // Writing to a string cannot fail.
        let _ =
            writeln!(out, "| {what} | {} | {} | {longest} | {calls} |", time(small.median), time(small.p99));
    };
    row("between replacements", credential_rotation.quiet, "–");
    let during = format!("during one of {} replacements", credential_rotation.replacements);
    row(&during, credential_rotation.during, &time(credential_rotation.longest));
}
