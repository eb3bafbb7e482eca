//! The writer of the chain: one file at a time, one `write(2)` for all records that are staged together.
//!
//! A record is begun, its members are written, it is staged; staged records are committed all or none.
//!
//! What must stay true: `length` bytes of the current file are complete lines (or a torn one that the next line marks),
//! and `number` and `chain` belong to the last of them. They change only after a write succeeded. The remains of a
//! partial write are removed before anything else is written.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chain::{self, Hash};
use super::error::AuditError;
use super::files::{self, Creation, LINE_LIMIT};
use super::text::{Members, name, write_number};
use cofferdam_base::clock::{self, Rfc3339};

pub(super) struct Log {
    pub(super) directory: PathBuf,
    /// A file that would grow beyond this is followed by a new one.
    pub(super) file_bytes: u64,
    pub(super) index: u32,
    pub(super) file: Arc<File>,
    pub(super) length: u64,
    pub(super) number: u64,
    pub(super) chain: Hash,
    /// Staged records, followed by the one that is being written.
    pub(super) staged: StagedLines,
    pub(super) tail: Tail,
    /// The previous file, until it is passed to the syncer.
    pub(super) retired: Option<Arc<File>>,
}

/// Lines for the next commit.
#[derive(Default)]
pub(super) struct StagedLines {
    /// Reused, to save allocations.
    pub(super) bytes: Vec<u8>,
    /// Where the record that is being written begins.
    start: usize,
    /// How many records are staged before it.
    count: u64,
    /// The chain of the last staged record, if any.
    chain: Option<Hash>,
    /// When the first was begun: records that are written together have one time.
    time: Option<Rfc3339>,
}

/// Whether the file ends where `length` says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tail {
    /// A write failed: there may be part of a line after `length`.
    MaybePartial,
    Whole,
}

impl StagedLines {
    fn clear(&mut self) {
        self.bytes.clear();
        (self.start, self.count, self.chain, self.time) = (0, 0, None, None);
    }
}

impl Log {
    /// Begins a record; the caller writes its members into `staged.bytes`, then stages it. A record that was
    /// begun and not staged is dropped.
    pub(super) fn begin(&mut self, kind: &'static str) {
        let number = self.number + self.staged.count + 1;
        let staged = &mut self.staged;
        staged.bytes.truncate(staged.start);
        staged.bytes.extend_from_slice(chain::RECORD_START);
        write_number(&mut staged.bytes, number);
        let time = staged.time.get_or_insert_with(|| clock::now().into());
        Members::new(&mut staged.bytes, usize::MAX)
            .plain(name!("time"), time.as_bytes())
            .plain(name!("kind"), kind.as_bytes());
    }

    /// How long the record that is being written will be in the file.
    pub(super) fn sealed_length(&self) -> u64 {
        (self.staged.bytes.len() - self.staged.start + chain::SEAL_BYTES) as u64
    }

    /// How many bytes the next commit writes.
    pub(super) fn staged_length(&self) -> u64 {
        self.staged.start as u64
    }

    /// The record is complete; it is written with the next commit.
    pub(super) fn stage(&mut self) {
        let staged = &mut self.staged;
        let previous = staged.chain.unwrap_or(self.chain);
        staged.chain = Some(chain::seal(&mut staged.bytes, staged.start, &previous));
        debug_assert!(staged.bytes.len() - staged.start <= LINE_LIMIT, "records are bounded by their fields");
        staged.start = staged.bytes.len();
        staged.count += 1;
    }

    /// Writes the staged records. After an error, number and chain are as they were before the first of them was begun.
    pub(super) fn commit(&mut self) -> Result<(), AuditError> {
        self.staged.bytes.truncate(self.staged.start);
        let written = self.write_staged();
        if written.is_ok() {
            self.number += self.staged.count;
            self.chain = self.staged.chain.unwrap_or(self.chain);
        }
        self.staged.clear();
        written
    }

