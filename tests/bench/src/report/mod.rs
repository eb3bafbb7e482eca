//! The results of a run, as `BENCHMARKS.md` and `benchmarks.svg`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`attachments`] | a thousand attached sandboxes |
//! | [`builds`] | the measured builds of the sidecar and of the shim |
//! | [`chart`] | the chart |
//! | [`credential_rotation`] | calls while credentials from Vault are replaced |
//! | [`front_door`] | installing and importing |
//! | [`hostile`] | an honest link beside a hostile sandbox |
//! | [`leases`] | the cost of renewing leases |
//! | [`local_run`] | the start of `cofferdam run` |
//! | [`machine`] | the size of the machine and the versions of the contenders: no host names, no paths |
//! | [`markdown`] | the text of `BENCHMARKS.md` |
//! | [`method`] | the description of the measurements |
//! | [`platforms`] | sandboxes on E2B and Daytona |
//! | [`scrubbing`] | the time of the scrubber alone |
//! | [`targets`] | the target numbers, and whether they were met |
//! | [`units`] | readable numbers |
//!
//! The text under `## Notes` is written by hand; it is copied into the new report.

use std::path::Path;

use crate::arguments::Plan;
use crate::attachments::AttachmentResults;
use crate::bench_error::BenchError;
use crate::credential_rotation::CredentialRotationResults;
use crate::front_door::FrontDoorResults;
use crate::hostile::HostileResults;
use crate::instructions::InstructionCount;
use crate::leases::LeaseResults;
use crate::local_run::LocalRunResults;
use crate::many_sessions::ManySessionsResults;
use crate::platforms::PlatformResults;
use crate::rounds::ContenderResult;
use crate::scrubbing::ScrubbingResults;
use builds::MeasuredBuilds;
use machine::Host;

mod attachments;
pub(crate) mod builds;
mod chart;
mod credential_rotation;
mod front_door;
mod hostile;
mod leases;
mod local_run;
pub(crate) mod machine;
mod markdown;
mod method;
mod platforms;
mod scrubbing;
mod targets;
mod units;

/// Everything that a report is made of.
#[derive(Debug)]
pub(crate) struct ReportData {
    pub(crate) results: Vec<ContenderResult>,
    pub(crate) hostile: Measurement<HostileResults>,
    /// One for each run.
    pub(crate) many_sessions: Measurement<Vec<ManySessionsResults>>,
    pub(crate) leases: Measurement<LeaseResults>,
    pub(crate) credential_rotation: Measurement<CredentialRotationResults>,
    pub(crate) local_run: Measurement<LocalRunResults>,
    pub(crate) platforms: Measurement<PlatformResults>,
    pub(crate) attachments: Measurement<AttachmentResults>,
    pub(crate) front_door: Measurement<FrontDoorResults>,
    pub(crate) scrubbing: Measurement<ScrubbingResults>,
    pub(crate) builds: MeasuredBuilds,
    pub(crate) counts: Vec<InstructionCount>,
    pub(crate) rounds: usize,
    pub(crate) runs: usize,
    pub(crate) host: Host,
    pub(crate) date: String,
}

/// A measurement of cofferdam alone.
#[derive(Debug)]
pub(crate) enum Measurement<T> {
    Done(T),
    Failed(String),
    /// The command line did not select this measurement.
    NotSelected,
}

impl<T> Measurement<T> {
    /// Runs the measurement, if the plan includes this name.
    pub(crate) fn of(plan: &Plan, name: &str, run: impl FnOnce() -> Result<T, BenchError>) -> Self {
        if !plan.includes(name) {
            return Self::NotSelected;
        }
        match run() {
            Ok(found) => Self::Done(found),
            Err(error) => {
                let reason = error.with_causes();
                eprintln!("bench: {name} failed: {reason}");
                Self::Failed(reason)
            }
        }
    }

    fn results(&self) -> Option<&T> {
        match self {
            Self::Done(found) => Some(found),
            Self::Failed(_) | Self::NotSelected => None,
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed(reason) => Some(reason),
            Self::Done(_) | Self::NotSelected => None,
        }
    }
}

impl ReportData {
    /// The report's text, with the notes of the previous report.
    pub(crate) fn text(&self, notes: &str) -> String {
        markdown::text(self, notes)
    }

