//! What a server asked for in a trial and was refused, with the entry of its profile that would allow it.
//!
//! What must stay true: memory is bounded, however much a server asks for; what was left out is said.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_confine::lack::Lack;
use cofferdam_confine::view::View;
use cofferdam_process::{PathObserver, Wanted};
use cofferdam_servers::{NetworkEvent, NetworkEventKind, NetworkEvents};
use serde::Serialize;

/// Different paths and refusals of hosts that are kept. An ordinary server asks for some hundreds.
const MAX_KEPT: usize = 50_000;

/// Collects what a server asks for.
#[derive(Clone, Default)]
pub(super) struct Collector(Arc<Mutex<Collected>>);

#[derive(Debug, Default)]
pub(super) struct Collected {
    paths: BTreeSet<(PathBuf, Wanted)>,
    hosts: BTreeSet<Refusal>,
    missed: u64,
    left_out: u64,
}

/// Something that was refused.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct Refusal {
    /// `confine.hosts`, `confine.read`, `confine.write` or `confine.exec`; `None` if no entry can allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// The entry that would allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entry: Option<String>,
    /// What happened, for what no entry can allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) what: Option<String>,
}

/// All that was refused in a trial.
#[derive(Debug, Serialize)]
pub(super) struct Refusals {
    pub(super) refused: Vec<Refusal>,
    /// Requests for paths that could not be read, so it is not known what they asked for.
    pub(super) unknown: u64,
    /// What a server asked for beyond what is kept.
    pub(super) left_out: u64,
}

impl Collector {
    /// What was refused so far to a server with this view. `private` are the sidecar's own files.
    pub(super) fn refusals(&self, view: &View, private: &[PathBuf]) -> Refusals {
        let collected = self.collected();
        let made = |path: &Path| collected.paths.contains(&(path.to_owned(), Wanted::Write));
        let asked = collected.paths.iter();
        let lacks: BTreeSet<Lack> =
            asked.filter_map(|(path, wanted)| view.lacks(path, *wanted, private, made)).collect();
        let of_paths = without_covered(lacks).into_iter().map(|lack| match lack {
            Lack::Entry { key, path } => Refusal::entry(key, path.display().to_string()),
            Lack::Private(path) => Refusal {
                key: None,
                entry: None,
                what: Some(format!("it asked for `{}`, which is the sidecar's own", path.display())),
            },
        });
        let refused = of_paths.chain(collected.hosts.iter().cloned()).collect();
        Refusals { refused, unknown: collected.missed, left_out: collected.left_out }
    }

    fn collected(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves out what the entry for a directory around it allows too.
fn without_covered(lacks: BTreeSet<Lack>) -> Vec<Lack> {
    let is_covered = |lack: &Lack| match lack {
        Lack::Private(_) => false,
        Lack::Entry { key, path } => lacks.iter().any(|other| match other {
            // What may be written may be read too.
            Lack::Entry { key: around, path: directory } => {
                path.starts_with(directory)
                    && (path != directory && around == key || *key == "read" && *around == "write")
            }
            Lack::Private(_) => false,
        }),
    };
    lacks.iter().filter(|lack| !is_covered(lack)).cloned().collect()
}

impl Refusal {
    fn entry(key: &str, entry: String) -> Self {
        Self { key: Some(format!("confine.{key}")), entry: Some(entry), what: None }
    }
}

impl PathObserver for Collector {
    fn asked(&self, path: &Path, wanted: Wanted) {
        let mut collected = self.collected();
        let asked = (path.to_owned(), wanted);
        match collected.paths.len() < MAX_KEPT || collected.paths.contains(&asked) {
            true => _ = collected.paths.insert(asked),
            false => collected.left_out += 1,
        }
    }

    fn missed(&self) {
        self.collected().missed += 1;
    }
}

impl NetworkEvents for Collector {
    fn record(&self, event: &NetworkEvent<'_>) {
        if event.kind != NetworkEventKind::Refused {
            return;
        }
        let refusal = match event.lacks {
            Some(entry) => Refusal::entry("hosts", entry.to_owned()),
            None => Refusal { key: None, entry: None, what: Some(event.detail.to_owned()) },
        };
        let mut collected = self.collected();
        match collected.hosts.len() < MAX_KEPT || collected.hosts.contains(&refusal) {
            true => _ = collected.hosts.insert(refusal),
            false => collected.left_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_for_a_directory_covers_what_is_in_it() {
        let entry = |key, path: &str| Lack::Entry { key, path: path.into() };
        let lacks = [
            entry("read", "/srv/a"),
            entry("read", "/srv/a/b"),
            entry("read", "/srv/c"),
            entry("write", "/srv/a/b"),
            entry("write", "/srv/c"),
            entry("exec", "/srv/c/d"),
            Lack::Private("/srv/a/state".into()),
        ];
        let left = without_covered(BTreeSet::from(lacks));
        let expected = [
            entry("exec", "/srv/c/d"),
            entry("read", "/srv/a"),
            entry("write", "/srv/a/b"),
            entry("write", "/srv/c"),
            Lack::Private("/srv/a/state".into()),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let collector = Collector::default();
        for number in 0..MAX_KEPT + 3 {
            collector.asked(Path::new(&format!("/{number}")), Wanted::Read);
        }
        collector.asked(Path::new("/1"), Wanted::Read);
        let collected = collector.collected();
        assert_eq!((collected.paths.len(), collected.left_out), (MAX_KEPT, 3));
    }
}
