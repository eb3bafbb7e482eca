//! The target numbers, and whether this run met them. The benchmark only reports; it never fails because of a number.

use std::time::Duration;

use super::ReportData;
use super::units::{megabytes, rate, rounded, time};
use crate::contenders::{COFFERDAM, PEERS, SOCAT};
use crate::credential_rotation::CredentialRotationResults;
use crate::hostile::HostileResults;
use crate::hostile::attack::Attack;
use crate::local_run::LocalRunResults;
use crate::many_sessions::ManySessionsResults;
use crate::platforms::{PlatformResults, Route, RouteResult};
use crate::rounds::ContenderResult;
use crate::scrubbing::ScrubbingResults;

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
    let small = |result: &ContenderResult| result.best_small_calls().map(|small| small.median);
    let mut results = vec![findings.compare_durations(SMALL, SOCAT, small, Bound::AtMost(1.2))];
    results.extend(PEERS.map(|peer| findings.compare_speeds(SMALL, peer, small, Bound::AtLeast(25.0))));
    results.push(findings.compare_rates(SOCAT, Bound::AtLeast(0.7)));
    results.extend(PEERS.map(|peer| findings.compare_rates(peer, Bound::AtLeast(100.0))));
    results.push(findings.compare_durations(
        "a 1 MiB result, p50",
        SOCAT,
        ContenderResult::best_large_call,
        Bound::AtMost(1.5),
    ));
    results.push(findings.compare_durations(
        "start to `tools/list`, server warm",
        SOCAT,
        ContenderResult::best_start_time,
        Bound::AtMost(3.0),
    ));
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
    AtMost(f64),
}

const SMALL: &str = "one small call, p50";
const NOT_MEASURED: &str = "not measured";

impl ReportData {
    /// Compares durations: Cofferdam's as a multiple of the contender's.
    fn compare_durations(
        &self,
        what: &'static str,
        name: &'static str,
        measure: impl Fn(&ContenderResult) -> Option<Duration>,
        bound: Bound,
    ) -> TargetResult {
        let (ours, theirs) = (self.of(COFFERDAM, &measure), self.of(name, &measure));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours.as_secs_f64() / theirs.as_secs_f64());
        target_result(what, ours.map(time), name, theirs.map(time), ratio, bound)
    }

    /// Compares durations: the contender's as a multiple of Cofferdam's.
    fn compare_speeds(
        &self,
        what: &'static str,
        name: &'static str,
        measure: impl Fn(&ContenderResult) -> Option<Duration>,
        bound: Bound,
    ) -> TargetResult {
        let (ours, theirs) = (self.of(COFFERDAM, &measure), self.of(name, &measure));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| theirs.as_secs_f64() / ours.as_secs_f64());
        target_result(what, ours.map(time), name, theirs.map(time), ratio, bound)
    }

    fn compare_rates(&self, name: &'static str, bound: Bound) -> TargetResult {
        let measure = ContenderResult::calls_per_second;
        let (ours, theirs) = (self.of(COFFERDAM, &measure), self.of(name, &measure));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        target_result("calls per second, 32 in flight", ours.map(rate), name, theirs.map(rate), ratio, bound)
    }

    fn of<T>(&self, name: &str, measure: &impl Fn(&ContenderResult) -> Option<T>) -> Option<T> {
        self.result(name).and_then(measure)
    }
}

