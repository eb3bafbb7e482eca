//! Reads the lines of a server's files, and follows them while the sidecar writes.
//!
//! What must stay true: a follower that polls at least once per file misses no line when the files are rotated, and prints none
//! twice; memory is bounded by the lines that are requested, not by the size of the files.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use relay_proto::name::Name;

use super::write::paths;

/// What is read at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// A longer line was not written by a sidecar; it is read in pieces.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Returns the lines of one server, oldest first.
pub struct StderrFollower {
    current: PathBuf,
    previous: PathBuf,
    open: Option<File>,
    /// A line whose end has not been read yet.
    partial: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read `{path}`")]
pub struct StderrReadError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StderrReadError {
    pub fn is_denied(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

impl StderrFollower {
    /// Begins with the oldest line that the files hold. `directory` is that of [`super::stderr_directory`].
    pub fn from_start(directory: &Path, server: &Name) -> Result<Self, StderrReadError> {
        let [current, previous] = paths(directory, server);
        let mut follower = Self { current, previous, open: None, partial: Vec::new() };
        follower.open = match follower.open(&follower.previous)? {
            Some(file) => Some(file),
            None => follower.open(&follower.current)?,
        };
        Ok(follower)
    }

    /// Whether the server has ever written a line.
    pub fn has_file(&self) -> bool {
        self.open.is_some()
    }

    /// The last `count` lines that the files hold now. The next poll goes on behind them.
    pub fn last(&mut self, count: usize) -> Result<VecDeque<String>, StderrReadError> {
        let mut last = VecDeque::new();
        loop {
            let lines = self.poll()?;
            if lines.is_empty() {
                return Ok(last);
            }
            last.extend(lines);
            last.drain(..last.len().saturating_sub(count));
        }
    }

    /// Some of the new lines; empty if there are none.
    pub fn poll(&mut self) -> Result<Vec<String>, StderrReadError> {
        loop {
            // Looked up before reading: once another file has the name, this one does not grow any more.
            let next = self.next_path();
            if self.open.is_some() {
                let lines = self.read()?;
                if !lines.is_empty() {
                    return Ok(lines);
                }
            }
            let Some(next) = next else { return Ok(Vec::new()) };
            let Some(file) = self.open(&next)? else { return Ok(Vec::new()) };
            self.open = Some(file);
            let unfinished = std::mem::take(&mut self.partial);
            if !unfinished.is_empty() {
                return Ok(vec![String::from_utf8_lossy(&unfinished).into_owned()]);
            }
        }
    }

    /// The file to go on with, if it is not the open one.
    fn next_path(&self) -> Option<PathBuf> {
        let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|metadata| metadata.ino());
        let Some(open) = self.open.as_ref().and_then(|file| file.metadata().ok()).map(|file| file.ino())
        else {
            return Some(self.current.clone());
        };
        let current = inode(&self.current).filter(|current| *current != open)?;
        match inode(&self.previous) {
            // Both names are of later files, so the older of them comes first.
            Some(previous) if previous != open && previous != current => Some(self.previous.clone()),
            _ => Some(self.current.clone()),
        }
    }

    fn open(&self, path: &Path) -> Result<Option<File>, StderrReadError> {
        match OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StderrReadError { path: path.to_owned(), source }),
        }
    }

    fn read(&mut self) -> Result<Vec<String>, StderrReadError> {
        let Some(file) = &mut self.open else { return Ok(Vec::new()) };
        let failed = |source| StderrReadError { path: self.current.clone(), source };
        loop {
            let before = self.partial.len();
            file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut self.partial).map_err(failed)?;
            let end = match self.partial.iter().rposition(|byte| *byte == b'\n') {
                Some(newline) => newline + 1,
                None if self.partial.len() > MAX_LINE_BYTES => self.partial.len(),
                None if self.partial.len() == before => return Ok(Vec::new()),
                None => continue,
            };
            let whole: Vec<u8> = self.partial.drain(..end).collect();
            let whole = whole.strip_suffix(b"\n").unwrap_or(&whole);
            return Ok(whole
                .split(|byte| *byte == b'\n')
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .collect());
        }
    }
}
