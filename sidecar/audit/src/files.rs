//! The audit's files on disk: their names, how they are opened, and how their lines are read with bounded memory.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use super::chain::Hash;
use super::error::AuditError;

/// No record is longer; a reader keeps no more of a line than this.
pub(super) const LINE_LIMIT: usize = 512 * 1024;

/// `audit-00000001.jsonl`: eight digits, so that names sort.
pub(super) fn file_name(index: u32) -> String {
    format!("audit-{index:08}.jsonl")
}

pub(super) fn file_path(directory: &Path, index: u32) -> PathBuf {
    directory.join(file_name(index))
}

/// The numbers of the existing files, sorted. Other names are ignored.
pub(super) fn list(directory: &Path) -> io::Result<Vec<u32>> {
    let mut indices = Vec::new();
    for entry in fs::read_dir(directory)? {
        indices.extend(entry?.file_name().to_str().and_then(parse_name));
    }
    indices.sort_unstable();
    Ok(indices)
}

/// Creates the directory and sets its mode to 0700: only the sidecar's user may read it.
pub(super) fn prepare_directory(directory: &Path) -> Result<(), AuditError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(AuditError::prepare("cannot create the audit directory", directory))?;
    let mode = fs::metadata(directory).map_err(AuditError::read(directory))?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(directory, Permissions::from_mode(0o700))
            .map_err(AuditError::prepare("cannot set the mode of the audit directory", directory))?;
    }
    Ok(())
}

/// Opens for reading and appending, mode 0600. `O_NOFOLLOW`, so that the file is in this directory.
pub(super) fn open_append(path: &Path, creation: Creation) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    match creation {
        Creation::Existing => {}
        Creation::IfMissing => {
            options.create(true);
        }
        Creation::New => {
            options.create_new(true);
        }
    }
    options.open(path)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Creation {
    Existing,
    IfMissing,
    New,
}

/// The position of the `nth` newline (from 1), counted backwards from `end`.
pub(super) fn newline_from_end(file: &File, end: u64, nth: u64) -> io::Result<NewlineFromEnd> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut found = 0;
    let mut end = end;
    while end > 0 {
        let start = end.saturating_sub(CHUNK_BYTES as u64);
        let part = &mut chunk[..(end - start) as usize];
        file.read_exact_at(part, start)?;
        for (position, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            found += 1;
            if found == nth {
                return Ok(NewlineFromEnd::At(start + position as u64));
            }
        }
        end = start;
    }
    Ok(NewlineFromEnd::Fewer(found))
}

/// The result of [`newline_from_end`].
pub(super) enum NewlineFromEnd {
    At(u64),
    /// The file has only this many newlines.
    Fewer(u64),
}

/// Reads lines of any length; keeps at most `LINE_LIMIT` bytes of one.
pub(super) struct Lines<R> {
    reader: R,
    chunk: Vec<u8>,
    /// The part of the chunk that was not returned yet.
    unread: std::ops::Range<usize>,
    pub(super) line: Line,
}

/// One line without its newline.
#[derive(Default)]
pub(super) struct Line {
    bytes: Vec<u8>,
    pub(super) length: u64,
    pub(super) end: LineEnd,
    /// The hash of the whole line so far, once it is too long to be kept.
    long_line_hash: Option<Context>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum LineEnd {
    /// The file ended first.
    #[default]
    File,
    Newline,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, chunk: vec![0; CHUNK_BYTES], unread: 0..0, line: Line::default() }
    }

    /// Moves `line` to the next one; `None` at the end of the file.
    pub(super) fn advance(&mut self) -> io::Result<Option<&Line>> {
        self.line.clear();
        loop {
            if self.unread.is_empty() {
                let read = match self.reader.read(&mut self.chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                if read == 0 {
                    return Ok((self.line.length > 0).then_some(&self.line));
                }
                self.unread = 0..read;
            }
            let available = &self.chunk[self.unread.clone()];
            let newline = available.iter().position(|byte| *byte == b'\n');
            let length = newline.unwrap_or(available.len());
            self.line.extend(&available[..length]);
            self.unread.start += length;
            if newline.is_some() {
                self.unread.start += 1;
                self.line.end = LineEnd::Newline;
                return Ok(Some(&self.line));
            }
        }
    }
}