    /// Writes both files, with the notes of the previous report.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), BenchError> {
        let path = directory.join("BENCHMARKS.md");
        let notes = notes_in(&std::fs::read_to_string(&path).unwrap_or_default());
        let written = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(path, self.text(&notes)))
            .and_then(|()| std::fs::write(directory.join("benchmarks.svg"), chart::svg(&self.results)));
        written.map_err(|source| BenchError::Write { what: "the report".into(), source })
    }

    fn result(&self, name: &str) -> Option<&ContenderResult> {
        self.results.iter().find(|result| result.name == name)
    }
}

fn notes_in(report: &str) -> String {
    report.split_once(NOTES).map(|(_, notes)| notes.trim().to_owned()).unwrap_or_default()
}

const NOTES: &str = "\n## Notes\n";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attachments::IdleLoad;
    use crate::awake::CoreSleep;
    use crate::contenders::{COFFERDAM, SOCAT};
    use crate::hostile::attack::Attack;
    use crate::hostile::{AttackCount, Attacked};
    use crate::measure::{Round, SmallCalls};
    use crate::platforms::{Route, RouteResult};
    use builds::BuildProfile;

    fn result(name: &'static str, small: u64, failure: Option<&str>) -> ContenderResult {
        let round = |small: u64, calls_per_second| Round {
            start: Duration::from_millis(small),
            small: SmallCalls {
                median: Duration::from_micros(small),
                p99: Duration::from_micros(2 * small),
                calls: 100,
            },
            calls_per_second,
            large: Duration::from_micros(100 * small),
        };
        let runs = match failure {
            None => vec![vec![round(small + 5, 900.0), round(small, 800.0)]],
            Some(_) => Vec::new(),
        };
        ContenderResult { name, about: "a <test>", runs, memory: None, failure: failure.map(Into::into) }
    }

    fn findings() -> ReportData {
        ReportData {
            results: vec![
                result(SOCAT, 20, None),
                result("broken", 1, Some("start /home/me/x/broken.py: no such file")),
                result(COFFERDAM, 28, None),
            ],
            hostile: Measurement::NotSelected,
            many_sessions: Measurement::NotSelected,
            leases: Measurement::NotSelected,
            credential_rotation: Measurement::NotSelected,
            local_run: Measurement::NotSelected,
            front_door: Measurement::NotSelected,
            platforms: Measurement::NotSelected,
            attachments: Measurement::NotSelected,
            scrubbing: Measurement::NotSelected,
            builds: MeasuredBuilds {
                sidecar: BuildProfile(Some("dist".into())),
                shim: BuildProfile(Some("shim".into())),
                shim_size: Some(2_600_000),
                small_shim_size: Some(800_000),
            },
            counts: Vec::new(),
            rounds: 2,
            runs: 1,
            host: Host { machine: "2 cores".into(), core_sleep: CoreSleep::Prevented, versions: Vec::new() },
            date: "2026-01-01".into(),
        }
    }

    #[test]
    fn the_best_round_is_compared_and_a_missed_target_shows_by_how_much() {
        let text = findings().text("");
        assert!(text.contains("| two socat | 20.0 µs | 1 |"), "{text}");
        assert!(text.contains("| cofferdam | 28.0 µs | 1.40 |"), "{text}");
        assert!(text.contains("1.40 × | ≤ 1.5 × | holds"), "{text}");
        assert!(text.contains("| 2.60 MB | – | – | ≤ 2.5 MB | **misses by 4.0 %**"), "{text}");
        assert!(text.contains("≥ 25 × | not measured"), "{text}");
    }

    #[test]
    fn several_runs_are_compared_by_the_median_of_their_ratios() {
        let mut findings = findings();
        findings.runs = 3;
        for small in [10, 25] {
            findings.results[0].runs.extend(result(SOCAT, 20, None).runs);
            findings.results[2].runs.extend(result(COFFERDAM, small, None).runs);
        }
        let text = findings.text("");
        assert!(text.contains("3 runs of 2 rounds each"), "{text}");
        assert!(text.contains("| cofferdam | 25.0 µs | 1.25 |"), "{text}");
        assert!(text.contains("| 1.25 × (0.50–1.40) | ≤ 1.2 × | **misses by 4.2 %**"), "{text}");
    }

    #[test]
    fn the_report_names_its_profiles_and_says_when_they_are_not_those_that_ship() {
        let mut findings = findings();
        let text = findings.text("");
        assert!(
            text.contains("sidecar with the profile `dist` and the shim with the profile `shim`"),
            "{text}"
        );
        assert!(!text.contains("neither keeps nor breaks"), "{text}");
        findings.builds.sidecar = BuildProfile(Some("release".into()));
        let text = findings.text("");
        assert!(text.contains("This run measured the sidecar with the profile `release`"), "{text}");
        assert!(text.contains("neither keeps nor breaks"), "{text}");
        findings.builds.sidecar = BuildProfile(None);
        assert!(findings.text("").contains("the sidecar with an unknown profile"));
    }

    #[test]
    fn the_report_says_whether_the_cores_could_sleep() {
        let mut findings = findings();
        assert!(findings.text("").contains("2 rounds each, with the cores kept from sleeping; the best"));
        findings.host.core_sleep = CoreSleep::Allowed;
        assert!(findings.text("").contains("2 rounds each, on cores that could sleep, so that times"));
    }

    fn small(median: u64) -> SmallCalls {
        SmallCalls {
            median: Duration::from_micros(median),
            p99: Duration::from_micros(10 * median),
            calls: 100,
        }
    }

    #[test]
    fn an_attacked_link_is_compared_with_a_quiet_one_and_the_load_is_shown() {
        let attacked = |attack, median| Attacked {
            attack,
            rounds: vec![small(median); 6],
            attacks: AttackCount { count: 12_345, seconds: 0.5 },
        };
        let attacked = vec![
            attacked(Attack::Busy, 60),
            attacked(Attack::Connections, 100),
            attacked(Attack::Messages, 200),
        ];
        let mut findings = findings();
        findings.hostile = Measurement::Done(HostileResults { quiet: vec![small(50); 6], attacked });
        let text = findings.text("");
        assert!(
            text.contains("| 100 µs | quiet: 50.0 µs | 2.00 × (95 %: 2.00–2.00) | ≤ 3 × | holds |"),
            "{text}"
        );
        assert!(text.contains("| 4.00 × (95 %: 4.00–4.00) | ≤ 3 × | **misses by 33.3 %**"), "{text}");
        assert!(text.contains("| only computes | 60.0 µs | 1.20 | 600 µs | – | – |"), "{text}");
        assert!(text.contains("| 100 µs | 2.00 | 1.00 ms | 24\u{202f}690 | 12\u{202f}345 |"), "{text}");
    }

    #[test]
    fn a_thousand_sessions_are_compared_with_one() {
        let mut findings = findings();
        let run = |idle_kib: u64, together| ManySessionsResults {
            idle_session: idle_kib * 1024,
            alone: small(100),
            together: small(together),
        };
        findings.many_sessions = Measurement::Done(vec![run(65, 40), run(90, 60), run(10, 20)]);
        let text = findings.text("");
        let row = "| 400 µs | one session, p50: 100 µs | 4.00 × (2.00–6.00) | ≤ 5 × | holds";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| 65.0 KiB | – | – | ≤ 64 KiB | **misses by 1.6 %**"), "{text}");
    }

    #[test]
    fn the_report_shows_the_cost_of_lease_renewal() {
        let mut findings = findings();
        findings.leases = Measurement::Done(LeaseResults {
            sessions: 200,
            lease_count: 600,
            simulated: Duration::from_secs(18_000),
            requests: 36_000,
            expired: 0,
            max_per_second: 9,
            time_per_request: Duration::from_micros(3),
        });
        let text = findings.text("");
        assert!(text.contains("| 200 | 600 | 5 h | 36\u{202f}000 | 0 | 2.00 | 9 | 3.00 µs |"), "{text}");
    }

    #[test]
    fn vault_credentials_are_compared_with_a_file_and_replacements_with_quiet_times() {
        let mut findings = findings();
        findings.credential_rotation = Measurement::Done(CredentialRotationResults {
            from_file: vec![small(50), small(51), small(49), small(50), small(52), small(50)],
            from_vault: vec![small(51), small(50), small(50), small(51), small(51), small(51)],
            quiet: small(50),
            during: small(80),
            longest: Duration::from_millis(3),
            replacements: 12,
        });
        let text = findings.text("");
        assert!(text.contains("from a file: 50.0 µs | 1.02 × (95 %: 0.98–1.02) | ≤ 1.1 ×"), "{text}");
        assert!(text.contains("| ≤ 1.1 × | holds; no difference seen |"), "{text}");
        // With an interval of 1.02–1.06 there is a difference, within what is promised or not.
        for (add, outcome) in [(0, "holds"), (10, "**misses by 12.7 %**")] {
            let Measurement::Done(found) = &mut findings.credential_rotation else { unreachable!() };
            found.from_vault = [52, 51, 53, 52, 52, 53].map(|median| small(median + add)).to_vec();
            found.from_file = vec![small(50); 6];
            let text = findings.text("");
            assert!(text.contains(&format!("| ≤ 1.1 × | {outcome} |")), "{text}");
            assert!(!text.contains("no difference seen"), "{text}");
        }
        assert!(text.contains("| 800 µs | quiet, p99: 500 µs | 1.60 × |"), "{text}");
        assert!(
            text.contains("| during one of 12 replacements | 80.0 µs | 800 µs | 3.00 ms | 100 |"),
            "{text}"
        );
    }

    #[test]
    fn a_local_run_may_take_a_fixed_time_more_than_the_sandbox_alone() {
        let mut findings = findings();
        let milliseconds = Duration::from_millis;
        let run = LocalRunResults {
            unconfined: milliseconds(1),
            sandbox_without_cofferdam: milliseconds(10),
            run_alone: milliseconds(100),
            run_beside_another: milliseconds(60),
        };
        findings.local_run = Measurement::Done(run);
        let text = findings.text("");
        assert!(text.contains("| + 90.0 ms | ≤ 150 ms more | holds |"), "{text}");
        assert!(text.contains("whose sidecar it shares | 60.0 ms | 50.0 ms |"), "{text}");
        findings.local_run = Measurement::Done(LocalRunResults { run_alone: milliseconds(175), ..run });
        let text = findings.text("");
        assert!(text.contains("| + 165 ms | ≤ 150 ms more | **misses by 10.0 %**"), "{text}");
    }

    #[test]
    fn sandboxes_on_platforms_are_compared_with_a_local_hub() {
        let mut findings = findings();
        let result = |route, attach, median| RouteResult {
            route,
            first_attach: Duration::from_millis(10 * attach),
            attach: Duration::from_millis(attach),
            small: small(median),
            large: Duration::from_millis(median),
        };
        let routes = vec![
            result(Route::Local, 50, 100),
            result(Route::E2b, 120, 250),
            result(Route::Daytona, 300, 400),
        ];
        findings.platforms = Measurement::Done(PlatformResults { routes });
        let text = findings.text("");
        assert!(text.contains("| 120 ms | local hub: 50.0 ms | 2.40 × | ≤ 150 ms | holds |"), "{text}");
        assert!(
            text.contains("| 300 ms | local hub: 50.0 ms | 6.00 × | ≤ 150 ms | **misses by 100.0 %**"),
            "{text}"
        );
        assert!(text.contains("| 250 µs | local hub: 100 µs | 2.50 × | ≤ 3 × | holds |"), "{text}");
        assert!(text.contains("| 4.00 × | ≤ 3 × | **misses by 33.3 %**"), "{text}");
        assert!(text.contains("| local hub | 50.0 ms | – |"), "{text}");
        assert!(
            text.contains("| E2B | 120 ms | 1.20 s | 250 µs | 2.50 | 2.50 ms | 250 ms | 2.50 |"),
            "{text}"
        );
    }

    #[test]
    fn many_attachments_have_a_memory_and_an_idle_load() {
        let mut findings = findings();
        findings.attachments = Measurement::Done(AttachmentResults {
            attachments: 1_000,
            attach_time: Duration::from_secs(40),
            memory: 100 * 1024,
            idle: IdleLoad { processor_per_minute: Duration::from_millis(1_500), wake_ups_per_second: 812.3 },
        });
        let text = findings.text("");
        assert!(text.contains("| 1\u{202f}000 | 40.0 s | 100 KiB | 1.50 s | 812 |"), "{text}");
    }

    #[test]
    fn a_failed_trial_is_shown_with_the_reason_and_one_not_selected_as_not_measured() {
        let mut findings = findings();
        findings.many_sessions = Measurement::Failed("read /home/me/x.sock: gone".into());
        let text = findings.text("");
        assert!(text.contains("failed: read x.sock: gone"), "{text}");
        assert!(text.contains("| one session, p50: not measured | – | ≤ 5 × | not measured"), "{text}");
        assert!(!text.contains("## Beside a hostile sandbox"), "{text}");
    }

    #[test]
    fn a_failed_contender_is_named_with_the_reason() {
        let text = findings().text("");
        assert!(text.contains("**broken** failed: start broken.py: no such file"), "{text}");
        assert!(chart::svg(&findings().results).contains(">failed<"));
    }

    #[test]
    fn notes_are_copied_into_the_next_report() {
        let text = findings().text("It misses because of X.\n\n- more");
        assert_eq!(notes_in(&text), "It misses because of X.\n\n- more");
        assert_eq!(notes_in("nothing"), "");
    }
}
