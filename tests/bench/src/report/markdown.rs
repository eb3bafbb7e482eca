//! The text of `BENCHMARKS.md`.

use std::fmt::Write;

use super::attachments;
use super::credential_rotation;
use super::front_door;
use super::hostile;
use super::leases;
use super::local_run;
use super::method::METHOD;
use super::platforms;
use super::scrubbing;
use super::targets::{evaluate, ratio_of_runs};
use super::units::{grouped, megabytes, rate, rounded, seconds, time, without_directories};
use super::{NOTES, ReportData};
use crate::awake::CoreSleep;
use crate::contenders::SOCAT;
use crate::measure::Round;
use crate::rounds;

pub(super) fn text(findings: &ReportData, notes: &str) -> String {
    let mut out = String::from("# Benchmarks\n\n");
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "Made by `just bench` on {}: {}. Cofferdam: {}. Contenders: {}.\n\n",
        findings.date,
        findings.host.machine,
        findings.builds,
        findings.host.versions.join(", ")
    );
    let _ = write!(
        out,
        "All contenders ran in turn, {}, {}; {}. Behind each of them is the same small stdio server. Times are those of this machine: only the \
         ratios can be compared with other machines.\n\n![The same numbers as a chart](benchmarks.svg)\n",
        match findings.runs {
            1 => format!("{} rounds each", findings.rounds),
            runs => format!("{runs} runs of {} rounds each", findings.rounds),
        },
        match findings.host.core_sleep {
            CoreSleep::Allowed => "on cores that could sleep, so that times include waking them",
            CoreSleep::Prevented => "with the cores kept from sleeping",
        },
        match findings.runs {
            1 => "the best round of each is shown",
            _ =>
                "the median of the runs is shown, of each run its best round, and beside the ratios of the promised numbers \
                 their smallest and largest value",
        }
    );
    side_by_side(findings, &mut out);
    target_numbers(findings, &mut out);
    hostile::section(&findings.hostile, &mut out);
    leases::section(&findings.leases, &mut out);
    credential_rotation::section(&findings.credential_rotation, &mut out);
    local_run::section(&findings.local_run, &mut out);
    platforms::section(&findings.platforms, &mut out);
    attachments::section(&findings.attachments, &mut out);
    front_door::section(&findings.front_door, &mut out);
    scrubbing::section(&findings.scrubbing, &mut out);
    counts(findings, &mut out);
    out.push_str(METHOD);
    for result in &findings.results {
        let _ = writeln!(out, "- **{}**: {}", result.name, result.about);
    }
    out.push_str(NOTES);
    if !notes.is_empty() {
        let _ = write!(out, "\n{notes}\n");
    }
    out
}

fn side_by_side(findings: &ReportData, out: &mut String) {
    out.push_str(
        "\n## Side by side\n\n\
         | | one small call, p50 | × socat | p99 | calls/s, 32 in flight | × socat | 1 MiB result, p50 | × socat \
         | start to `tools/list` | × socat | client's end resident | after 1 MiB |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let socat = findings.result(SOCAT);
    for result in &findings.results {
        let to_socat = |measure: fn(&[Round]) -> Option<f64>| {
            let ratio = socat.and_then(|socat| ratio_of_runs(result, socat, measure));
            match result.name == SOCAT {
                true => "1".into(),
                false => or_dash(ratio.map(|ratio| rounded(ratio.median))),
            }
        };
        let duration = |measure: fn(&[Round]) -> Option<f64>| or_dash(result.median_of(measure).map(seconds));
        let cells = [
            duration(rounds::small_call),
            to_socat(rounds::small_call),
            or_dash(result.best_small_calls().map(|small| time(small.p99))),
            or_dash(result.median_of(rounds::calls_per_second).map(rate)),
            to_socat(rounds::calls_per_second),
            duration(rounds::large_call),
            to_socat(rounds::large_call),
            duration(rounds::start_time),
            to_socat(rounds::start_time),
            or_dash(result.memory.map(|memory| megabytes(memory.after_small_calls))),
            or_dash(result.memory.map(|memory| megabytes(memory.after_large_call))),
        ];
        let _ = writeln!(out, "| {} | {} |", result.name, cells.join(" | "));
    }
    for result in &findings.results {
        if let Some(reason) = &result.failure {
            let _ = write!(out, "\n**{}** failed: {}\n", result.name, without_directories(reason));
        }
    }
}

fn target_numbers(findings: &ReportData, out: &mut String) {
    out.push_str("\n## Promised numbers\n\n");
    if let Some(objection) = findings.builds.objection() {
        let _ = write!(out, "{objection}\n\n");
    }
    out.push_str("| what | cofferdam | against | ratio | target | |\n|---|--:|---|--:|--:|---|\n");
    for result in evaluate(findings) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            result.what, result.ours, result.against, result.ratio, result.target, result.outcome
        );
    }
    let failed = [
        ("a hostile sandbox", findings.hostile.failure()),
        ("1,000 sessions", findings.many_sessions.failure()),
        ("keeping leases", findings.leases.failure()),
        ("credentials from Vault", findings.credential_rotation.failure()),
        ("`cofferdam run`", findings.local_run.failure()),
        ("sandboxes on platforms", findings.platforms.failure()),
        ("1,000 attachments", findings.attachments.failure()),
        ("installing and importing", findings.front_door.failure()),
        ("scrubbing", findings.scrubbing.failure()),
    ];
    for (what, reason) in failed {
        if let Some(reason) = reason {
            let _ = write!(out, "\n**{what}** failed: {}\n", without_directories(reason));
        }
    }
}

fn counts(findings: &ReportData, out: &mut String) {
    if findings.counts.is_empty() {
        return;
    }
    out.push_str(
        "\n## Instructions\n\n\
         Counted by callgrind, recorded for comparison with later versions; there is no target. Instructions in the \
         kernel are not counted.\n\n| what | instructions |\n|---|--:|\n",
    );
    for count in &findings.counts {
        let number = match &count.instructions {
            Ok(instructions) => grouped(*instructions),
            Err(reason) => format!("not counted: {}", without_directories(reason)),
        };
        let _ = writeln!(out, "| {} | {number} |", count.what);
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}
