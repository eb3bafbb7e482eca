//! The id of a message that is too long to store.
//!
//! The bytes are read once and only the top-level `id` is stored; some writers put it last. An ambiguous id is not
//! returned: a wrong one would end another request.

use crate::limits::MAX_ID;

/// Searches a message for its id while its bytes are discarded.
#[derive(Debug, Default)]
pub struct IdSearch {
    depth: usize,
    string: InString,
    /// The string or number at the top level that is being read: a key, or the value of `id`.
    token: Vec<u8>,
    position: ScanPosition,
    /// The key whose value comes next.
    key: Key,
    id: Found,
    has_method: bool,
    malformed: bool,
}

/// The kind of message that an id belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessageKind {
    Request,
    Response,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum InString {
    #[default]
    No,
    Yes,
    Escape,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum ScanPosition {
    #[default]
    BeforeObject,
    Key,
    Value,
    AfterObject,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Key {
    Id,
    Method,
    #[default]
    Other,
}

#[derive(Debug, Default)]
enum Found {
    #[default]
    None,
    One(Box<[u8]>),
    Ambiguous,
}

impl IdSearch {
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.read_byte(*byte);
        }
    }

    /// The id as raw JSON, if the line was one message of this kind with exactly one id.
    pub fn finish(self, expected: MessageKind) -> Option<Box<[u8]>> {
        let is_complete =
            !self.malformed && self.position == ScanPosition::AfterObject && self.string == InString::No;
        let kind = if self.has_method { MessageKind::Request } else { MessageKind::Response };
        match self.id {
            Found::One(id) if is_complete && kind == expected && is_id(&id) => Some(id),
            _ => None,
        }
    }

    fn read_byte(&mut self, byte: u8) {
        match self.string {
            InString::Escape => {
                self.string = InString::Yes;
                self.store(byte);
                return;
            }
            InString::Yes => {
                self.store(byte);
                match byte {
                    b'\\' => self.string = InString::Escape,
                    b'"' => {
                        self.string = InString::No;
                        if self.depth == 1 && self.position == ScanPosition::Key {
                            self.end_key();
                        }
                    }
                    _ => {}
                }
                return;
            }
            InString::No => {}
        }
        match (byte, self.position) {
            (b' ' | b'\t' | b'\r' | b'\n', _) => {}
            (b'{', ScanPosition::BeforeObject) => {
                self.depth = 1;
                self.position = ScanPosition::Key;
            }
            (_, ScanPosition::BeforeObject | ScanPosition::AfterObject) => self.malformed = true,
            (b'"', _) => {
                if self.depth == 1 && self.position == ScanPosition::Key {
                    self.token.clear();
                }
                self.string = InString::Yes;
                self.store(byte);
            }
            (b'{' | b'[', _) => {
                self.store(byte);
                self.depth += 1;
            }
            (b'}' | b']', _) => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.end_value();
                    self.position = ScanPosition::AfterObject;
                }
            }
            (b':', ScanPosition::Key) if self.depth == 1 => self.position = ScanPosition::Value,
            (b',', ScanPosition::Value) if self.depth == 1 => {
                self.end_value();
                self.position = ScanPosition::Key;
            }
            _ => self.store(byte),
        }
    }

    /// Stores a byte of a top-level key or of the id, up to one byte over the limit, so that a longer id is recognised.
    fn store(&mut self, byte: u8) {
        let is_stored = self.depth == 1 && (self.position == ScanPosition::Key || self.key == Key::Id);
        if is_stored && self.token.len() <= MAX_ID {
            self.token.push(byte);
        }
    }

    fn end_key(&mut self) {
        self.key = match self.token.as_slice() {
            br#""id""# => Key::Id,
            br#""method""# => Key::Method,
            _ => Key::Other,
        };
        let letters = || self.token.iter().filter(|byte| byte.is_ascii_alphabetic());
        let folded: Vec<u8> = letters().map(u8::to_ascii_lowercase).take(3).collect();
        // Some parsers read `"ID"` or `"\u0069d"` as `"id"`.
        if self.key != Key::Id && (folded == b"id" || self.token.contains(&b'\\')) {
            self.id = Found::Ambiguous;
        }
        self.token.clear();
    }

    fn end_value(&mut self) {
        match self.key {
            Key::Id => {
                let token = std::mem::take(&mut self.token);
                self.id = match &self.id {
                    Found::None => Found::One(token.into()),
                    Found::One(_) | Found::Ambiguous => Found::Ambiguous,
                };
            }
            Key::Method => self.has_method = true,
            Key::Other => {}
        }
        self.key = Key::Other;
    }
}

fn is_id(token: &[u8]) -> bool {
    if token.len() > MAX_ID {
        return false;
    }
    let digits = token.strip_prefix(b"-").unwrap_or(token);
    let integer = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    integer || serde_json::from_slice::<String>(token).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_id(text: &str) -> Option<String> {
        let mut whole = IdSearch::default();
        whole.feed(text.as_bytes());
        let mut bytewise = IdSearch::default();
        text.as_bytes().iter().for_each(|byte| bytewise.feed(&[*byte]));
        let (whole, bytewise) = (whole.finish(MessageKind::Request), bytewise.finish(MessageKind::Request));
        assert_eq!(whole, bytewise);
        whole.map(|id| String::from_utf8(id.into()).unwrap())
    }

    #[test]
    fn the_id_of_a_request_is_found_in_any_position() {
        for (text, expected) in [
            (r#"{"id":7,"method":"m"}"#, "7"),
            (r#"{"method":"m","params":{"id":1,"a":["id",{"id":2}]},"id":-12}"#, "-12"),
            (r#" { "method" : "m" , "id" : "a\"}b" } "#, r#""a\"}b""#),
            (r#"{"x":"\\","id":"ü","method":"m"}"#, r#""ü""#),
            (r#"{"method":"m","id":123456789012345678901234567890}"#, "123456789012345678901234567890"),
        ] {
            assert_eq!(request_id(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn the_id_of_a_response_is_found() {
        let mut search = IdSearch::default();
        search.feed(br#"{"result":{"method":"m"},"id":"a"}"#);
        assert_eq!(search.finish(MessageKind::Response).as_deref(), Some(br#""a""#.as_slice()));
    }

    #[test]
    fn a_missing_invalid_or_ambiguous_id_is_not_returned() {
        for text in [
            r#"{"id":7,"result":{}}"#,
            r#"{"method":"m"}"#,
            r#"{"id":null,"method":"m"}"#,
            r#"{"id":1.5,"method":"m"}"#,
            r#"{"id":1 2,"method":"m"}x"#,
            r#"{"id":[1],"method":"m"}"#,
            r#"{"id":{},"method":"m"}"#,
            r#"{"id":1,"id":2,"method":"m"}"#,
            r#"{"id":1,"ID":2,"method":"m"}"#,
            r#"{"\u0069d":1,"id":2,"method":"m"}"#,
            r#"{"id":1,"method":"m""#,
            r#"{"id":1,"method":"m"}{"id":2}"#,
            r#"[{"id":1,"method":"m"}]"#,
            r#"{"params":{"id":3},"method":"m"}"#,
            r#"{"id":"\x","method":"m"}"#,
            "garbage",
            "",
        ] {
            assert_eq!(request_id(text), None, "{text}");
        }
        let long = |length: usize| format!(r#"{{"method":"m","id":"{}"}}"#, "x".repeat(length - 2));
        assert!(request_id(&long(MAX_ID)).is_some());
        assert_eq!(request_id(&long(MAX_ID + 1)), None);
    }
}
