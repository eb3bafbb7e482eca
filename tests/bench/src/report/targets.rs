//! The target numbers, and whether this run met them. The benchmark only reports; it never fails because of a number.

use std::time::Duration;

use super::ReportData;
use super::units::{megabytes, rate, rounded, seconds, time};
use crate::contenders::{COFFERDAM, PEERS, SOCAT};
use crate::credential_rotation::CredentialRotationResults;
use crate::hostile::HostileResults;
use crate::hostile::attack::Attack;
use crate::local_run::LocalRunResults;
use crate::many_sessions::ManySessionsResults;
use crate::measure::{Round, SmallCalls};
use crate::platforms::{PlatformResults, Route, RouteResult};
use crate::rounds::{self, ContenderResult};
use crate::scrubbing::ScrubbingResults;
use crate::statistics::Estimate;

/// One target and its measured value.
pub(super) struct TargetResult {
    pub(super) what: &'static str,
    pub(super) ours: String,
    pub(super) against: String,
    pub(super) ratio: String,
    pub(super) target: String,
    pub(super) outcome: String,
}

pub(super) fn evaluate(findings: &ReportData) -> Vec<TargetResult> {
    let small = |peer, bound| findings.compare(SMALL, peer, rounds::small_call, seconds, bound);
    let rates = |peer, bound| findings.compare(RATE, peer, rounds::calls_per_second, rate, bound);
    let mut results = vec![small(SOCAT, Bound::AtMost(1.2))];
    results.extend(PEERS.map(|peer| small(peer, Bound::InverseAtLeast(25.0))));
    results.push(rates(SOCAT, Bound::AtLeast(0.7)));
    results.extend(PEERS.map(|peer| rates(peer, Bound::AtLeast(100.0))));
    let large = "a 1 MiB result, p50";
    results.push(findings.compare(large, SOCAT, rounds::large_call, seconds, Bound::AtMost(1.5)));
    let start = "start to `tools/list`, server warm";
    results.push(findings.compare(start, SOCAT, rounds::start_time, seconds, Bound::AtMost(3.0)));
    results.push(size("shim: size of the static file", findings.builds.shim_size, 2_500_000));
    results.push(size("the same without TLS and hub", findings.builds.small_shim_size, 1_000_000));
    let memory = findings.result(COFFERDAM).and_then(|result| result.memory);
    results.push(size(
        "shim: resident after 1,000 small calls",
        memory.map(|memory| memory.after_small_calls),
        3_000_000,
    ));
    results.push(idle_session(findings.many_sessions.results()));
    results.push(many_sessions(findings.many_sessions.results()));
    results.extend(credential_rotation(findings.credential_rotation.results()));
    results.extend(
        [
            (
                "one small call, p50, beside a sandbox that floods the socket with connections",
                Attack::Connections,
            ),
            ("one small call, p50, beside a sandbox that floods its link with messages", Attack::Messages),
        ]
        .map(|(what, attack)| attacked(what, findings.hostile.results(), attack)),
    );
    results.extend(scrubbing(findings.scrubbing.results()));
    results.push(local_run(findings.local_run.results()));
    results.extend(platforms(findings.platforms.results()));
    results
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    /// How many times as long the other may take at least: the inverse of the ratio is compared and shown.
    InverseAtLeast(f64),
    AtMost(f64),
}

const SMALL: &str = "one small call, p50";
const RATE: &str = "calls per second, 32 in flight";
const NOT_MEASURED: &str = "not measured";

impl ReportData {
    /// Compares Cofferdam with a contender by a value of each run.
    fn compare(
        &self,
        what: &'static str,
        name: &'static str,
        measure: fn(&[Round]) -> Option<f64>,
        show: fn(f64) -> String,
        bound: Bound,
    ) -> TargetResult {
        let (ours, theirs) = (self.result(COFFERDAM), self.result(name));
        let median = |result: Option<&ContenderResult>| result.and_then(|result| result.median_of(measure));
        let ratio = ours.zip(theirs).and_then(|(ours, theirs)| match bound {
            Bound::InverseAtLeast(_) => ratio_of_runs(theirs, ours, measure),
            Bound::AtLeast(_) | Bound::AtMost(_) => ratio_of_runs(ours, theirs, measure),
        });
        target_result(what, median(ours).map(show), name, median(theirs).map(show), ratio, bound)
    }
}

/// The ratio of two contenders' values in each run that both have completed.
pub(super) fn ratio_of_runs(
    one: &ContenderResult,
    other: &ContenderResult,
    measure: fn(&[Round]) -> Option<f64>,
) -> Option<Estimate> {
    let runs = one.runs.iter().zip(&other.runs);
    Estimate::of(runs.filter_map(|(one, other)| Some(measure(one)? / measure(other)?)))
}

