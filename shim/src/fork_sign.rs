//! A sign that this sandbox was copied: the id that the platform gives it, in a file, is another than before.
//!
//! E2B writes the sandbox's id to a file in memory, also in a sandbox that was resumed from another's snapshot. What must
//! stay true: a missing or unreadable file is no sign; a link is not resumed after a sign, since the original has it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The file, and what it had when it was last read.
#[derive(Debug)]
pub(crate) struct ForkSign {
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
const MAX_ID: u64 = 256;

impl ForkSign {
    pub(crate) fn new() -> Self {
        Self::of(Path::new(ID_FILE))
    }

    fn of(file: &Path) -> Self {
        Self { file: file.into(), id: read(file) }
    }

    /// Reads the file again. A change is reported once.
    pub(crate) fn check(&mut self) -> Fork {
        let Some(id) = read(&self.file) else { return Fork::No };
        match self.id.replace(id) {
            Some(before) if self.id.as_ref() != Some(&before) => Fork::Yes,
            _ => Fork::No,
        }
    }
}

fn read(file: &Path) -> Option<Vec<u8>> {
    let mut id = Vec::new();
    File::open(file).ok()?.take(MAX_ID).read_to_end(&mut id).ok()?;
    let id = id.trim_ascii().to_vec();
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_id_is_a_sign() {
        let file = std::env::temp_dir().join(format!("cofferdam-fork-sign-{}", std::process::id()));
        let mut sign = ForkSign::of(&file);
        assert_eq!(sign.check(), Fork::No, "no file");
        for (content, fork) in [
            ("first", Fork::No),
            ("first\n", Fork::No),
            ("", Fork::No),
            ("first", Fork::No),
            ("second", Fork::Yes),
            ("second", Fork::No),
        ] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(sign.check(), fork, "{content:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(sign.check(), Fork::No, "no file any more");
    }
}
