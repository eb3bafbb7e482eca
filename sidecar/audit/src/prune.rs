//! Removes the oldest files, and leaves a signed mark from which the rest of the chain is verified.
//!
//! What must stay true: nothing is removed from an audit that does not verify, or a mark would hide what was changed.
//! The mark is on the disk before the first file is removed: after a crash in between, files before the mark are left
//! over, which the next run removes. A sidecar may go on writing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::cut::Cut;
use super::error::AuditError;
use super::verify::{VerifyError, verify};
use super::{files, recover};

/// Which files stay. The two newest always do: one of them has the end of the chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keep {
    /// Those with records that are younger than this.
    YoungerThan(Duration),
    /// The newest ones that have at most so many bytes together.
    Bytes(u64),
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pruned {
    pub files: u64,
    pub bytes: u64,
    /// The number of the last record that was removed, in this run or an earlier one; 0 if none was.
    pub last_record: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("nothing was removed, because the audit does not verify")]
    NotVerified(#[from] VerifyError),
    #[error("remove `{}`", .path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// One audit file.
struct AuditFile {
    index: u32,
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// How many of the newest files always stay. The newest may have no complete line, so that the chain ends before it.
const ALWAYS_KEPT: usize = 2;

/// Removes what need not be kept. Reads the whole audit once.
pub fn prune(directory: &Path, keep: Keep, now: SystemTime) -> Result<Pruned, PruneError> {
    verify(directory, None)?;
    let present = audit_files(directory)?;
    let removable = &present[..present.len().saturating_sub(ALWAYS_KEPT)];
    let count = match keep {
        Keep::YoungerThan(age) => {
            let limit = now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
            removable.iter().take_while(|file| file.modified < limit).count()
        }
        Keep::Bytes(bytes) => {
            let mut kept = 0;
            let fits = |file: &&AuditFile| {
                kept += file.bytes;
                kept <= bytes
            };
            let newest_that_fit = present.iter().rev().take_while(fits).count();
            removable.len().min(present.len() - newest_that_fit)
        }
    };
    let old = Cut::read(directory).map_err(VerifyError::from)?;
    let removed = &removable[..count];
    let cut = match removed.last() {
        Some(last) if old.as_ref().is_none_or(|old| old.file <= last.index) => {
            let file = File::open(&last.path).map_err(AuditError::read(&last.path))?;
            let (number, chain) = recover::last_record(&file, &last.path)?;
            let cut = Cut { file: last.index + 1, number, chain };
            cut.write(directory)?;
            Some(cut)
        }
        _ => old,
    };
    for file in removed {
        fs::remove_file(&file.path)
            .map_err(|source| PruneError::Remove { path: file.path.clone(), source })?;
    }
    Ok(Pruned {
        files: removed.len() as u64,
        bytes: removed.iter().map(|file| file.bytes).sum(),
        last_record: cut.map_or(0, |cut| cut.number),
    })
}

fn audit_files(directory: &Path) -> Result<Vec<AuditFile>, AuditError> {
    let indices = files::list(directory).map_err(AuditError::read(directory))?;
    let examine = |index| {
        let path = files::file_path(directory, index);
        let metadata = fs::metadata(&path).map_err(AuditError::read(&path))?;
        let modified = metadata.modified().map_err(AuditError::read(&path))?;
        Ok(AuditFile { index, path, bytes: metadata.len(), modified })
    };
    indices.into_iter().map(examine).collect()
}
