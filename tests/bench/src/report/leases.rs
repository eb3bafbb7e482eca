//! The report's section about the cost of renewing leases.

use std::fmt::Write;

use super::Measurement;
use super::units::{grouped, rounded, time};
use crate::leases::LeaseResults;

pub(super) fn section(trial: &Measurement<LeaseResults>, out: &mut String) {
    let Some(leases) = trial.results() else { return };
    let LeaseResults {
        sessions,
        lease_count,
        simulated,
        requests,
        expired,
        max_per_second,
        time_per_request,
    } = leases;
    let mean = *requests as f64 / simulated.as_secs_f64();
    out.push_str(
        "\n## Keeping leases\n\n\
         | sessions | leases | simulated | renewals, reads and look-ups | expired | per second, mean | per second, maximum | time for each |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "| {sessions} | {lease_count} | {} h | {} | {expired} | {} | {max_per_second} | {} |",
        simulated.as_secs() / 3600,
        grouped(*requests),
        rounded(mean),
        time(*time_per_request),
    );
}
