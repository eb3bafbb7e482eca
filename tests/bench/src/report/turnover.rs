//! The report's section about calls while processes are replaced because of new credentials.

use std::fmt::Write;

use super::Trial;
use super::units::{grouped, time};
use crate::measure::SmallCalls;
use crate::turnover::TurnoverResults;

pub(super) fn section(trial: &Trial<TurnoverResults>, out: &mut String) {
    let Some(turnover) = trial.results() else { return };
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
    row("between replacements", turnover.quiet, "–");
    let during = format!("during one of {} replacements", turnover.replacements);
    row(&during, turnover.during, &time(turnover.longest));
}
