//! The report's section about calls of an honest link beside a hostile sandbox, with the number of attacks.

use std::fmt::Write;

use super::Measurement;
use super::units::{grouped, rate, rounded, time};
use crate::hostile::attack::Attack;
use crate::hostile::{Attacked, HostileResults};

pub(super) fn section(trial: &Measurement<HostileResults>, out: &mut String) {
    let Some(hostile) = trial.results() else { return };
    out.push_str(
        "\n## Beside a hostile sandbox\n\n\
         | other sandbox | one small call, p50 | × quiet | p99 | attacks per second | attacks in all rounds |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    // Writing to a string cannot fail.
    let quiet = hostile.quiet;
    let _ = writeln!(out, "| none | {} | 1 | {} | – | – |", time(quiet.median), time(quiet.p99));
    for attacked in &hostile.attacked {
        let Attacked { attack, small, per_second, attack_count } = *attacked;
        let (what, load) = match attack {
            Attack::Busy => ("only computes", None),
            Attack::Connections => {
                ("opens connections without a valid Hello", Some((per_second, attack_count)))
            }
            Attack::Messages => ("sends tiny messages", Some((per_second, attack_count))),
        };
        let (per_second, attack_count) =
            load.map_or(("–".into(), "–".into()), |(often, count)| (rate(often), grouped(count)));
        let _ = writeln!(
            out,
            "| {what} | {} | {} | {} | {per_second} | {attack_count} |",
            time(small.median),
            rounded(small.median.as_secs_f64() / quiet.median.as_secs_f64()),
            time(small.p99)
        );
    }
}
