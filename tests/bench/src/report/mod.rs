//! What the run found, as `BENCHMARKS.md` and `benchmarks.svg`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`chart`] | the picture |
//! | [`hold`] | the numbers to hold, and whether they were |
//! | [`machine`] | the shape of the machine and the versions of the contenders: no host names, no paths |
//! | [`table`] | the text |
//! | [`units`] | numbers as people read them |
//!
//! What somebody wrote by hand under `## Notes` is kept from one run to the next.

use std::path::Path;

use crate::instructions::Count;
use crate::tournament::Standing;
use crate::trouble::Trouble;

mod chart;
mod hold;
pub(crate) mod machine;
mod table;
mod units;

/// Everything that a report is made of.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) standings: Vec<Standing>,
    /// Bytes of the shim's file.
    pub(crate) shim_size: Option<u64>,
    /// Built without its default features.
    pub(crate) small_shim_size: Option<u64>,
    pub(crate) counts: Vec<Count>,
    pub(crate) rounds: usize,
    pub(crate) machine: String,
    pub(crate) versions: Vec<String>,
    pub(crate) date: String,
}

impl Findings {
    /// The report's text; `notes` are those of the last report.
    pub(crate) fn text(&self, notes: &str) -> String {
        table::text(self, notes)
    }

    /// Writes both files, keeping the notes that are there.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), Trouble> {
        let path = directory.join("BENCHMARKS.md");
        let notes = notes_in(&std::fs::read_to_string(&path).unwrap_or_default());
        let written = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(path, self.text(&notes)))
            .and_then(|()| std::fs::write(directory.join("benchmarks.svg"), chart::svg(&self.standings)));
        written.map_err(|source| Trouble::Write { what: "the report".into(), source })
    }

    fn standing(&self, name: &str) -> Option<&Standing> {
        self.standings.iter().find(|standing| standing.name == name)
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
    use crate::measure::{Round, Small};
    use crate::roster::{COFFERDAM, SOCAT};

    fn standing(name: &'static str, small: u64, failure: Option<&str>) -> Standing {
        let round = |small: u64, calls_per_second| Round {
            start: Duration::from_millis(small),
            small: Small {
                median: Duration::from_micros(small),
                p99: Duration::from_micros(2 * small),
                calls: 100,
            },
            calls_per_second,
            large: Duration::from_micros(100 * small),
        };
        let rounds = match failure {
            None => vec![round(small + 5, 900.0), round(small, 800.0)],
            Some(_) => Vec::new(),
        };
        Standing { name, about: "a <test>", rounds, weight: None, failure: failure.map(Into::into) }
    }

    fn findings() -> Findings {
        Findings {
            standings: vec![
                standing(SOCAT, 20, None),
                standing("broken", 1, Some("start /home/me/x/broken.py: no such file")),
                standing(COFFERDAM, 28, None),
            ],
            shim_size: Some(2_600_000),
            small_shim_size: Some(800_000),
            counts: Vec::new(),
            rounds: 2,
            machine: "2 cores".into(),
            versions: Vec::new(),
            date: "2026-01-01".into(),
        }
    }

    #[test]
    fn the_best_round_is_compared_and_each_miss_says_by_how_much() {
        let text = findings().text("");
        assert!(text.contains("| two socat | 20.0 µs | 1 |"), "{text}");
        assert!(text.contains("| cofferdam | 28.0 µs | 1.40 |"), "{text}");
        assert!(text.contains("1.40 × | ≤ 1.5 × | holds"), "{text}");
        assert!(text.contains("| 2.60 MB | – | – | ≤ 2.5 MB | **misses by 4.0 %**"), "{text}");
        assert!(text.contains("≥ 25 × | not measured"), "{text}");
    }

    #[test]
    fn whoever_failed_is_named_with_the_reason_and_without_places() {
        let text = findings().text("");
        assert!(text.contains("**broken** failed: start broken.py: no such file"), "{text}");
        assert!(chart::svg(&findings().standings).contains(">failed<"));
    }

    #[test]
    fn notes_survive_the_next_run() {
        let text = findings().text("It misses because the water was deep.\n\n- really");
        assert_eq!(notes_in(&text), "It misses because the water was deep.\n\n- really");
        assert_eq!(notes_in("nothing"), "");
    }
}
