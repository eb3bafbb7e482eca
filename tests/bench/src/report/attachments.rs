//! The report's section about many attached sandboxes in one sidecar.

use std::fmt::Write;

use super::Measurement;
use super::units::{grouped, rate, rounded, time};
use crate::attachments::AttachmentResults;

pub(super) fn section(trial: &Measurement<AttachmentResults>, out: &mut String) {
    let Some(found) = trial.results() else { return };
    out.push_str(
        "\n## Many attached sandboxes in one sidecar\n\n\
         | attachments | until all are attached | resident for each | idle: processor time per minute | idle: wake-ups per second |\n\
         |--:|--:|--:|--:|--:|\n",
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "| {} | {} | {} KiB | {} | {} |",
        grouped(found.attachments as u64),
        time(found.attach_time),
        rounded(found.memory as f64 / 1024.0),
        time(found.idle.processor_per_minute),
        rate(found.idle.wake_ups_per_second),
    );
}
