//! The text of a settings file: JSON with comments, or TOML.
//!
//! What must stay true: a byte order mark and the kind of line ends are kept; a syntax error names its line and column and
//! quotes nothing of the text, which may be a secret; a repeated member is refused, because harnesses differ in which of the
//! two they use. The text and the parsed values are wiped when they are dropped. The parsers' own copies are not, which is
//! why the command that uses this crate is short-lived and cannot be traced by other processes.

use std::path::Path;

use jsonc_parser::ast;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::{Map, Value};
use zeroize::{Zeroize as _, Zeroizing};

const BYTE_ORDER_MARK: &str = "\u{feff}";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    Json,
    Toml,
}

impl Format {
    /// By the file's extension: only Codex has settings in TOML.
    pub fn of(path: &Path) -> Self {
        match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml")) {
            true => Self::Toml,
            false => Self::Json,
        }
    }
}

/// A settings file that was read.
pub struct Document {
    pub format: Format,
    has_byte_order_mark: bool,
    /// Without the byte order mark.
    pub(crate) body: Zeroizing<String>,
    pub(crate) value: WipedValue,
}

/// A JSON value whose texts are wiped when it is dropped.
#[derive(Default)]
pub(crate) struct WipedValue(pub(crate) Value);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DocumentError {
    #[error("line {line} is not UTF-8")]
    NotUtf8 { line: usize },
    #[error("it is not an object")]
    NotObject,
    #[error("line {line}, column {column}: the member `{name}` is repeated")]
    Repeated { line: usize, column: usize, name: String },
    #[error("line {line}, column {column}: {what}")]
    Syntax { line: usize, column: usize, what: String },
}

impl Document {
    pub fn read(format: Format, bytes: &[u8]) -> Result<Self, DocumentError> {
        let text = std::str::from_utf8(bytes).map_err(|error| DocumentError::NotUtf8 {
            line: line_and_column(&String::from_utf8_lossy(&bytes[..error.valid_up_to()]), usize::MAX).0,
        })?;
        let body = text.strip_prefix(BYTE_ORDER_MARK);
        let has_byte_order_mark = body.is_some();
        let body = Zeroizing::new(body.unwrap_or(text).to_owned());
        let value = WipedValue(match format {
            Format::Json => read_json(&body)?,
            Format::Toml => read_toml(&body)?,
        });
        match value.0 {
            Value::Object(_) => Ok(Self { format, has_byte_order_mark, body, value }),
            _ => Err(DocumentError::NotObject),
        }
    }

    /// The bytes of the file with another body.
    pub(crate) fn with_body(&self, body: &str) -> Zeroizing<Vec<u8>> {
        let mark = if self.has_byte_order_mark { BYTE_ORDER_MARK } else { "" };
        let mut bytes = Zeroizing::new(Vec::with_capacity(mark.len() + body.len()));
        bytes.extend_from_slice(mark.as_bytes());
        bytes.extend_from_slice(body.as_bytes());
        bytes
    }

    /// The numbers of the lines that contain a text, counted from 1.
    pub fn lines_with(bytes: &[u8], text: &str) -> Vec<usize> {
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let contains = |line: &[u8]| line.windows(text.len()).any(|window| window == text.as_bytes());
        match text.is_empty() || text.contains('\n') {
            true => Vec::new(),
            false => lines.filter(|(_, line)| contains(line)).map(|(index, _)| index + 1).collect(),
        }
    }
}

impl Drop for WipedValue {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

fn wipe(value: &mut Value) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(wipe),
        Value::Object(members) => members.values_mut().for_each(wipe),
        Value::String(text) => text.zeroize(),
        Value::Bool(_) | Value::Null | Value::Number(_) => {}
    }
}

/// JSON with comments and trailing commas, as the harnesses read it; none of the other liberties of JSON5.
pub(crate) fn parse_options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// The syntax tree of a text; `None` if it has no value.
pub(crate) fn json_tree(body: &str) -> Result<Option<ast::Value<'_>>, DocumentError> {
    let parsed = parse_to_ast(body, &CollectOptions::default(), &parse_options());
    parsed.map(|parsed| parsed.value).map_err(|error| {
        let (line, column) = line_and_column(body, error.range().start);
        DocumentError::Syntax { line, column, what: lower_first(&error.kind().to_string()) }
    })
}

fn read_json(body: &str) -> Result<Value, DocumentError> {
    match json_tree(body)? {
        Some(tree) => value_of(body, tree),
        None => Ok(Value::Object(Map::new())),
    }
}

