//! Replaces what was found in a JSON message so that it stays JSON, and JSON in its strings too.
//!
//! A match in a string is replaced there; a number becomes a string; a match that spans several tokens, because the
//! value is JSON itself (such as a key file), takes the smallest object or array around it. Everything else stays byte
//! for byte.

use std::collections::HashMap;
use std::iter::Peekable;
use std::ops::Range;

use relay_proto::json::{Escapes, JsonError, Rules, Scanner, Text, Token};

use super::Scrubber;
use super::budget::{Budget, Exceeded, MAX_MATCHES, OverBudget};
use super::json_string::{DecodedString, whole_characters, whole_units};
use super::normal::Syntax;
use super::search::{Found, Match, merge};

/// How deep JSON in strings of JSON stays JSON. Deeper values are removed too, but what is around them may be cut.
const MAX_NESTED: usize = 6;

/// The replacement of a span of text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Edit {
    pub(super) span: Range<usize>,
    pub(super) with: String,
}

type Remaining = Peekable<std::vec::IntoIter<Found>>;

/// Replaces matches by markers.
pub(super) struct Placing<'a> {
    scrubber: &'a Scrubber,
    markers: HashMap<Match, String>,
}

impl<'a> Placing<'a> {
    pub(super) fn new(scrubber: &'a Scrubber) -> Self {
        Self { scrubber, markers: HashMap::new() }
    }

    /// The edits that remove every match from a JSON text and leave it JSON. `nested` counts the strings around it.
    pub(super) fn edits_in_json(
        &mut self,
        json: &[u8],
        found: Vec<Found>,
        nested: usize,
    ) -> Result<Vec<Edit>, JsonError> {
        let mut scanner = Scanner::new(json, Rules::LENIENT)?;
        let mut edits = Vec::new();
        let mut remaining = found.into_iter().peekable();
        // Matches that are in no single token.
        let mut across: Vec<Found> = Vec::new();
        let mut open = Vec::new();
        while let Some(token) = scanner.next()? {
            let end = scanner.position();
            match token {
                Token::ArrayStart | Token::ObjectStart => open.push(end - 1),
                Token::ArrayEnd | Token::ObjectEnd => {
                    across.extend(std::iter::from_fn(|| remaining.next_if(|found| found.span.end <= end)));
                    let start = open.pop().unwrap_or_default();
                    let inside = across.partition_point(|found| found.span.start < start);
                    if let Some(found) = across.drain(inside..).next() {
                        edits.push(Edit { span: start..end, with: quoted(&self.marker(found.what)) });
                    }
                }
                Token::Key(text) | Token::String(text) => {
                    let inside = take_inside(&mut remaining, &mut across, text.inner());
                    if !inside.is_empty() {
                        self.edits_in_string(json, &text, inside, nested, &mut edits);
                    }
                }
                // A value of digits may be a number. Its replacement is a string.
                Token::Number(span) => {
                    if let Some(found) = take_inside(&mut remaining, &mut across, span.clone()).first() {
                        edits.push(Edit { span, with: quoted(&self.marker(found.what)) });
                    }
                }
                Token::Literal(_) => {}
            }
        }
        edits.sort_by_key(|edit| (edit.span.start, usize::MAX - edit.span.end));
        let mut end = 0;
        edits.retain(|edit| {
            let outside = edit.span.start >= end;
            end = end.max(edit.span.end);
            outside
        });
        Ok(edits)
    }

    fn edits_in_string(
        &mut self,
        json: &[u8],
        text: &Text,
        found: Vec<Found>,
        nested: usize,
        edits: &mut Vec<Edit>,
    ) {
        let Range { start, end } = text.inner();
        let string = &json[start..end];
        let relative =
            |found: Found| Found { span: found.span.start - start..found.span.end - start, ..found };
        let found: Vec<Found> = found.into_iter().map(relative).collect();
        if let [Found { what: what @ Match::Unsearchable(_), .. }] = &found[..] {
            let with = escaped(&self.marker(*what));
            return edits.push(Edit { span: start..end, with });
        }
        let absolute = |span: Range<usize>, with: &str| Edit {
            span: start + span.start..start + span.end,
            with: escaped(with),
        };
        if text.escapes != Escapes::Some {
            let inside = self.edits_in_text(string, found, nested);
            return edits.extend(inside.into_iter().map(|edit| absolute(edit.span, &edit.with)));
        }
        let decoded = DecodedString::new(string);
        let in_text: Option<Vec<Found>> = found
            .into_iter()
            .map(|found| Some(Found { span: decoded.decoded(found.span)?, ..found }))
            .collect();
        // A match that begins inside an escape is none: the letter is not in the text.
        let found = in_text.unwrap_or_else(|| self.scrubber.search_whole(&decoded.text, Syntax::Unknown));
        let inside = self.edits_in_text(&decoded.text, found, nested);
        edits.extend(inside.into_iter().map(|edit| absolute(decoded.encoded(edit.span), &edit.with)));
    }

    /// The edits that replace whole strings of a JSON text.
    pub(super) fn edits_of_strings(&mut self, removed: Vec<Found>) -> Vec<Edit> {
        let edit = |found: Found| Edit { span: found.span, with: escaped(&self.marker(found.what)) };
        removed.into_iter().map(edit).collect()
    }

