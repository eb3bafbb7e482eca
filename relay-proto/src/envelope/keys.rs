//! Refuses duplicate keys, and keys that a lenient parser treats as equal.

use std::borrow::Cow;

use super::MalformedReason;

/// The top-level keys that a JSON-RPC message may have.
pub(super) const OF_MESSAGE: [&str; 6] = ["error", "id", "jsonrpc", "method", "params", "result"];
/// The keys of `params` that decide what a request does.
pub(super) const OF_PARAMS: [&str; 5] = ["_meta", "arguments", "name", "requestId", "uri"];

/// Refuses keys that are equal once unescaped.
pub(super) fn check_unique(keys: &[Cow<'_, str>]) -> Result<(), MalformedReason> {
    match equal_pair(keys) {
        Some((first, _)) => Err(MalformedReason::DuplicateKey { key: truncated(&keys[first]) }),
        None => Ok(()),
    }
}

/// Refuses keys that some parsers confuse with each other, or with one of the `known`.
pub(super) fn check_not_confusable(
    keys: &[Cow<'_, str>],
    known: &[&'static str],
) -> Result<(), MalformedReason> {
    // A key that is exactly a known one cannot be confused with another known key, so it is skipped.
    for key in keys.iter().filter(|key| !known.contains(&&***key)) {
        if let Some(known) = known.iter().find(|known| folds_to(key, known)) {
            return Err(MalformedReason::MisspelledKey { key: truncated(key), known });
        }
    }
    // Keys in lower case cannot be confused; equal ones were refused already.
    if keys.iter().all(|key| is_folded(key)) {
        return Ok(());
    }
    let folded: Vec<Cow<'_, str>> = keys.iter().map(|key| fold(key)).collect();
    match equal_pair(&folded) {
        Some((first, second)) => Err(MalformedReason::ConfusableKeys {
            first: truncated(&keys[first]),
            second: truncated(&keys[second]),
        }),
        None => Ok(()),
    }
}

/// Refuses a key that is not `known`, but that some parsers take for it: they ignore case, or accept the words of a name
/// with `_` or `-` between them (the Python SDK takes `input_requests` for `inputRequests`).
pub(super) fn check_not_read_as(key: &str, known: &'static str) -> Result<(), MalformedReason> {
    let joined: String = key.chars().filter(|character| !matches!(character, '_' | '-')).collect();
    match folds_to(&joined, known) {
        true => Err(MalformedReason::MisspelledKey { key: truncated(key), known }),
        false => Ok(()),
    }
}

/// Whether a parser could read `key` as one of [`OF_MESSAGE`]: exactly, or ignoring case.
pub(super) fn is_like_known(key: &str) -> bool {
    OF_MESSAGE.iter().any(|known| folds_to(key, known))
}

/// Whether a parser that ignores case could read `key` as `known`, which is ASCII.
pub(super) fn folds_to(key: &str, known: &str) -> bool {
    match key.is_ascii() {
        // Equivalent to folding both, but faster: this runs for every key of every message.
        true => key.eq_ignore_ascii_case(known),
        false => fold(key) == fold(known),
    }
}

/// Folds case as the most lenient parser would: each character to upper case, and the result to lower case.
///
/// Upper case first, because that maps the odd characters to plain ones (`ſ` becomes `S`, `ı` becomes `I`); lower case
/// after it handles those that are upper case themselves (the Kelvin sign becomes `k`). This equates slightly more than
/// Unicode's simple folding does, so slightly more is refused.
fn fold(key: &str) -> Cow<'_, str> {
    if is_folded(key) {
        return Cow::Borrowed(key);
    }
    Cow::Owned(key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect())
}

/// True only if folding changes nothing; false for every non-ASCII key, without looking further.
fn is_folded(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
}

/// The indexes of two equal keys.
fn equal_pair(keys: &[Cow<'_, str>]) -> Option<(usize, usize)> {
    /// Up to here comparing all pairs is cheaper than sorting.
    const FEW: usize = 12;
    if keys.len() <= FEW {
        return keys.iter().enumerate().find_map(|(second, key)| {
            let first = keys[..second].iter().position(|earlier| earlier == key)?;
            Some((first, second))
        });
    }
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_unstable_by(|left, right| keys[*left].cmp(&keys[*right]));
    let pair = order.windows(2).find(|pair| keys[pair[0]] == keys[pair[1]])?;
    Some((pair[0].min(pair[1]), pair[0].max(pair[1])))
}

/// A key as an error shows it: truncated, because the sender chose its length.
fn truncated(key: &str) -> Box<str> {
    const LONGEST: usize = 64;
    match key.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &key[..cut]).into(),
        None => key.into(),
    }
}
