//! JSON messages: each string, key and number is scrubbed by itself. Everything else stays byte for byte, except around
//! a value that spans several tokens (see `structure`).

use relay_proto::json::{Escapes, JsonError, Rules, Scanner, Text, Token};

use super::Scrubber;
use super::search::{Edit, MAX_LAYERS};
use super::views::Coding;

impl Scrubber {
    /// The edits that remove every value from a JSON text and leave it JSON.
    pub(super) fn edits_in_json(&self, message: &[u8], layer: usize) -> Result<Vec<Edit>, JsonError> {
        let mut scanner = Scanner::new(message, Rules::LENIENT)?;
        let mut edits = Vec::new();
        while let Some(token) = scanner.next()? {
            match token {
                Token::Key(text) | Token::String(text) => {
                    self.edits_in_string(message, &text, layer, &mut edits)
                }
                // A value of digits may occur as a number. Its replacement is a string.
                Token::Number(span) => {
                    if let Some(found) = self.finder.find(&message[span.clone()]).first() {
                        edits.push(Edit {
                            span,
                            with: format!("\"{}\"", escaped(&self.markers[found.needle])),
                        });
                    }
                }
                Token::ArrayEnd
                | Token::ArrayStart
                | Token::Literal(_)
                | Token::ObjectEnd
                | Token::ObjectStart => {}
            }
        }
        self.with_container_edits(message, edits)
    }

    fn edits_in_string(&self, message: &[u8], text: &Text, layer: usize, edits: &mut Vec<Edit>) {
        let inner = text.inner();
        let raw = &message[inner.clone()];
        if !self.finder.might_match(raw) {
            return;
        }
        let decoded = if text.escapes == Escapes::Some { Coding::JsonEscapes.decode(raw) } else { None };
        let found = self.edits_in_text(decoded.as_deref().unwrap_or(raw), layer);
        if found.is_empty() {
            return;
        }
        let source_map = decoded.map(|_| Coding::JsonEscapes.source_map(raw));
        edits.extend(found.into_iter().map(|edit| {
            let span = source_map.as_ref().map_or(edit.span.clone(), |source_map| source_map.span(edit.span));
            Edit { span: inner.start + span.start..inner.start + span.end, with: escaped(&edit.with) }
        }));
    }

    /// The edits of a decoded string. If it is JSON itself, it stays JSON, provided that the edits of its tokens cover
    /// every match.
    fn edits_in_text(&self, text: &[u8], layer: usize) -> Vec<Edit> {
        let found = self.search(text, layer);
        let json = layer < MAX_LAYERS && matches!(text.trim_ascii_start().first(), Some(b'[' | b'{'));
        if json && !found.is_empty() {
            let inside = self.edits_in_json(text, layer + 1).unwrap_or_default();
            let covered = |at: usize| {
                let next = inside.partition_point(|edit| edit.span.end <= at);
                inside.get(next).is_some_and(|edit| edit.span.start <= at)
            };
            if found.iter().all(|found| covered(found.span.start) && covered(found.span.end - 1)) {
                return inside;
            }
        }
        self.edits_of(found)
    }
}

/// Text as a JSON string, with quotes.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Text as the inside of a JSON string.
fn escaped(text: &str) -> String {
    let string = quoted(text);
    string[1..string.len() - 1].to_owned()
}
