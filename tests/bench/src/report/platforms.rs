//! The report's section about sandboxes on E2B and Daytona.

use std::fmt::Write;

use super::Measurement;
use super::units::{rounded, time};
use crate::platforms::{PlatformResults, Route};

pub(super) fn section(trial: &Measurement<PlatformResults>, out: &mut String) {
    let Some(platforms) = trial.results() else { return };
    out.push_str(
        "\n## Into sandboxes on platforms\n\n\
         E2B and Daytona are doubles on the same machine.\n\n\
         | hub | attach to the first call | with upload | one small call, p50 | × local | p99 | 16 MiB of results | × local |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let local = platforms.of(Route::Local);
    for result in &platforms.routes {
        let uploads = result.route != Route::Local;
        let ratio = |own: std::time::Duration, local: Option<std::time::Duration>| {
            local.map_or_else(|| "–".into(), |local| rounded(own.as_secs_f64() / local.as_secs_f64()))
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            result.route.name(),
            time(result.attach),
            if uploads { time(result.first_attach) } else { "–".into() },
            time(result.small.median),
            ratio(result.small.median, local.map(|local| local.small.median)),
            time(result.small.p99),
            time(result.large),
            ratio(result.large, local.map(|local| local.large)),
        );
    }
}