impl Line {
    /// The line, unless it is longer than any record.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        self.long_line_hash.is_none().then_some(&self.bytes)
    }

    /// The line, or some of its beginning if it is longer than any record.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn sha256(&self) -> Hash {
        match &self.long_line_hash {
            Some(context) => Hash::finish(context.clone()),
            None => Hash::of(&self.bytes),
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.length = 0;
        self.end = LineEnd::File;
        self.long_line_hash = None;
    }

    fn extend(&mut self, part: &[u8]) {
        self.length += part.len() as u64;
        match &mut self.long_line_hash {
            Some(context) => context.update(part),
            None if self.bytes.len() + part.len() > LINE_LIMIT => {
                let mut context = Context::new(&SHA256);
                context.update(&self.bytes);
                context.update(part);
                self.long_line_hash = Some(context);
            }
            None => self.bytes.extend_from_slice(part),
        }
    }
}

const CHUNK_BYTES: usize = 64 * 1024;

fn parse_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let index = (digits.len() == 8).then(|| digits.parse().ok())??;
    (index > 0 && name == file_name(index)).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte at a time, so that every boundary occurs.
    struct OneByteReader<'a>(&'a [u8]);

    impl Read for OneByteReader<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = usize::from(!self.0.is_empty());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(reader: impl Read) -> Vec<(Vec<u8>, LineEnd)> {
        let mut lines = Lines::new(reader);
        let mut all = Vec::new();
        while let Some(line) = lines.advance().unwrap() {
            all.push((line.whole().unwrap().to_vec(), line.end));
        }
        all
    }

    #[test]
    fn lines_end_with_a_newline_or_at_the_end_of_the_file() {
        let expected = vec![
            (b"ab".to_vec(), LineEnd::Newline),
            (b"".to_vec(), LineEnd::Newline),
            (b"c".to_vec(), LineEnd::File),
        ];
        assert_eq!(lines(&b"ab\n\nc"[..]), expected);
        assert_eq!(lines(OneByteReader(b"ab\n\nc")), expected);
        assert_eq!(lines(&b""[..]), vec![]);
    }

    #[test]
    fn a_newline_is_found_from_the_end_across_chunks() {
        let mut bytes = vec![b'x'; 2 * CHUNK_BYTES + 10];
        let newlines = [0, 5, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 8, 2 * CHUNK_BYTES + 9];
        for newline in newlines {
            bytes[newline] = b'\n';
        }
        let path = std::env::temp_dir().join(format!("cofferdam-newlines-{}", std::process::id()));
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        for end in newlines.into_iter().chain([bytes.len()]) {
            let before = newlines.into_iter().filter(|newline| *newline < end).rev();
            for (nth, expected) in (1..).zip(before.clone()) {
                match newline_from_end(&file, end as u64, nth).unwrap() {
                    NewlineFromEnd::At(found) => assert_eq!(found, expected as u64, "{nth} before {end}"),
                    NewlineFromEnd::Fewer(found) => panic!("only {found} before {end}"),
                }
            }
            let count = before.count() as u64;
            assert!(
                matches!(newline_from_end(&file, end as u64, count + 1), Ok(NewlineFromEnd::Fewer(found)) if found == count)
            );
        }
    }

    /// Fails once, then ends.
    struct FailingReader(Option<io::ErrorKind>);

    impl Read for FailingReader {
        fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
            self.0.take().map_or(Ok(0), |kind| Err(kind.into()))
        }
    }

    #[test]
    fn an_interrupted_read_is_repeated_and_a_failed_one_reported() {
        let mut interrupted = Lines::new(FailingReader(Some(io::ErrorKind::Interrupted)));
        assert!(matches!(interrupted.advance(), Ok(None)));
        let mut failed = Lines::new(FailingReader(Some(io::ErrorKind::Other)));
        assert!(failed.advance().is_err());
    }

    #[test]
    fn a_line_is_kept_up_to_the_greatest_length_of_a_record() {
        for (length, is_kept) in [(LINE_LIMIT, true), (LINE_LIMIT + 1, false)] {
            let long = vec![b'x'; length];
            let mut lines = Lines::new(&long[..]);
            assert_eq!(lines.advance().unwrap().unwrap().whole().is_some(), is_kept, "{length} bytes");
        }
    }

    #[test]
    fn a_line_too_long_to_keep_is_still_hashed() {
        let long = vec![b'x'; LINE_LIMIT + 100_000];
        let mut lines = Lines::new(&long[..]);
        let line = lines.advance().unwrap().unwrap();
        assert_eq!(line.whole(), None);
        assert!(line.beginning().len() <= LINE_LIMIT);
        assert_eq!((line.length, line.sha256()), (long.len() as u64, Hash::of(&long)));
    }

    #[test]
    fn other_file_names_are_ignored() {
        assert_eq!(parse_name("audit-00000012.jsonl"), Some(12));
        for other in [
            "audit-00000000.jsonl",
            "audit-12.jsonl",
            "audit-+0000001.jsonl",
            "key",
            "audit-00000001.jsonl.gz",
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