fn target_result(
    what: &'static str,
    ours: Option<String>,
    name: &str,
    theirs: Option<String>,
    ratio: Option<Estimate>,
    bound: Bound,
) -> TargetResult {
    let target = match bound {
        Bound::AtLeast(least) | Bound::InverseAtLeast(least) => format!("≥ {least} ×"),
        Bound::AtMost(most) => format!("≤ {most} ×"),
    };
    TargetResult {
        what,
        ours: or_not_measured(ours),
        against: format_against(name, theirs),
        ratio: format_ratio(ratio),
        target,
        outcome: outcome(ratio.map(|ratio| ratio.median), bound),
    }
}

/// The median, and how certain it is: the 95 % interval, or the spread of values that are too few for one.
fn format_ratio(ratio: Option<Estimate>) -> String {
    let Some(ratio) = ratio else { return "–".into() };
    let median = rounded(ratio.median);
    match (ratio.interval, ratio.spread) {
        (Some((low, high)), _) => format!("{median} × (95 %: {}–{})", rounded(low), rounded(high)),
        (None, (low, high)) if low < high => format!("{median} × ({}–{})", rounded(low), rounded(high)),
        (None, _) => format!("{median} ×"),
    }
}

fn or_not_measured(measured: Option<String>) -> String {
    measured.unwrap_or_else(|| NOT_MEASURED.into())
}

fn format_against(name: &str, theirs: Option<String>) -> String {
    format!("{name}: {}", or_not_measured(theirs))
}

fn ratio_of(ours: Option<Duration>, other: Option<Duration>) -> Option<f64> {
    ours.zip(other).map(|(ours, other)| ours.as_secs_f64() / other.as_secs_f64())
}

fn size(what: &'static str, bytes: Option<u64>, most: u32) -> TargetResult {
    TargetResult {
        what,
        ours: bytes.map_or_else(|| NOT_MEASURED.into(), megabytes),
        against: "–".into(),
        ratio: "–".into(),
        target: format!("≤ {} MB", f64::from(most) / 1e6),
        outcome: outcome(bytes.map(|bytes| bytes as f64), Bound::AtMost(f64::from(most))),
    }
}

/// `cofferdam run` may take this much longer than the same server in the same sandbox without Cofferdam.
const RUN_TARGET: Duration = Duration::from_millis(150);
/// From the start of `cofferdam attach` to the first response, when the shim is in the sandbox already.
const ATTACH_TARGET: Duration = Duration::from_millis(150);

fn local_run(run: Option<&LocalRunResults>) -> TargetResult {
    let (ours, other) = (run.map(|run| run.run_alone), run.map(|run| run.sandbox_without_cofferdam));
    let more = ours.zip(other).map(|(ours, other)| ours.saturating_sub(other));
    TargetResult {
        what: "`cofferdam run` to `tools/list`, bubblewrap, sidecar not running",
        ours: or_not_measured(ours.map(time)),
        against: format_against("the server in the same sandbox", other.map(time)),
        ratio: more.map_or_else(|| "–".into(), |more| format!("+ {}", time(more))),
        target: format!("≤ {} more", time(RUN_TARGET)),
        outcome: outcome(more.map(|more| more.as_secs_f64()), Bound::AtMost(RUN_TARGET.as_secs_f64())),
    }
}

fn platforms(platforms: Option<&PlatformResults>) -> [TargetResult; 4] {
    let time_of = |route, measure: fn(&RouteResult) -> Duration| platforms?.of(route).map(measure);
    let attach = |what, route| {
        let measure = |result: &RouteResult| result.attach;
        let (ours, local) = (time_of(route, measure), time_of(Route::Local, measure));
        let target = ATTACH_TARGET.as_secs_f64();
        TargetResult {
            what,
            ours: or_not_measured(ours.map(time)),
            against: format_against("local hub", local.map(time)),
            ratio: format_ratio(Estimate::of(ratio_of(ours, local))),
            target: format!("≤ {}", time(ATTACH_TARGET)),
            outcome: outcome(ours.map(|ours| ours.as_secs_f64()), Bound::AtMost(target)),
        }
    };
    let small = |what, route| {
        let measure = |result: &RouteResult| result.small.median;
        let (ours, local) = (time_of(route, measure), time_of(Route::Local, measure));
        compare_with(what, ours, "local hub", local, Bound::AtMost(3.0))
    };
    [
        attach("`attach e2b` to the first call, shim there already", Route::E2b),
        attach("`attach daytona` to the first call, shim there already", Route::Daytona),
        small("one small call into E2B, p50", Route::E2b),
        small("one small call into Daytona, p50", Route::Daytona),
    ]
}

fn attacked(what: &'static str, hostile: Option<&HostileResults>, attack: Attack) -> TargetResult {
    let attacked = hostile.and_then(|hostile| hostile.under(attack));
    let pairs = hostile.zip(attacked).map(|(hostile, attacked)| (&attacked.rounds[..], &hostile.quiet[..]));
    compare_rounds(what, pairs, "quiet", Bound::AtMost(3.0))
}