fn target_result(
    what: &'static str,
    ours: Option<String>,
    name: &str,
    theirs: Option<String>,
    ratio: Option<f64>,
    bound: Bound,
) -> TargetResult {
    let target = match bound {
        Bound::AtLeast(least) => format!("≥ {least} ×"),
        Bound::AtMost(most) => format!("≤ {most} ×"),
    };
    let against = match theirs {
        Some(theirs) => format!("{name}: {theirs}"),
        None => format!("{name}: {NOT_MEASURED}"),
    };
    TargetResult {
        what,
        ours: ours.unwrap_or_else(|| NOT_MEASURED.into()),
        against,
        ratio: ratio.map_or_else(|| "–".into(), |ratio| format!("{} ×", rounded(ratio))),
        target,
        outcome: outcome(ratio, bound),
    }
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
/// From the start of `cofferdam attach` to the first response, beyond an upload.
const ATTACH_TARGET: Duration = Duration::from_millis(150);

fn local_run(run: Option<&LocalRunResults>) -> TargetResult {
    let (ours, other) = (run.map(|run| run.alone), run.map(|run| run.sandboxed));
    let more = ours.zip(other).map(|(ours, other)| ours.saturating_sub(other));
    TargetResult {
        ratio: more.map_or_else(|| "–".into(), |more| format!("+ {}", time(more))),
        target: format!("≤ {} more", time(RUN_TARGET)),
        outcome: outcome(more.map(|more| more.as_secs_f64()), Bound::AtMost(RUN_TARGET.as_secs_f64())),
        ..compare_with(
            "`cofferdam run` to `tools/list`, bubblewrap, sidecar not running",
            ours,
            "the server in the same sandbox",
            other,
            Bound::AtMost(1.0),
        )
    }
}

fn platforms(platforms: Option<&PlatformResults>) -> [TargetResult; 4] {
    let time_of = |route, measure: fn(&RouteResult) -> Duration| platforms?.of(route).map(measure);
    let attach = |what, route| {
        let measure = |result: &RouteResult| result.attach;
        let ours = time_of(route, measure);
        let target = ATTACH_TARGET.as_secs_f64();
        TargetResult {
            target: format!("≤ {}", time(ATTACH_TARGET)),
            outcome: outcome(ours.map(|ours| ours.as_secs_f64()), Bound::AtMost(target)),
            ..compare_with(what, ours, "local hub", time_of(Route::Local, measure), Bound::AtMost(1.0))
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
    let ours = hostile.and_then(|hostile| hostile.under(attack)).map(|attacked| attacked.small.median);
    compare_with(what, ours, "quiet", hostile.map(|hostile| hostile.quiet.median), Bound::AtMost(3.0))
}

fn many_sessions(many_sessions: Option<&ManySessionsResults>) -> TargetResult {
    let ours = many_sessions.map(|many_sessions| many_sessions.together.p99);
    let alone = many_sessions.map(|many_sessions| many_sessions.alone.median);
    compare_with(
        "1,000 sessions, each calling once a second: p99, no error",
        ours,
        "one session, p50",
        alone,
        Bound::AtMost(5.0),
    )
}

/// A credential from Vault should add nothing to a call, because it was read before. A replacement may cost as much as
/// starting a process on the same cores.
fn credential_rotation(credential_rotation: Option<&CredentialRotationResults>) -> [TargetResult; 2] {
    let time = |measure: fn(&CredentialRotationResults) -> Duration| credential_rotation.map(measure);
    [
        compare_with(
            "one small call with a credential of Vault's, p50",
            time(|found| found.from_vault.median),
            "from a file",
            time(|found| found.from_file.median),
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

/// Compares two measurements of Cofferdam itself.
fn compare_with(
    what: &'static str,
    ours: Option<Duration>,
    name: &str,
    other: Option<Duration>,
    bound: Bound,
) -> TargetResult {
    let ratio = ours.zip(other).map(|(ours, other)| ours.as_secs_f64() / other.as_secs_f64());
    target_result(what, ours.map(time), name, other.map(time), ratio, bound)
}

fn idle_session(many_sessions: Option<&ManySessionsResults>) -> TargetResult {
    const MOST: f64 = 64.0;
    let kibibytes = many_sessions.map(|many_sessions| many_sessions.idle_session as f64 / 1024.0);
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
        Bound::AtLeast(least) => 1.0 - found / least,
        Bound::AtMost(most) => found / most - 1.0,
    };
    match missed_by > 0.0 {
        true => format!("**misses by {:.1} %**", missed_by * 100.0),
        false => "holds".into(),
    }
}
