//! Checks that the chain is complete: every line that was ever written is present, unchanged and in its place.
//!
//! A truncated end cannot be detected from the files alone. For that the caller passes an earlier head, whose record
//! must still be present. Where `audit prune` removed old files, the chain is checked from the signed mark on.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::chain::{Hash, SealedLine};
use super::cut::{Cut, CutError};
use super::files::{self, Line, LineEnd, Lines};

/// The result for a chain without a fault.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Verified {
    pub files: u64,
    /// The records that are present.
    pub records: u64,
    /// How many records before them were removed by `audit prune`.
    pub pruned: u64,
    /// The last record, to be kept elsewhere and given to a later `verify`. `None` for an empty audit.
    pub head: Option<Head>,
    /// How many torn lines were marked when a sidecar started.
    pub torn: u64,
    pub last_torn: Option<AuditPlace>,
    /// A last line without a newline: it is being written now, or the sidecar crashed while writing it.
    pub unfinished: Option<AuditPlace>,
}

/// The last record, for `verify --head`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Head {
    pub file: String,
    /// The line in the file, counted from 1.
    pub line: u64,
    /// The number of the record, counted from 1 through all files.
    pub number: u64,
    pub hash: Hash,
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
    #[error("`{}` has no audit record", .directory.display())]
    Empty { directory: PathBuf },
    #[error("`{0}` is not a head: give the 64 digits that an earlier `verify` printed")]
    HeadMalformed(String),
    #[error(
        "the record with the hash {head} is missing: the end was cut off, or the whole audit was rewritten"
    )]
    HeadMissing { head: Hash, records: u64 },
    #[error(
        "no record has the hash {head}: it was removed by `audit prune`, which removed the records up to {pruned}, or the audit was changed"
    )]
    HeadMaybePruned { head: Hash, pruned: u64 },
    #[error("no record has the hash {head}, but that of {place} differs from it in few digits only")]
    HeadMistyped { head: Hash, place: AuditPlace },
    #[error(transparent)]
    Mark(#[from] CutError),
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

/// Reads the whole audit once, with bounded memory. Needs no lock: a sidecar may go on writing. An audit without a record
/// is an error: a sidecar writes one at its start, so its files were removed, or the directory is a wrong one.
pub fn verify(directory: &Path, head: Option<&str>) -> Result<Verified, VerifyError> {
    let head = match head.map(|text| (text, text.trim().to_ascii_lowercase())) {
        Some((text, digits)) => {
            Some(digits.parse::<Hash>().map_err(|_| VerifyError::HeadMalformed(text.to_owned()))?)
        }
        None => None,
    };
    let mut present =
        files::list(directory).map_err(|source| VerifyError::Read { path: directory.to_owned(), source })?;
    let cut = Cut::read(directory)?;
    let first = cut.as_ref().map_or(1, |cut| cut.file);
    // Files before the cut are left over from a run of `audit prune` that was interrupted.
    present.retain(|index| *index >= first);
    let (chain, pruned) = cut.map_or((Hash::GENESIS, 0), |cut| (cut.chain, cut.number));
    let mut verification = Verification {
        expected_head: head.filter(|head| *head != Hash::GENESIS && *head != chain),
        similar_head: None,
        chain,
        verified: Verified { pruned, ..Verified::default() },
    };
    for (index, expected) in present.iter().zip(first..) {
        if *index != expected {
            return Err(VerifyError::MissingFile { file: files::file_name(expected) });
        }
        let position = if Some(index) == present.last() { FilePosition::Last } else { FilePosition::Middle };
        verification.verify_file(directory, *index, position)?;
    }
    verification.finish(directory)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FilePosition {
    Last,
    Middle,
}

/// A hash with so few wrong digits was mistyped: hashes of different records have about 60 different digits.
const MAX_MISTYPED: usize = 8;

struct Verification {
    /// The head that was given, until its record is found.
    expected_head: Option<Hash>,
    /// A record whose hash is so similar to the head that was given that this was probably mistyped.
    similar_head: Option<AuditPlace>,
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
    fn finish(self, directory: &Path) -> Result<Verified, VerifyError> {
        let Verified { records, pruned, .. } = self.verified;
        match (self.expected_head, self.similar_head) {
            (Some(head), Some(place)) => Err(VerifyError::HeadMistyped { head, place }),
            (Some(head), None) if pruned > 0 => Err(VerifyError::HeadMaybePruned { head, pruned }),
            (Some(head), None) => Err(VerifyError::HeadMissing { head, records }),
            (None, _) if records == 0 => Err(VerifyError::Empty { directory: directory.to_owned() }),
            (None, _) => Ok(self.verified),
        }
    }

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
        let expected = self.verified.pruned + self.verified.records + 1;
        if sealed.number != expected {
            return Err(VerifyError::Misplaced { place: place.clone(), expected, found: sealed.number });
        }
        if !sealed.follows(&self.chain) {
            return Err(changed());
        }
        self.chain = sealed.chain;
        self.expected_head.take_if(|head| *head == sealed.chain);
        if self.expected_head.is_some_and(|head| head.differing_digits(&sealed.chain) <= MAX_MISTYPED) {
            self.similar_head = Some(place.clone());
        }
        self.verified.records += 1;
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