/// The medians of the runs, and of the ratios in each of them.
fn many_sessions(runs: Option<&Vec<ManySessionsResults>>) -> TargetResult {
    let seconds = |measure: fn(&ManySessionsResults) -> f64| {
        Estimate::of(runs.into_iter().flatten().map(measure)).map(|found| found.median)
    };
    let together = |run: &ManySessionsResults| run.together.p99.as_secs_f64();
    let alone = |run: &ManySessionsResults| run.alone.median.as_secs_f64();
    target_result(
        "1,000 sessions, each calling once a second: p99, no error",
        seconds(together).map(|found| time(Duration::from_secs_f64(found))),
        "one session, p50",
        seconds(alone).map(|found| time(Duration::from_secs_f64(found))),
        Estimate::of(runs.into_iter().flatten().map(|run| together(run) / alone(run))),
        Bound::AtMost(5.0),
    )
}

/// A credential from Vault should add nothing to a call, because it was read before. A replacement may cost as much as
/// starting a process on the same cores.
fn credential_rotation(credential_rotation: Option<&CredentialRotationResults>) -> [TargetResult; 2] {
    let time = |measure: fn(&CredentialRotationResults) -> Duration| credential_rotation.map(measure);
    [
        compare_rounds(
            "one small call with a credential of Vault's, p50",
            credential_rotation.map(|found| (&found.from_vault[..], &found.from_file[..])),
            "from a file",
            Bound::AtMost(1.1),
        ),
        compare_with(
            "small calls while a process is replaced: p99, no error",
            time(|found| found.during.p99),
            "quiet, p99",
            time(|found| found.quiet.p99),
            Bound::AtMost(10.0),
        ),
    ]
}

/// Compares calls that were measured in rounds, in turn, by the ratio of the medians of each round.
fn compare_rounds(
    what: &'static str,
    rounds: Option<(&[SmallCalls], &[SmallCalls])>,
    name: &str,
    bound: Bound,
) -> TargetResult {
    let medians = |rounds: &[SmallCalls]| rounds.iter().map(|round| round.median.as_secs_f64()).collect();
    let (ours, other): (Vec<f64>, Vec<f64>) =
        rounds.map(|(ours, other)| (medians(ours), medians(other))).unwrap_or_default();
    let median = |values: &[f64]| Estimate::of(values.iter().copied()).map(|found| seconds(found.median));
    let ratio = Estimate::of(ours.iter().zip(&other).map(|(ours, other)| ours / other));
    let compared = target_result(what, median(&ours), name, median(&other), ratio, bound);
    match ratio.is_some_and(|ratio| ratio.may_be(1.0)) {
        true => TargetResult { outcome: format!("{}; no difference seen", compared.outcome), ..compared },
        false => compared,
    }
}

/// The time of the scrubber must not depend much on what a server sends and how many values there are.
fn scrubbing(scrubbing: Option<&ScrubbingResults>) -> [TargetResult; 2] {
    let plain = scrubbing.and_then(ScrubbingResults::plain);
    let slowest = scrubbing.and_then(ScrubbingResults::slowest);
    [
        compare_with(
            "scrubbing a result of 1 MiB, the slowest of all texts",
            slowest.map(|text| text.one_value),
            "prose in lines",
            plain.map(|text| text.one_value),
            Bound::AtMost(4.0),
        ),
        compare_with(
            "scrubbing a result of 1 MiB, 10,000 values",
            plain.map(|text| text.many_values),
            "one value",
            plain.map(|text| text.one_value),
            Bound::AtMost(1.1),
        ),
    ]
}

/// Compares the durations of two measurements.
fn compare_with(
    what: &'static str,
    ours: Option<Duration>,
    name: &str,
    other: Option<Duration>,
    bound: Bound,
) -> TargetResult {
    target_result(what, ours.map(time), name, other.map(time), Estimate::of(ratio_of(ours, other)), bound)
}

fn idle_session(runs: Option<&Vec<ManySessionsResults>>) -> TargetResult {
    const MOST: f64 = 64.0;
    let of_runs = runs.into_iter().flatten().map(|run| run.idle_session as f64 / 1024.0);
    let kibibytes = Estimate::of(of_runs).map(|found| found.median);
    TargetResult {
        what: "sidecar: resident for one idle session",
        ours: kibibytes.map_or_else(|| NOT_MEASURED.into(), |found| format!("{} KiB", rounded(found))),
        against: "–".into(),
        ratio: "–".into(),
        target: format!("≤ {MOST} KiB"),
        outcome: outcome(kibibytes, Bound::AtMost(MOST)),
    }
}

fn outcome(found: Option<f64>, bound: Bound) -> String {
    let Some(found) = found else { return NOT_MEASURED.into() };
    let missed_by = match bound {
        Bound::AtLeast(least) | Bound::InverseAtLeast(least) => 1.0 - found / least,
        Bound::AtMost(most) => found / most - 1.0,
    };
    match missed_by > 0.0 {
        true => format!("**misses by {:.1} %**", missed_by * 100.0),
        false => "holds".into(),
    }
}
