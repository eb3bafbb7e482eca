//! Checks that the chain is complete: every line that was ever written is present, unchanged and in its place.
//!
//! A truncated end cannot be detected from the files alone. For that the caller passes an earlier head, whose record
//! must still be present.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::chain::{Hash, SealedLine};
use super::files::{self, Line, LineEnd, Lines};
use super::log::Head;

/// The result for a chain without a fault.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verified {
    pub files: u64,
    pub records: u64,
    /// The last record, to be kept elsewhere and given to a later `verify`. `None` for an empty audit.
    pub head: Option<Head>,
    /// How many torn lines were marked when a sidecar started.
    pub torn: u64,
    pub last_torn: Option<AuditPlace>,
    /// A last line without a newline: it is being written now, or the sidecar crashed while writing it.
    pub unfinished: Option<AuditPlace>,
}

/// A line of a file, counted from 1.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuditPlace {
    pub file: String,
    pub line: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("{place}: the line was changed")]
    Changed { place: AuditPlace },
    #[error("{place}: the line has no newline, but there are files after it")]
    Cut { place: AuditPlace },
    #[error("`{0}` is not a head: give the 64 digits that an earlier `verify` printed")]
    HeadMalformed(String),
    #[error(
        "the record with the hash {head} is missing: the end was cut off, or the whole audit was rewritten"
    )]
    HeadMissing { head: Hash, records: u64 },
    #[error("{place}: record {found} is where record {expected} should be: lines are missing or reordered")]
    Misplaced { place: AuditPlace, expected: u64, found: u64 },
    #[error("{file}: the file is missing")]
    MissingFile { file: String },
    #[error("{place}: the torn line that this record covers is missing")]
    MissingTorn { place: AuditPlace },
    #[error("cannot read `{}`", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Reads the whole audit once, with bounded memory. Needs no lock: a sidecar may go on writing.
pub fn verify(directory: &Path, head: Option<&str>) -> Result<Verified, VerifyError> {
    let head = match head {
        Some(text) => Some(text.parse::<Hash>().map_err(|_| VerifyError::HeadMalformed(text.to_owned()))?),
        None => None,
    };
    let present =
        files::list(directory).map_err(|source| VerifyError::Read { path: directory.to_owned(), source })?;
    let mut verification = Verification {
        expected_head: head.filter(|head| *head != Hash::GENESIS),
        chain: Hash::GENESIS,
        verified: Verified { files: 0, records: 0, head: None, torn: 0, last_torn: None, unfinished: None },
    };
    for (index, expected) in present.iter().zip(1..) {
        if *index != expected {
            return Err(VerifyError::MissingFile { file: files::file_name(expected) });
        }
        let position = if Some(index) == present.last() { FilePosition::Last } else { FilePosition::Middle };
        verification.verify_file(directory, *index, position)?;
    }
    match verification.expected_head {
        Some(head) => Err(VerifyError::HeadMissing { head, records: verification.verified.records }),
        None => Ok(verification.verified),
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FilePosition {
    Last,
    Middle,
}

struct Verification {
    /// The head that was given, until its record is found.
    expected_head: Option<Hash>,
    /// The chain of the last good record.
    chain: Hash,
    verified: Verified,
}

/// A line that does not continue the chain: a fault, unless the next line marks it as torn.
struct Suspect {
    fault: VerifyError,
    place: AuditPlace,
    length: u64,
    sha256: Hash,
}

impl Verification {
    fn verify_file(
        &mut self,
        directory: &Path,
        index: u32,
        position: FilePosition,
    ) -> Result<(), VerifyError> {
        let path = files::file_path(directory, index);
        let read = |source| VerifyError::Read { path: path.clone(), source };
        let mut lines = Lines::new(File::open(&path).map_err(read)?);
        let mut suspect: Option<Suspect> = None;
        let mut place = AuditPlace { file: files::file_name(index), line: 0 };
        while let Some(line) = lines.advance().map_err(read)? {
            place.line += 1;
            if line.end == LineEnd::File {
                match (suspect.take(), position) {
                    (Some(suspect), _) => return Err(suspect.fault),
                    (None, FilePosition::Middle) => return Err(VerifyError::Cut { place }),
                    (None, FilePosition::Last) => self.verified.unfinished = Some(place.clone()),
                }
                break;
            }
            match (self.check(line, &place), suspect.take()) {
                (Ok(GoodLine::Record), None) => {}
                (Ok(GoodLine::Record), Some(suspect)) => return Err(suspect.fault),
                (Ok(GoodLine::TornMark(mark)), Some(suspect)) => self.accept_torn(&mark, suspect)?,
                (Ok(GoodLine::TornMark(_)), None) => return Err(VerifyError::MissingTorn { place }),
                (Err(_), Some(suspect)) => return Err(suspect.fault),
                (Err(fault), None) => {
                    let (length, sha256) = (line.length, line.sha256());
                    suspect = Some(Suspect { fault, place: place.clone(), length, sha256 });
                }
            }
        }
        self.verified.files += 1;
        match suspect {
            Some(suspect) => Err(suspect.fault),
            None => Ok(()),
        }
    }

    /// Checks that the line continues the chain, and makes it the last good one.
    fn check(&mut self, line: &Line, place: &AuditPlace) -> Result<GoodLine, VerifyError> {
        let changed = || VerifyError::Changed { place: place.clone() };
        let line = line.whole().ok_or_else(changed)?;
        let sealed = SealedLine::parse(line).ok_or_else(changed)?;
        let expected = self.verified.records + 1;
        if sealed.number != expected {
            return Err(VerifyError::Misplaced { place: place.clone(), expected, found: sealed.number });
        }
        if !sealed.follows(&self.chain) {
            return Err(changed());
        }
        self.chain = sealed.chain;
        self.expected_head.take_if(|head| *head == sealed.chain);
        self.verified.records = expected;
        self.verified.head =
            Some(Head { file: place.file.clone(), line: place.line, number: expected, hash: sealed.chain });
        Ok(GoodLine::of(line))
    }

    fn accept_torn(&mut self, mark: &TornMark, suspect: Suspect) -> Result<(), VerifyError> {
        if mark.torn_bytes != suspect.length || mark.torn_sha256 != suspect.sha256.as_str() {
            return Err(suspect.fault);
        }
        self.verified.torn += 1;
        self.verified.last_torn = Some(suspect.place);
        Ok(())
    }
}

/// What kind of record a good line is.
enum GoodLine {
    /// A record that marks the line before it as torn.
    TornMark(TornMark),
    Record,
}

#[derive(Deserialize)]
struct TornMark {
    torn_bytes: u64,
    torn_sha256: String,
}

impl GoodLine {
    fn of(line: &[u8]) -> Self {
        // Kind and event follow number and time, which contain no comma.
        const MARK: &[u8] = b"\"kind\":\"event\",\"event\":\"torn\",";
        let kind = line.splitn(3, |byte| *byte == b',').nth(2);
        match kind.filter(|rest| rest.starts_with(MARK)).and_then(|_| serde_json::from_slice(line).ok()) {
            Some(mark) => Self::TornMark(mark),
            None => Self::Record,
        }
    }
}

impl std::fmt::Display for AuditPlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}:{}", self.file, self.line)
    }
}