fn value_of(body: &str, tree: ast::Value<'_>) -> Result<Value, DocumentError> {
    Ok(match tree {
        ast::Value::Array(array) => {
            let elements = array.elements.into_iter().map(|element| value_of(body, element));
            Value::Array(elements.collect::<Result<_, _>>()?)
        }
        ast::Value::Object(object) => {
            let mut members = Map::new();
            for property in object.properties {
                let (name, start) = (property.name.as_str().to_owned(), property.range.start);
                let value = value_of(body, property.value)?;
                if let Some(mut earlier) = members.insert(name.clone(), value) {
                    wipe(&mut earlier);
                    wipe(&mut Value::Object(members));
                    let (line, column) = line_and_column(body, start);
                    return Err(DocumentError::Repeated { line, column, name });
                }
            }
            Value::Object(members)
        }
        other => other.into(),
    })
}

fn read_toml(body: &str) -> Result<Value, DocumentError> {
    let document = toml_edit::Document::parse(body).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let (line, column) = line_and_column(body, start);
        // Only the first line of the message: others quote the text.
        let what = error.message().lines().next().unwrap_or("it is not TOML").to_owned();
        DocumentError::Syntax { line, column, what }
    })?;
    Ok(table_value(document.as_table()))
}

/// A TOML table as JSON. Dates become texts, which no key of a server has.
pub(crate) fn table_value(table: &dyn toml_edit::TableLike) -> Value {
    let members = table.iter().map(|(key, item)| (key.to_owned(), item_value(item)));
    Value::Object(members.collect())
}

fn item_value(item: &toml_edit::Item) -> Value {
    match item {
        toml_edit::Item::None => Value::Null,
        toml_edit::Item::Value(value) => toml_value(value),
        toml_edit::Item::Table(table) => table_value(table),
        toml_edit::Item::ArrayOfTables(tables) => {
            Value::Array(tables.iter().map(|table| table_value(table)).collect())
        }
    }
}

fn toml_value(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::Array(array) => Value::Array(array.iter().map(toml_value).collect()),
        toml_edit::Value::Boolean(value) => Value::Bool(*value.value()),
        toml_edit::Value::Datetime(value) => Value::String(value.value().to_string()),
        toml_edit::Value::Float(value) => Value::from(*value.value()),
        toml_edit::Value::InlineTable(table) => table_value(table),
        toml_edit::Value::Integer(value) => Value::from(*value.value()),
        toml_edit::Value::String(value) => Value::String(value.value().clone()),
    }
}

/// Both counted from 1; the column in characters.
pub(crate) fn line_and_column(body: &str, position: usize) -> (usize, usize) {
    let mut end = position.min(body.len());
    while !body.is_char_boundary(end) {
        end -= 1;
    }
    let before = &body[..end];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(format: Format, text: &str) -> String {
        Document::read(format, text.as_bytes()).err().expect("it is refused").to_string()
    }

    #[test]
    fn a_syntax_error_names_line_and_column_and_quotes_nothing() {
        assert_eq!(error(Format::Json, "{\n  \"a\": 1\n  \"tokén\": 2}"), "line 2, column 9: expected comma");
        assert!(error(Format::Json, "{\"a\": 'ghp_secret'}").starts_with("line 1, column 7: "));
        assert!(error(Format::Toml, "a = 1\nb = ghp_secret\n").starts_with("line 2, column 5: "));
        for (format, text) in [(Format::Json, "{\"a\": ghp_secret}"), (Format::Toml, "a = ghp_secret")] {
            assert!(!error(format, text).contains("ghp_secret"), "{}", error(format, text));
        }
        assert_eq!(error(Format::Json, "[1]"), "it is not an object");
        let bytes = b"{\n\xff}";
        assert_eq!(Document::read(Format::Json, bytes).err(), Some(DocumentError::NotUtf8 { line: 2 }));
    }

    #[test]
    fn a_repeated_member_is_refused() {
        let text = "{\"a\": {\"token\": 1,\n \"token\": 2}}";
        assert_eq!(error(Format::Json, text), "line 2, column 2: the member `token` is repeated");
    }

    #[test]
    fn comments_trailing_commas_and_a_byte_order_mark_are_accepted() {
        let text = "\u{feff}// one\r\n{ \"a\": [1, 2,], /* two */ }\r\n";
        let document = Document::read(Format::Json, text.as_bytes()).unwrap();
        assert_eq!(document.value.0, serde_json::json!({"a": [1, 2]}));
        assert_eq!(document.with_body(&document.body).as_slice(), text.as_bytes());
        let empty = Document::read(Format::Json, b"  \n").unwrap();
        assert_eq!(empty.value.0, serde_json::json!({}));
    }
}