    /// The edits of a text in a message. If it is JSON itself, it stays JSON.
    fn edits_in_text(&mut self, text: &[u8], found: Vec<Found>, nested: usize) -> Vec<Edit> {
        if nested < MAX_NESTED && matches!(text.trim_ascii_start().first(), Some(b'[' | b'{')) {
            let found = found
                .iter()
                .map(|found| Found { span: whole_characters(text, found.span.clone()), ..*found });
            if let Ok(edits) = self.edits_in_json(text, merge(found.collect()), nested + 1) {
                return edits;
            }
        }
        self.edits_of(text, found)
    }

    /// The edits of text that is not JSON.
    pub(super) fn edits_of(&mut self, text: &[u8], found: Vec<Found>) -> Vec<Edit> {
        let widened = found.into_iter().map(|found| Found { span: whole_units(text, found.span), ..found });
        let edit = |found: Found| Edit { span: found.span, with: self.marker(found.what) };
        merge(widened.collect()).into_iter().map(edit).collect()
    }

    /// The replacement for what was found. A short value may occur in its label or in the word "redacted"; then a
    /// shorter or an empty text is used.
    fn marker(&mut self, what: Match) -> String {
        let scrubber = self.scrubber;
        let new_marker = || {
            let named = match what {
                Match::Value { index, value } => {
                    let label = scrubber.name_of(&scrubber.indexes[index].values[value]);
                    label.map(|label| format!("[redacted:{label}]"))
                }
                Match::Unsearchable(Exceeded::Work) => {
                    Some("[redacted: encoded too often to be searched]".to_owned())
                }
                Match::Unsearchable(Exceeded::Matches) => {
                    Some("[redacted: too many secret values]".to_owned())
                }
            };
            let mut candidates = named.into_iter().chain(["[redacted]".to_owned(), "[***]".to_owned()]);
            let is_clean = |candidate: &String| {
                let found = scrubber.search_undecoded(candidate.as_bytes(), &[], 0);
                found.is_ok_and(|found| found.is_empty())
            };
            candidates.find(is_clean).unwrap_or_default()
        };
        self.markers.entry(what).or_insert_with(new_marker).clone()
    }
}

/// What was found in the strings of a message.
pub(super) enum InStrings {
    /// Nothing but strings that cannot be searched.
    Unsearchable(Vec<Found>),
    Matches(Vec<Found>),
}

/// The message is not JSON, or has more matches than may be replaced one by one.
pub(super) struct UnsearchableStrings;

/// The matches, and the strings that are replaced whole, in one message. What is replaced one by one takes memory for each.
const MAX_MATCHES_OF_MESSAGE: usize = 4 * MAX_MATCHES;

impl Scrubber {
    /// The matches in a message that cannot be searched as a whole for this reason, searched string by string.
    pub(super) fn search_strings(
        &self,
        message: &[u8],
        exceeded: Exceeded,
    ) -> Result<InStrings, UnsearchableStrings> {
        let mut scanner = Scanner::new(message, Rules::LENIENT).map_err(|_| UnsearchableStrings)?;
        let mut found = Vec::new();
        let mut removed = Vec::new();
        let mut budget = Budget::new(message.len());
        while let Some(token) = scanner.next().map_err(|_| UnsearchableStrings)? {
            let (Token::Key(text) | Token::String(text)) = token else { continue };
            let inner = text.inner();
            if inner.is_empty() {
                continue;
            }
            let left = MAX_MATCHES_OF_MESSAGE.checked_sub(found.len()).ok_or(UnsearchableStrings)?;
            budget.begin_string(left.max(1));
            // The string that took too long in the search of the message needs no second search.
            let inside = match exceeded == Exceeded::Work && inner.len() > message.len() / 2 {
                true => Err(OverBudget),
                false => self.search_within(&message[inner.clone()], Syntax::Json, &mut budget),
            };
            match inside {
                Ok(inside) => found.extend(inside.into_iter().map(|found| Found {
                    span: inner.start + found.span.start..inner.start + found.span.end,
                    ..found
                })),
                Err(OverBudget) => {
                    removed.push(inner.clone());
                    found.push(Found { span: inner, what: Match::Unsearchable(budget.exceeded) });
                }
            }
        }
        let undecoded = self.search_undecoded(message, &removed, MAX_MATCHES_OF_MESSAGE);
        let undecoded = undecoded.map_err(|OverBudget| UnsearchableStrings)?;
        if undecoded.is_empty() && found.len() == removed.len() {
            return Ok(InStrings::Unsearchable(found));
        }
        found.extend(undecoded);
        Ok(InStrings::Matches(merge(found)))
    }
}

/// Takes the matches within a token, and moves those that begin before it or end after it to `across`.
fn take_inside(remaining: &mut Remaining, across: &mut Vec<Found>, token: Range<usize>) -> Vec<Found> {
    let mut inside = Vec::new();
    while let Some(found) = remaining.next_if(|found| found.span.start < token.end) {
        match token.start <= found.span.start && found.span.end <= token.end {
            true => inside.push(found),
            false => across.push(found),
        }
    }
    inside
}

/// Text as a JSON string, with quotes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Text as the inside of a JSON string.
fn escaped(text: &str) -> String {
    let string = quoted(text);
    string[1..string.len() - 1].to_owned()
}
