//! Values that are JSON themselves, such as a key file, and occur in a message as JSON instead of inside a string.
//!
//! Such a value spans several tokens and cannot be cut out without breaking the JSON. The smallest object or array
//! around it is replaced.

use relay_proto::json::{JsonError, Rules, Scanner, Token};

use super::Scrubber;
use super::finder::Found;
use super::message::quoted;
use super::search::{Edit, merge};

impl Scrubber {
    /// Adds to the `edits` of strings and numbers those that remove values spanning several tokens.
    pub(super) fn with_container_edits(
        &self,
        message: &[u8],
        mut edits: Vec<Edit>,
    ) -> Result<Vec<Edit>, JsonError> {
        let found = merge(self.finder.find(message));
        if found.is_empty() {
            return Ok(edits);
        }
        edits.extend(self.container_edits(message, found)?);
        edits.sort_by_key(|edit| (edit.span.start, usize::MAX - edit.span.end));
        let mut end = 0;
        edits.retain(|edit| {
            let outside = edit.span.start >= end;
            end = end.max(edit.span.end);
            outside
        });
        Ok(edits)
    }

    fn container_edits(&self, message: &[u8], found: Vec<Found>) -> Result<Vec<Edit>, JsonError> {
        let mut scanner = Scanner::new(message, Rules::LENIENT)?;
        let mut edits = Vec::new();
        let mut remaining = found.into_iter().peekable();
        let mut outside_tokens: Vec<Found> = Vec::new();
        let mut open = Vec::new();
        while let Some(token) = scanner.next()? {
            let end = scanner.position();
            match token {
                Token::ArrayStart | Token::ObjectStart => open.push(end - 1),
                Token::ArrayEnd | Token::ObjectEnd => {
                    outside_tokens
                        .extend(std::iter::from_fn(|| remaining.next_if(|found| found.span.end <= end)));
                    let start = open.pop().unwrap_or_default();
                    let inside = outside_tokens.partition_point(|found| found.span.start < start);
                    if let Some(found) = outside_tokens.drain(inside..).next() {
                        edits.push(Edit { span: start..end, with: quoted(&self.markers[found.needle]) });
                    }
                }
                // A match within one string or number was handled there, after decoding.
                Token::Key(text) | Token::String(text) => {
                    skip_token(&mut remaining, &mut outside_tokens, text.span)
                }
                Token::Number(span) => skip_token(&mut remaining, &mut outside_tokens, span),
                Token::Literal(_) => {}
            }
        }
        Ok(edits)
    }
}

/// Drops the matches within `token`, and moves those that begin before it to `outside_tokens`.
fn skip_token(
    remaining: &mut std::iter::Peekable<std::vec::IntoIter<Found>>,
    outside_tokens: &mut Vec<Found>,
    token: std::ops::Range<usize>,
) {
    while let Some(found) = remaining.next_if(|found| found.span.end <= token.end) {
        if found.span.start < token.start {
            outside_tokens.push(found);
        }
    }
}
