//! What keeping leases costs.

use std::fmt::Write;

use super::Trial;
use super::units::{digits, grouped, time};
use crate::leases::Leases;

pub(super) fn section(trial: &Trial<Leases>, out: &mut String) {
    let Some(leases) = trial.found() else { return };
    let Leases { sessions, leases: count, simulated, actions, lapses, busiest, each } = leases;
    let mean = *actions as f64 / simulated.as_secs_f64();
    out.push_str(
        "\n## Keeping leases\n\n\
         | sessions | leases | simulated | renewals, reads and look-ups | expired | per second, mean | per second, most | time for each |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "| {sessions} | {count} | {} h | {} | {lapses} | {} | {busiest} | {} |",
        simulated.as_secs() / 3600,
        grouped(*actions),
        digits(mean),
        time(*each),
    );
}
