//! What left: which messages have a decision, and which were repeated. Asked after a restart, about requests that may
//! have run.
//!
//! It must never say "not decided" of something that was, nor "once" of something that was repeated: lines are matched
//! as text, so that even a torn one counts where it can be read, and where the search is given up the answer is that it
//! was repeated.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::error::AuditError;
use super::files::{self, Lines};

/// How often a message may have left.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum RecordedAttempts {
    One,
    /// It was repeated, or may have been.
    Repeated,
}

/// The rule of a decision that repeats a call begins with this, and no other does.
pub const RETRY: &str = "retry: ";

/// How far back to look. Reading this takes about a second; a sandbox that asks again and again must not be able
/// to have the whole history read each time.
pub(super) const SEARCH_BYTES: u64 = 1 << 30;

/// `link` is the member as it is written: `,"link":"…"`.
pub(super) fn decided(
    directory: &Path,
    link: &[u8],
    seqs: &[u64],
    search_bytes: u64,
) -> Result<BTreeMap<u64, RecordedAttempts>, AuditError> {
    let mut open: Vec<u64> = seqs.to_vec();
    let mut found = BTreeMap::new();
    let repeated = format!(",\"rule\":\"{RETRY}");
    let mut budget = search_bytes;
    let member = [link, b",\"seq\":"].concat();
    let finder = memchr::memmem::Finder::new(&member);

    let present = files::list(directory).map_err(AuditError::read(directory))?;
    for index in present.into_iter().rev() {
        if open.is_empty() {
            break;
        }
        let path = files::file_path(directory, index);
        let file = File::open(&path).map_err(AuditError::read(&path))?;
        let length = file.metadata().map_err(AuditError::read(&path))?.len();
        let Some(left) = budget.checked_sub(length) else {
            found.extend(open.drain(..).map(|seq| (seq, RecordedAttempts::Repeated)));
            break;
        };
        budget = left;
        let mut lines = Lines::new(file);
        while let Some(line) = lines.advance().map_err(AuditError::read(&path))? {
            let line = line.beginning();
            let Some(place) = finder.find(line) else { continue };
            // The kind stands before the link, and neither can be part of a text: quotes in those are escaped.
            if !contains(&line[..place], b",\"kind\":\"decision\"") {
                continue;
            }
            let digits = &line[place + member.len()..];
            let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if count == digits.len() {
                // Torn within the number: it may be any that begins so.
                let prefix = String::from_utf8_lossy(digits);
                note(&mut open, &mut found, RecordedAttempts::Repeated, |seq| {
                    seq.to_string().starts_with(&*prefix)
                });
            } else if let Some(number) =
                std::str::from_utf8(&digits[..count]).ok().and_then(|text| text.parse::<u64>().ok())
            {
                // The policy stands behind the rule: where it is missing, the rule may be.
                let once = contains(digits, b",\"policy\":") && !contains(digits, repeated.as_bytes());
                let left = if once { RecordedAttempts::One } else { RecordedAttempts::Repeated };
                note(&mut open, &mut found, left, |seq| seq == number);
            }
        }
    }
    Ok(found)
}

/// A repetition stands behind what it repeats, so what was found before may turn out to be more.
fn note(
    open: &mut Vec<u64>,
    found: &mut BTreeMap<u64, RecordedAttempts>,
    left: RecordedAttempts,
    matches: impl Fn(u64) -> bool,
) {
    for (_, known) in found.iter_mut().filter(|(seq, _)| matches(**seq)) {
        *known = left.max(*known);
    }
    open.retain(|seq| {
        let taken = matches(*seq);
        if taken {
            found.insert(*seq, left);
        }
        !taken
    });
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
