//! Finds the end of the chain at start, in whatever state the last run left the files.
//!
//! Nothing is truncated. If a last line lacks only its newline, that is appended. Any other last line without a newline
//! is *torn*: the sidecar or its host crashed during the write. A newline and a `torn` record are appended; the record
//! has the line's length and hash, so that the chain covers it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use super::chain::{Hash, SealedLine};
use super::error::AuditError;
use super::files::{self, Creation, LINE_LIMIT, Lines, NewlineFromEnd};
use super::log::{self, Log, StagedLines, Tail};

/// Opens the log at its end, and completes or marks an unfinished last line. The caller holds the directory's lock.
pub(super) fn open(directory: &Path, file_bytes: u64) -> Result<Log, AuditError> {
    let present = files::list(directory).map_err(AuditError::read(directory))?;
    let mut end = None;
    // An empty last file was created just before a crash: the chain ends in the file before, and the next
    // rotation uses the empty one.
    for (position, index) in present.iter().enumerate().rev() {
        let path = files::file_path(directory, *index);
        let file = files::open_append(&path, Creation::Existing)
            .map_err(AuditError::prepare("cannot open the audit file", &path))?;
        let length = file.metadata().map_err(AuditError::read(&path))?.len();
        if length > 0 {
            end = Some((position, *index, file, length));
            break;
        }
    }
    let Some((position, index, file, length)) = end else {
        let index = present.last().copied().unwrap_or(1);
        let file = log::create(directory, index)?;
        return Ok(empty_log(directory, file_bytes, index, file));
    };

    let path = files::file_path(directory, index);
    let mut log = empty_log(directory, file_bytes, index, file);
    log.length = length;
    let (last, torn_from) = last_line(&log.file, &path, length)?;
    let last = match last {
        Some(last) => Some(last),
        None => last_of_previous(directory, &present[..position], index)?,
    };
    if let Some((number, chain)) = last {
        (log.number, log.chain) = (number, chain);
    }
    if torn_from < length {
        complete_or_mark_last_line(&mut log, &path, torn_from)?;
    }
    Ok(log)
}

fn empty_log(directory: &Path, file_bytes: u64, index: u32, file: File) -> Log {
    Log {
        directory: directory.to_owned(),
        file_bytes,
        index,
        file: Arc::new(file),
        length: 0,
        number: 0,
        chain: Hash::GENESIS,
        staged: StagedLines::default(),
        tail: Tail::Whole,
        retired: None,
    }
}

/// Number and chain of a record.
pub(super) type NumberAndChain = (u64, Hash);

/// Number and chain of the last line that ends with a newline, and the offset after that line.
fn last_line(file: &File, path: &Path, length: u64) -> Result<(Option<NumberAndChain>, u64), AuditError> {
    let read = |source| AuditError::read(path)(source);
    let NewlineFromEnd::At(end) = files::newline_from_end(file, length, 1).map_err(read)? else {
        return Ok((None, 0));
    };
    let start = match files::newline_from_end(file, end, 1).map_err(read)? {
        NewlineFromEnd::At(newline) => newline + 1,
        NewlineFromEnd::Fewer(_) => 0,
    };
    let damaged = |what| AuditError::Damaged { path: path.to_owned(), what };
    if end - start > LINE_LIMIT as u64 {
        return Err(damaged("its last line is longer than any record"));
    }
    let mut line = vec![0; (end - start) as usize];
    file.read_exact_at(&mut line, start).map_err(read)?;
    let sealed = SealedLine::parse(&line).ok_or_else(|| damaged("its last line has no chain"))?;
    Ok((Some((sealed.number, sealed.chain)), end + 1))
}

/// The last record of the previous file, for a file with nothing but a torn first line.
fn last_of_previous(
    directory: &Path,
    earlier: &[u32],
    index: u32,
) -> Result<Option<NumberAndChain>, AuditError> {
    if index == 1 {
        return Ok(None);
    }
    let path = files::file_path(directory, index - 1);
    let missing =
        AuditError::Damaged { path: path.clone(), what: "the file is missing, and the next one needs it" };
    if earlier.last() != Some(&(index - 1)) {
        return Err(missing);
    }
    let file = File::open(&path).map_err(AuditError::read(&path))?;
    last_record(&file, &path).map(Some)
}

/// The last record of a file that is followed by another one.
pub(super) fn last_record(file: &File, path: &Path) -> Result<NumberAndChain, AuditError> {
    let length = file.metadata().map_err(AuditError::read(path))?.len();
    match last_line(file, path, length)? {
        (Some(last), end) if end == length => Ok(last),
        _ => {
            let what = "its last line is torn, and there is a file after it";
            Err(AuditError::Damaged { path: path.to_owned(), what })
        }
    }
}

fn complete_or_mark_last_line(log: &mut Log, path: &Path, torn_from: u64) -> Result<(), AuditError> {
    let file = Arc::clone(&log.file);
    let mut lines = Lines::new(ReaderAt { file: &file, offset: torn_from });
    let Some(torn) = lines.advance().map_err(AuditError::read(path))? else { return Ok(()) };
    let next = torn.whole().and_then(SealedLine::parse);
    if let Some(whole) = next.filter(|line| line.number == log.number + 1 && line.follows(&log.chain)) {
        return log.end_line(whole.chain);
    }
    tracing::warn!(file = %path.display(), bytes = torn.length, "the last audit record is torn; marking it as such");
    log.mark_torn(torn.length, torn.sha256())
}

/// Reads from an offset without moving the file's own position.
struct ReaderAt<'a> {
    file: &'a File,
    offset: u64,
}

impl io::Read for ReaderAt<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
