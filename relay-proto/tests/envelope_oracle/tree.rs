//! JSON as serde_json reads it, with all keys in their order, repeated ones included.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    Array(Vec<Tree>),
    Bool(bool),
    Null,
    Number(Number),
    Object(Vec<(String, Tree)>),
    Text(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Written without fraction and exponent, within 64 bits.
    Integer(i128),
    /// Too large to tell an integer from a fraction.
    Huge,
    Fraction(f64),
}

/// Stands for an unpaired surrogate; no generated message contains this character.
pub(super) const SURROGATE_REPLACEMENT: char = '\u{e000}';

/// Whether serde_json refused something that JSON allows.
pub(super) fn is_parser_limit(error: &serde_json::Error) -> bool {
    let message = error.to_string();
    message.starts_with("number out of range") || message.starts_with("recursion limit exceeded")
}

/// The text with each unpaired surrogate replaced; `None` if it contains the replacement already.
pub(super) fn replace_unpaired_surrogates(text: &str) -> Option<String> {
    if text.contains(SURROGATE_REPLACEMENT) || text.to_ascii_lowercase().contains("e000") {
        return None;
    }
    let (mut replaced, mut at) = (String::new(), 0);
    let bytes = text.as_bytes();
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
    };
    while at < bytes.len() {
        let length = match (bytes[at], unit(at), unit(at + 6)) {
            (b'\\', Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (b'\\', Some(0xD800..=0xDFFF), _) => {
                replaced.push_str("\\ue000");
                at += 6;
                continue;
            }
            (b'\\', ..) => 2,
            _ => 1,
        };
        let end = (at + length..=bytes.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(bytes.len());
        replaced.push_str(&text[at..end]);
        at = end;
    }
    Some(replaced)
}

impl Tree {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The value of a key; the first one if the key is repeated.
    pub(super) fn member(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn depth(&self) -> usize {
        match self {
            Self::Array(_) | Self::Object(_) => 1 + self.children().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether any object, however deep, has a key twice.
    pub(super) fn repeats_a_key(&self) -> bool {
        let mut seen = HashSet::new();
        let repeats_here = match self {
            Self::Object(members) => !members.iter().all(|(key, _)| seen.insert(key)),
            _ => false,
        };
        repeats_here || self.children().any(Self::repeats_a_key)
    }

    fn children(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        match self {
            Self::Array(elements) => Box::new(elements.iter()),
            Self::Object(members) => Box::new(members.iter().map(|(_, value)| value)),
            _ => Box::new(std::iter::empty()),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Integer(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Integer(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        let huge = value.abs() >= 9e18;
        Ok(Tree::Number(if huge { Number::Huge } else { Number::Fraction(value) }))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Tree, A::Error> {
        let mut array = Vec::new();
        while let Some(element) = elements.next_element()? {
            array.push(element);
        }
        Ok(Tree::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut object = Vec::new();
        while let Some(member) = members.next_entry()? {
            object.push(member);
        }
        Ok(Tree::Object(object))
    }
}
