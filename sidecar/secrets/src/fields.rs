//! Parses the content of a source into fields: a JSON object gives its members, anything else is the field `value`.
//!
//! What must stay true: a value is used as it was written or not at all. No field is empty, nested structures are not
//! flattened, no key occurs twice; errors name fields and never contain values.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::spec::ShortValues;
use super::value::{MIN_VALUE_BYTES, Secret};

/// The field name for content that is not a JSON object.
const VALUE_FIELD: &str = "value";

#[derive(Clone, Debug, thiserror::Error, Eq, PartialEq)]
pub enum FieldError {
    #[error("it is empty")]
    Empty,
    #[error("its field `{field}` is empty")]
    EmptyField { field: String },
    #[error("its field `{field}` is null, a list or an object")]
    NotPlain { field: String },
    #[error(
        "its field `{field}` has {length} bytes, fewer than {MIN_VALUE_BYTES}: scrubbing it would destroy other text"
    )]
    TooShort { field: String, length: usize },
    #[error("its field `{field}` is given twice")]
    Repeated { field: String },
}

/// The usable fields of a source, and the others with what is wrong with them.
#[derive(Debug)]
pub struct ParsedFields {
    pub fields: BTreeMap<String, Secret>,
    pub unusable: BTreeMap<String, FieldError>,
}

impl From<BTreeMap<String, Secret>> for ParsedFields {
    fn from(fields: BTreeMap<String, Secret>) -> Self {
        Self { fields, unusable: BTreeMap::new() }
    }
}

/// Parses an object that another system generated: an unusable field is an error only for templates that name it.
pub fn parse_leniently(
    content: &[u8],
    public: &BTreeSet<String>,
    short: ShortValues,
) -> Result<ParsedFields, FieldError> {
    let Some(JsonObject(members)) = parse_object(content) else { return Err(FieldError::Empty) };
    let mut parsed = ParsedFields { fields: BTreeMap::new(), unusable: BTreeMap::new() };
    for (field, raw) in members {
        let value = plain_value(raw).map(Secret::new);
        let checked = value.ok_or_else(|| FieldError::NotPlain { field: field.clone() }).and_then(|value| {
            check_value(&field, &value, public, short)?;
            Ok(value)
        });
        let is_new = match checked {
            Ok(value) => parsed.fields.insert(field.clone(), value).is_none(),
            Err(error) => parsed.unusable.insert(field.clone(), error).is_none(),
        };
        if !is_new {
            return Err(FieldError::Repeated { field });
        }
    }
    match parsed.fields.is_empty() && parsed.unusable.is_empty() {
        true => Err(FieldError::Empty),
        false => Ok(parsed),
    }
}

/// Parses the content of a local source: every field must be usable.
pub(super) fn parse(
    content: &[u8],
    public: &BTreeSet<String>,
    short: ShortValues,
) -> Result<BTreeMap<String, Secret>, FieldError> {
    if let Some(JsonObject(members)) = parse_object(content) {
        return parse_members(members, public, short);
    }
    let value = content.strip_suffix(b"\n").unwrap_or(content);
    let value = value.strip_suffix(b"\r").filter(|_| value.len() < content.len()).unwrap_or(value);
    if value.is_empty() {
        return Err(FieldError::Empty);
    }
    let value = Secret::new(Zeroizing::new(value.to_vec()));
    check_value(VALUE_FIELD, &value, public, short)?;
    Ok(BTreeMap::from([(VALUE_FIELD.into(), value)]))
}

/// Checks members of a JSON object, which must all be usable.
pub(super) fn parse_members<'a>(
    members: impl IntoIterator<Item = (String, &'a RawValue)>,
    public: &BTreeSet<String>,
    short: ShortValues,
) -> Result<BTreeMap<String, Secret>, FieldError> {
    let mut fields = BTreeMap::new();
    for (field, raw) in members {
        let value = plain_value(raw).ok_or_else(|| FieldError::NotPlain { field: field.clone() })?;
        if fields.insert(field.clone(), Secret::new(value)).is_some() {
            return Err(FieldError::Repeated { field });
        }
    }
    if fields.is_empty() {
        return Err(FieldError::Empty);
    }
    for (field, value) in &fields {
        check_value(field, value, public, short)?;
    }
    Ok(fields)
}

fn check_value(
    field: &str,
    value: &Secret,
    public: &BTreeSet<String>,
    short: ShortValues,
) -> Result<(), FieldError> {
    let may_be_short = short == ShortValues::Allow || public.contains(field);
    match value.len() {
        0 => Err(FieldError::EmptyField { field: field.to_owned() }),
        length @ 1..MIN_VALUE_BYTES if !may_be_short => {
            Err(FieldError::TooShort { field: field.to_owned(), length })
        }
        _ => Ok(()),
    }
}

/// The decoded string members of an object.
pub(super) fn string_values(content: &[u8]) -> impl Iterator<Item = Zeroizing<Vec<u8>>> {
    let members = parse_object(content).map(|JsonObject(members)| members).unwrap_or_default();
    members.into_iter().filter(|(_, raw)| raw.get().starts_with('"')).filter_map(|(_, raw)| plain_value(raw))
}

pub(super) fn parse_object(content: &[u8]) -> Option<JsonObject<'_>> {
    serde_json::from_slice(content).ok()
}

/// Decodes a string, and copies numbers and booleans as they are written: `1.0` stays `1.0`, and long numbers keep
/// every digit.
fn plain_value(raw: &RawValue) -> Option<Zeroizing<Vec<u8>>> {
    let text = raw.get();
    match text.as_bytes().first()? {
        b'"' => match serde_json::from_str::<Text<'_>>(text).ok()?.0 {
            Cow::Borrowed(value) => Some(Zeroizing::new(value.as_bytes().to_vec())),
            Cow::Owned(value) => Some(Zeroizing::new(value.into_bytes())),
        },
        b'-' | b'0'..=b'9' | b't' | b'f' => Some(Zeroizing::new(text.as_bytes().to_vec())),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object in order, with repeated keys. Values borrow from the content, so that no unwiped copy is made.
pub(super) struct JsonObject<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for JsonObject<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = JsonObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry().map_err(A::Error::custom)? {
                    members.push(member);
                }
                Ok(JsonObject(members))
            }
        }

        deserializer.deserialize_map(Members)
    }
}
