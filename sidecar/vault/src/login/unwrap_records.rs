//! Which wrapping tokens this sidecar has unwrapped, on disk. The file of the secret-id still has the wrapping token when
//! the sidecar is started again; without these records, the spent token would look as if another party had used it.
//!
//! What must stay true: a wrapping token is recorded before the request to unwrap it is sent; only a hash of it is
//! written, and nothing of what it contained; the number of records is bounded.

use std::io;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, Replace};
use cofferdam_base::text::hex;
use serde::{Deserialize, Serialize};

use crate::token::Token;

const FILE_NAME: &str = "vault-unwrapped.json";
/// More than the wraps of a year, with one for each week.
const MAX_RECORDS: usize = 64;
/// A record has about a hundred bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The SHA-256 of a wrapping token.
pub(super) type Fingerprint = [u8; 32];

/// The file with the records. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UnwrapRecords {
    file: PathBuf,
}

/// How far the sidecar got with a wrapping token.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UnwrapProgress {
    /// A request to unwrap it was or is about to be sent; whether a response came is not known.
    Requested,
    Unwrapped,
}

#[derive(Deserialize, Serialize)]
struct UnwrapRecord {
    /// In hexadecimal.
    fingerprint: String,
    progress: UnwrapProgress,
}

impl UnwrapRecords {
    /// Those of the sidecar with this state directory.
    pub fn in_state(state: &Path) -> Self {
        Self { file: state.join(FILE_NAME) }
    }

    /// Whether the sidecar is recorded to have unwrapped this wrapping token.
    pub async fn has_unwrapped(&self, wrap: &Token) -> bool {
        self.find(&wrap.fingerprint()).await == Some(UnwrapProgress::Unwrapped)
    }

    /// What is recorded about a wrapping token. A file that is missing or cannot be read has no records.
    pub(super) async fn find(&self, fingerprint: &Fingerprint) -> Option<UnwrapProgress> {
        let (records, fingerprint) = (self.clone(), hex(fingerprint));
        let found = tokio::task::spawn_blocking(move || {
            let mut records = records.read().into_iter();
            records.find(|record| record.fingerprint == fingerprint).map(|record| record.progress)
        });
        found.await.unwrap_or_default()
    }

    pub(super) async fn record(&self, fingerprint: &Fingerprint, progress: UnwrapProgress) {
        let (records, fingerprint) = (self.clone(), hex(fingerprint));
        let written = tokio::task::spawn_blocking(move || records.write(fingerprint, progress));
        if let Err(error) = written.await.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            tracing::error!(%error, file = %self.file.display(), "cannot record that a wrapped secret-id is unwrapped: after a restart it would look as if another party had unwrapped it");
        }
    }

    fn read(&self) -> Vec<UnwrapRecord> {
        let read = atomic_file::read_bounded(&self.file, MAX_FILE_BYTES);
        read.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    fn write(&self, fingerprint: String, progress: UnwrapProgress) -> io::Result<()> {
        let mut records = self.read();
        records.retain(|record| record.fingerprint != fingerprint);
        records.push(UnwrapRecord { fingerprint, progress });
        let surplus = records.len().saturating_sub(MAX_RECORDS);
        let bytes = serde_json::to_vec(&records[surplus..])?;
        let directory = self.file.parent().unwrap_or(Path::new("."));
        atomic_file::write_file(directory, &self.file, &bytes, Replace::Always)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn wraps_are_remembered_by_a_hash_and_the_oldest_are_forgotten() {
        let state =
            std::env::temp_dir().join(format!("cofferdam-unwraps-{}", cofferdam_base::random::hex::<8>()));
        fs::create_dir(&state).unwrap();
        let records = UnwrapRecords::in_state(&state);
        assert_eq!(records.find(&[1; 32]).await, None);
        records.record(&[1; 32], UnwrapProgress::Requested).await;
        assert_eq!(records.find(&[1; 32]).await, Some(UnwrapProgress::Requested));
        records.record(&[1; 32], UnwrapProgress::Unwrapped).await;
        assert_eq!(records.find(&[1; 32]).await, Some(UnwrapProgress::Unwrapped));
        assert_eq!(fs::metadata(&records.file).unwrap().permissions().mode() & 0o777, 0o600);
        for number in 2..=MAX_RECORDS as u8 {
            records.record(&[number; 32], UnwrapProgress::Unwrapped).await;
        }
        assert!(records.find(&[1; 32]).await.is_some());
        records.record(&[0; 32], UnwrapProgress::Unwrapped).await;
        assert_eq!(records.find(&[1; 32]).await, None, "the oldest is forgotten");
        assert!(records.find(&[2; 32]).await.is_some());
        // A damaged file is replaced by the next record.
        fs::write(&records.file, "{").unwrap();
        assert_eq!(records.find(&[2; 32]).await, None);
        records.record(&[2; 32], UnwrapProgress::Unwrapped).await;
        assert!(records.find(&[2; 32]).await.is_some());
        fs::remove_dir_all(&state).unwrap();
    }
}