    fn write_staged(&mut self) -> Result<(), AuditError> {
        if self.staged.bytes.is_empty() {
            return Ok(());
        }
        self.repair()?;
        let full = self.length > 0 && self.length + self.staged.bytes.len() as u64 > self.file_bytes;
        if full || self.was_removed()? {
            self.start_next_file()?;
        }
        self.write()
    }

    /// Ends a torn last line and writes the record that marks it; both or none.
    pub(super) fn mark_torn(&mut self, bytes: u64, sha256: Hash) -> Result<(), AuditError> {
        self.begin("event");
        Members::new(&mut self.staged.bytes, usize::MAX)
            .plain(name!("event"), TORN.as_bytes())
            .number(name!("torn_bytes"), bytes)
            .plain(name!("torn_sha256"), sha256.as_bytes());
        self.stage();
        self.staged.bytes.insert(0, b'\n');
        self.write()?;
        self.number += 1;
        self.chain = self.staged.chain.unwrap_or(self.chain);
        self.staged.clear();
        Ok(())
    }

    /// Ends a last line that lacks nothing but its newline.
    pub(super) fn end_line(&mut self, chain: Hash) -> Result<(), AuditError> {
        self.staged.bytes.push(b'\n');
        self.write()?;
        self.number += 1;
        self.chain = chain;
        self.staged.clear();
        Ok(())
    }

    pub(super) fn path(&self) -> PathBuf {
        files::file_path(&self.directory, self.index)
    }

    fn write(&mut self) -> Result<(), AuditError> {
        if let Err(source) = (&*self.file).write_all(&self.staged.bytes) {
            self.tail = Tail::MaybePartial;
            let error = AuditError::Write { path: self.path(), source };
            // A failed repair is retried before the next write; the first error says more than its error.
            let _ = self.repair();
            return Err(error);
        }
        self.length += self.staged.bytes.len() as u64;
        Ok(())
    }

    /// Removes what a failed write left in the file.
    fn repair(&mut self) -> Result<(), AuditError> {
        if self.tail == Tail::Whole {
            return Ok(());
        }
        let poisoned = |source| AuditError::Poisoned { path: self.path(), source };
        let actual = self.file.metadata().map_err(poisoned)?.len();
        if actual > self.length {
            self.file.set_len(self.length).map_err(poisoned)?;
        } else {
            // Shorter only if another program truncated it. `verify` reports where; extending it would hide that.
            self.length = actual;
        }
        self.tail = Tail::Whole;
        Ok(())
    }

    /// Whether the current file was deleted: records written to it would vanish when the sidecar exits.
    fn was_removed(&self) -> Result<bool, AuditError> {
        let status = nix::sys::stat::fstat(&*self.file)
            .map_err(|errno| AuditError::read(&self.path())(errno.into()))?;
        let removed = status.st_nlink == 0;
        if removed {
            tracing::error!(file = %self.path().display(), "an audit file was removed while in use: continuing in a new one");
        }
        Ok(removed)
    }

    fn start_next_file(&mut self) -> Result<(), AuditError> {
        let index = self.index + 1;
        let file = create(&self.directory, index)?;
        self.index = index;
        self.length = 0;
        self.retired = Some(std::mem::replace(&mut self.file, Arc::new(file)));
        Ok(())
    }
}

/// The `event` of a record that covers a torn line.
pub(super) const TORN: &str = "torn";

/// Creates a file for new records. An existing file is used if it is empty: a sidecar crashed before its first line.
pub(super) fn create(directory: &Path, index: u32) -> Result<File, AuditError> {
    let path = files::file_path(directory, index);
    let prepare = |source| AuditError::prepare("cannot create the audit file", &path)(source);
    match files::open_append(&path, Creation::New) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = files::open_append(&path, Creation::Existing).map_err(prepare)?;
            match file.metadata().map_err(AuditError::read(&path))?.len() {
                0 => Ok(file),
                _ => Err(AuditError::Damaged { path, what: "it already exists and is not empty" }),
            }
        }
        opened => opened.map_err(prepare),
    }
}
