//! Accessors of sessions' tokens on disk, so that a sidecar that died leaves no token behind: its successor revokes them.
//!
//! What must stay true: no token is ever written, only what one can be revoked by; a file is there before its token is
//! used, and until Vault has said that the token is gone; files are the sidecar's user's alone.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::Backoff;
use cofferdam_base::atomic_file::{self, Replace};
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::access::Access;
use crate::error::Kind;
use crate::token::Accessor;

/// A file holds two short texts.
const MAX_FILE: u64 = 4096;
/// More sessions than a sidecar has.
const MAX_FILES: usize = 10_000;
/// Between two tries to revoke what was left behind: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(crate) struct Accessors {
    directory: PathBuf,
}

/// A token that a sidecar before this one made.
pub(crate) struct LeftBehind {
    accessor: Accessor,
    session: String,
    file: PathBuf,
}

#[derive(Deserialize, Serialize)]
struct Written {
    accessor: String,
    session: String,
}

impl Accessors {
    /// What stands there already was left behind.
    pub(crate) fn open(state: &Path) -> io::Result<(Self, Vec<LeftBehind>)> {
        let directory = state.join("vault");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(&directory)?.take(MAX_FILES).flatten() {
            let file = entry.path();
            if file.extension().is_none_or(|end| end != "json") {
                let _ = fs::remove_file(&file);
                continue;
            }
            let read = atomic_file::read_bounded(&file, MAX_FILE);
            match read.ok().and_then(|bytes| serde_json::from_slice::<Written>(&bytes).ok()) {
                Some(Written { accessor, session }) => {
                    left.push(LeftBehind { accessor: Accessor::new(accessor), session, file });
                }
                None => tracing::error!(file = %file.display(), "no accessor can be read here; remove it"),
            }
        }
        Ok((Self { directory }, left))
    }

    /// Blocks.
    pub(crate) fn keep(&self, accessor: &Accessor, session: &str) -> io::Result<()> {
        let written = Written { accessor: accessor.as_str().into(), session: session.into() };
        let bytes = serde_json::to_vec(&written)?;
        atomic_file::place(&self.directory, &self.file(accessor), &bytes, Replace::Always)
    }

    /// Blocks.
    pub(crate) fn forget(&self, accessor: &Accessor) {
        let _ = fs::remove_file(self.file(accessor));
    }

    fn file(&self, accessor: &Accessor) -> PathBuf {
        let hash = digest(&SHA256, accessor.as_str().as_bytes());
        self.directory.join(format!("{}.json", hex(&hash.as_ref()[..16])))
    }
}

impl Access {
    /// Tries until all are gone, or the sidecar stops: then the next start goes on with it.
    pub(crate) async fn revoke_left_behind(self: Arc<Self>, mut left: Vec<LeftBehind>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while !left.is_empty() {
            let mut remaining = Vec::new();
            for token in left {
                match self.revoke_by_accessor(&token.accessor).await {
                    Ok(()) => {
                        tracing::info!(session = token.session, "a token that was left behind is revoked");
                        let _ = fs::remove_file(&token.file);
                    }
                    Err(why) => {
                        tracing::warn!(
                            session = token.session,
                            why,
                            "a token that was left behind is not revoked yet"
                        );
                        remaining.push(token);
                    }
                }
            }
            left = remaining;
            if left.is_empty() || self.stop.run_until_cancelled(sleep(backoff.next_delay())).await.is_none() {
                return;
            }
        }
    }

    /// Ends a token that is not at hand. One that Vault does not know is gone.
    pub(crate) async fn revoke_by_accessor(&self, accessor: &Accessor) -> Result<(), String> {
        let login = self.login.current().await.map_err(|error| error.explained())?;
        match self.vault.revoke_accessor(&login.token, accessor).await {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), Kind::Gone | Kind::Invalid | Kind::Missing) => Ok(()),
            Err(error) => Err(error.explained()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_kept_is_found_by_the_next_and_is_ours_alone() {
        let state =
            std::env::temp_dir().join(format!("cofferdam-accessors-{}", cofferdam_base::random::hex::<8>()));
        let (accessors, left) = Accessors::open(&state).unwrap();
        assert!(left.is_empty());
        let accessor = Accessor::new("abcdefgh12345678");
        accessors.keep(&accessor, "s1").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&accessors.file(&accessor)), mode(&state.join("vault"))), (0o600, 0o700));
        assert!(!accessors.file(&accessor).to_string_lossy().contains("abcdefgh"));
        fs::write(state.join("vault/broken.json"), "{").unwrap();
        let (_, left) = Accessors::open(&state).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].accessor.as_str(), left[0].session.as_str()), ("abcdefgh12345678", "s1"));
        accessors.forget(&accessor);
        assert!(Accessors::open(&state).unwrap().1.is_empty());
        fs::remove_dir_all(&state).unwrap();
    }
}
