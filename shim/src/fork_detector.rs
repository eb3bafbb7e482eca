//! Detects that this sandbox is a copy: the sandbox id in the platform's file has changed.
//!
//! E2B writes the sandbox's id to a file in memory, also in a sandbox that was resumed from another's snapshot. What must
//! stay true: a missing or unreadable file does not count as a change; after a change the link is not resumed, because it
//! belongs to the original sandbox.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The id file, and the last id that was read from it.
#[derive(Debug)]
pub(crate) struct ForkDetector {
    file: PathBuf,
    id: Option<Vec<u8>>,
}

/// Whether this sandbox is a copy of the one that the shim was started in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fork {
    No,
    Yes,
}

const ID_FILE: &str = "/run/e2b/.E2B_SANDBOX_ID";
/// Ids have some twenty characters.
const MAX_ID_BYTES: u64 = 256;

impl ForkDetector {
    pub(crate) fn new() -> Self {
        Self::with_file(Path::new(ID_FILE))
    }

    fn with_file(file: &Path) -> Self {
        Self { file: file.into(), id: read_id(file) }
    }

    /// Reads the file again. Each change is reported once.
    pub(crate) fn check(&mut self) -> Fork {
        let Some(id) = read_id(&self.file) else { return Fork::No };
        match self.id.replace(id) {
            Some(before) if self.id.as_ref() != Some(&before) => Fork::Yes,
            _ => Fork::No,
        }
    }
}

fn read_id(file: &Path) -> Option<Vec<u8>> {
    let mut id = Vec::new();
    File::open(file).ok()?.take(MAX_ID_BYTES).read_to_end(&mut id).ok()?;
    let id = id.trim_ascii().to_vec();
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_changed_id_is_a_fork() {
        let file = std::env::temp_dir().join(format!("cofferdam-fork-detector-{}", std::process::id()));
        let mut detector = ForkDetector::with_file(&file);
        assert_eq!(detector.check(), Fork::No, "no file");
        for (content, fork) in [
            ("first", Fork::No),
            ("first\n", Fork::No),
            ("", Fork::No),
            ("first", Fork::No),
            ("second", Fork::Yes),
            ("second", Fork::No),
        ] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(detector.check(), fork, "{content:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(detector.check(), Fork::No, "no file any more");
    }
}
