//! Calls of an honest link beside a hostile sandbox, with the load that the sandbox made.

use std::fmt::Write;

use super::Trial;
use super::units::{digits, grouped, rate, time};
use crate::hostile::attack::Attack;
use crate::hostile::{Attacked, Hostile};

pub(super) fn section(trial: &Trial<Hostile>, out: &mut String) {
    let Some(hostile) = trial.found() else { return };
    out.push_str(
        "\n## Beside a hostile sandbox\n\n\
         | other sandbox | one small call, p50 | × quiet | p99 | attacks per second | attacks in all rounds |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    // Writing to a string cannot fail.
    let quiet = hostile.quiet;
    let _ = writeln!(out, "| none | {} | 1 | {} | – | – |", time(quiet.median), time(quiet.p99));
    for attacked in &hostile.attacked {
        let Attacked { attack, small, per_second, in_all } = *attacked;
        let (what, load) = match attack {
            Attack::Busy => ("only computes", None),
            Attack::Connections => ("opens connections without a valid Hello", Some((per_second, in_all))),
            Attack::Messages => ("sends tiny messages", Some((per_second, in_all))),
        };
        let (per_second, in_all) =
            load.map_or(("–".into(), "–".into()), |(often, count)| (rate(often), grouped(count)));
        let _ = writeln!(
            out,
            "| {what} | {} | {} | {} | {per_second} | {in_all} |",
            time(small.median),
            digits(small.median.as_secs_f64() / quiet.median.as_secs_f64()),
            time(small.p99)
        );
    }
}
