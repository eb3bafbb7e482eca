//! Finds which messages have a decision, and which were repeated. Used after a restart, for requests that may have run.
//!
//! What must stay true: a decided message is never reported as undecided, nor a repeated one as decided once. Lines are
//! therefore matched as text, so that even a torn line counts as far as it can be read; and if the search stops early,
//! or `audit prune` may have removed decisions of the link, the remaining messages count as repeated.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::error::AuditError;
use super::files::{self, Lines};

/// How often a message may have been sent.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum RecordedAttempts {
    One,
    /// It was sent again, or may have been.
    Repeated,
}

/// The prefix of the rule of a decision that repeats a call, and of no other rule.
pub const RETRY: &str = "retry: ";

/// The maximum number of bytes to search. Reading them takes about a second; a sandbox that resumes again and again
/// must not be able to cause a read of the whole history each time.
pub(super) const SEARCH_BYTES: u64 = 1 << 30;

/// Which of the messages `seqs` of a link have a decision. `link` is the member as written in a record: `,"link":"…"`.
pub(super) fn decided(
    directory: &Path,
    link: &[u8],
    seqs: &[u64],
    search_bytes: u64,
) -> Result<BTreeMap<u64, RecordedAttempts>, AuditError> {
    let mut missing: Vec<u64> = seqs.to_vec();
    let mut found = BTreeMap::new();
    let repeated = format!(",\"rule\":\"{RETRY}");
    let mut bytes_left = search_bytes;
    let member = [link, b",\"seq\":"].concat();
    let finder = memchr::memmem::Finder::new(&member);
    let link_finder = memchr::memmem::Finder::new(link);
    let mut history = History::MaybePruned;

    let present = files::list(directory).map_err(AuditError::read(directory))?;
    if present.first().is_none_or(|first| *first == 1) {
        history = History::Complete;
    }
    for index in present.into_iter().rev() {
        if missing.is_empty() {
            break;
        }
        let path = files::file_path(directory, index);
        let file = File::open(&path).map_err(AuditError::read(&path))?;
        let length = file.metadata().map_err(AuditError::read(&path))?.len();
        let Some(remaining) = bytes_left.checked_sub(length) else {
            found.extend(missing.drain(..).map(|seq| (seq, RecordedAttempts::Repeated)));
            break;
        };
        bytes_left = remaining;
        let mut lines = Lines::new(file);
        while let Some(line) = lines.advance().map_err(AuditError::read(&path))? {
            let line = line.beginning();
            let Some(at) = finder.find(line) else {
                if history == History::MaybePruned
                    && link_finder.find(line).is_some_and(|at| contains(&line[..at], LINK_START))
                {
                    history = History::Complete;
                }
                continue;
            };
            // The kind precedes the link. Neither can occur inside a text, where quotes are escaped.
            if !contains(&line[..at], b",\"kind\":\"decision\"") {
                continue;
            }
            let digits = &line[at + member.len()..];
            let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if count == digits.len() {
                // Torn within the number: it may be any number with this prefix.
                let prefix = String::from_utf8_lossy(digits);
                record_attempts(&mut missing, &mut found, RecordedAttempts::Repeated, |seq| {
                    seq.to_string().starts_with(&*prefix)
                });
            } else if let Some(number) =
                std::str::from_utf8(&digits[..count]).ok().and_then(|text| text.parse::<u64>().ok())
            {
                // The policy follows the rule: if it is missing, the rule may be incomplete.
                let once = contains(digits, b",\"policy\":") && !contains(digits, repeated.as_bytes());
                let attempts = if once { RecordedAttempts::One } else { RecordedAttempts::Repeated };
                record_attempts(&mut missing, &mut found, attempts, |seq| seq == number);
            }
        }
    }
    if history == History::MaybePruned {
        found.extend(missing.into_iter().map(|seq| (seq, RecordedAttempts::Repeated)));
    }
    Ok(found)
}

/// Whether all records of the link are present.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum History {
    Complete,
    /// Files were removed, and the record of the link's start was not found.
    MaybePruned,
}

/// How the record of a link's start begins, before it names the link.
const LINK_START: &[u8] = b",\"kind\":\"event\",\"event\":\"link_start\"";

/// A repetition follows the decision that it repeats, so a message that was found before may turn out to be repeated.
fn record_attempts(
    missing: &mut Vec<u64>,
    found: &mut BTreeMap<u64, RecordedAttempts>,
    attempts: RecordedAttempts,
    matches: impl Fn(u64) -> bool,
) {
    for (_, known) in found.iter_mut().filter(|(seq, _)| matches(**seq)) {
        *known = attempts.max(*known);
    }
    missing.retain(|seq| {
        let matched = matches(*seq);
        if matched {
            found.insert(*seq, attempts);
        }
        !matched
    });
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
