//! Reads the audit while it grows: the last records, new ones, and those of one session, link or call.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::files::{self, LINE_LIMIT, Lines, NewlineFromEnd};

/// The last `count` records as written, oldest first.
pub fn tail(directory: &Path, count: u64) -> io::Result<Vec<String>> {
    let mut follower = Follower::from_last(directory, count)?;
    let mut lines = Vec::new();
    // Bounded, because a sidecar may write faster than this loop reads.
    while (lines.len() as u64) < count {
        match follower.poll()? {
            more if more.is_empty() => break,
            more => lines.extend(more),
        }
    }
    lines.drain(..lines.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX)));
    Ok(lines)
}

/// Returns every new record, through rotations. The caller decides how often to poll.
#[derive(Debug)]
pub struct Follower {
    directory: PathBuf,
    /// The file to read next; 0 if there was none yet. `offset` is where to continue in it.
    index: u32,
    offset: u64,
}

impl Follower {
    /// Begins with the last `count` records.
    pub fn from_last(directory: &Path, count: u64) -> io::Result<Self> {
        let mut follower = Self { directory: directory.to_owned(), index: 0, offset: 0 };
        let mut wanted = count;
        for index in files::list(directory)?.into_iter().rev() {
            let file = File::open(files::file_path(directory, index))?;
            let length = file.metadata()?.len();
            follower.index = index;
            match files::newline_from_end(&file, length, wanted.saturating_add(1))? {
                NewlineFromEnd::At(newline) => {
                    follower.offset = newline + 1;
                    return Ok(follower);
                }
                NewlineFromEnd::Fewer(found) => {
                    follower.offset = 0;
                    wanted -= found;
                }
            }
            if wanted == 0 {
                break;
            }
        }
        Ok(follower)
    }

    /// Some of the new lines, oldest first; empty if there are none.
    pub fn poll(&mut self) -> io::Result<Vec<String>> {
        loop {
            // Listed before reading: once there is a next file, this one does not grow any more.
            let next = files::list(&self.directory)?.into_iter().find(|index| *index > self.index);
            if self.index > 0 {
                let lines = self.read()?;
                if !lines.is_empty() {
                    return Ok(lines);
                }
            }
            match next {
                Some(next) => (self.index, self.offset) = (next, 0),
                None => return Ok(Vec::new()),
            }
        }
    }

    fn read(&mut self) -> io::Result<Vec<String>> {
        let file = File::open(files::file_path(&self.directory, self.index))?;
        let available = file.metadata()?.len().saturating_sub(self.offset).min(LINE_LIMIT as u64);
        let mut chunk = vec![0; available as usize];
        file.read_exact_at(&mut chunk, self.offset)?;
        let end = match chunk.iter().rposition(|byte| *byte == b'\n') {
            Some(newline) => newline + 1,
            // Longer than any record: not written by a sidecar, but it must not block the follower for ever.
            None if chunk.len() == LINE_LIMIT => chunk.len(),
            None => return Ok(Vec::new()),
        };
        self.offset += end as u64;
        let whole = chunk[..end].strip_suffix(b"\n").unwrap_or(&chunk[..end]);
        Ok(whole
            .split(|byte| *byte == b'\n')
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect())
    }
}

/// Which records: `SESSION`, `LINK`, `SESSION/LINK` or `SESSION/LINK/SEQ`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Selector {
    /// The decision and the outcome of one message.
    Call {
        session: String,
        link: String,
        seq: u64,
    },
    Link {
        session: String,
        link: String,
    },
    /// The id of a session or of a link; they do not collide.
    SessionOrLink(String),
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` does not name records: use SESSION, LINK, SESSION/LINK or SESSION/LINK/SEQ")]
pub struct InvalidSelector(pub String);

/// Calls `each` with the selected records, oldest first.
pub fn show(
    directory: &Path,
    selector: &Selector,
    mut each: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<()> {
    for index in files::list(directory)? {
        let mut lines = Lines::new(File::open(files::file_path(directory, index))?);
        while let Some(line) = lines.advance()? {
            let Some(line) = line.whole().and_then(|line| std::str::from_utf8(line).ok()) else { continue };
            if serde_json::from_str(line).is_ok_and(|ids| selector.selects(&ids)) {
                each(line)?;
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Ids {
    session: Option<String>,
    link: Option<String>,
    seq: Option<u64>,
}

impl Selector {
    fn selects(&self, ids: &Ids) -> bool {
        let session = ids.session.as_deref();
        let link = ids.link.as_deref();
        match self {
            Self::Call { session: s, link: l, seq } => {
                session == Some(s) && link == Some(l) && ids.seq == Some(*seq)
            }
            Self::Link { session: s, link: l } => session == Some(s) && link == Some(l),
            Self::SessionOrLink(id) => session == Some(id) || link == Some(id),
        }
    }
}

impl FromStr for Selector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidSelector(text.to_owned());
        let parts: Vec<&str> = text.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(invalid());
        }
        Ok(match parts[..] {
            [id] => Self::SessionOrLink(id.to_owned()),
            [session, link] => Self::Link { session: session.to_owned(), link: link.to_owned() },
            [session, link, seq] => Self::Call {
                session: session.to_owned(),
                link: link.to_owned(),
                seq: seq.parse().map_err(|_| invalid())?,
            },
            _ => return Err(invalid()),
        })
    }
}
