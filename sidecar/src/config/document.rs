//! Reads TOML text into raw types and reports every bad entry, not only the first.
//!
//! The text is parsed into a tree with positions. An entry that does not fit the raw types is reported and removed from the
//! tree, and the rest is deserialized again, until all of it fits.

use serde::Deserialize;
use toml::de::{DeTable, DeValue, Deserializer};

use super::problem::Report;
use super::raw::RawConfig;
use super::spanned::Span;
use super::suggest::nearest;

/// Each problem costs another deserialization, so the number of problems is bounded.
const MAX_PROBLEMS: usize = 100;

/// The entries that could be read, and the paths of those that were removed.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) raw: RawConfig,
    pub(super) removed: RemovedEntries,
}

/// Paths of entries that were reported and removed. A required key that is missing beside a removed entry is not reported:
/// the removed entry may be that key with a typing mistake.
#[derive(Debug, Default)]
pub(super) struct RemovedEntries(Vec<Vec<String>>);

impl RemovedEntries {
    /// Whether an entry of this table, or of a table around it, was removed.
    pub(super) fn affects(&self, table: &[&str]) -> bool {
        self.0.iter().any(|path| {
            let depth = path.len().min(table.len());
            path.len() <= table.len() + 1 && path[..depth] == table[..depth]
        })
    }
}

/// Reads all valid entries. `None` if the text is not TOML or has too many problems.
pub(super) fn read(text: &str, report: &mut Report<'_>) -> Option<Document> {
    let (mut tree, errors) = DeTable::parse_recoverable(text);
    if report_syntax(text, &errors, report) == Syntax::Invalid {
        return None;
    }
    let mut removed = RemovedEntries::default();
    loop {
        let error = match RawConfig::deserialize(Deserializer::from(tree.clone())) {
            Ok(raw) => return Some(Document { raw, removed }),
            Err(error) => error,
        };
        let span = error.span().unwrap_or_default();
        let Some(misfit) = find_misfit(tree.get_ref(), &span) else {
            // This is not expected: every error has a position. The message may quote a value, so it is not shown.
            report.add(&span, "an entry does not match the schema", "compare with cofferdam.schema.json");
            return None;
        };
        report_misfit(error.message(), &span, &misfit, report);
        if report.len() >= MAX_PROBLEMS {
            report.add_for_file("there are more problems than are shown here", "correct these first");
            return None;
        }
        remove_entry(tree.get_mut(), &misfit.path, &span);
        removed.0.push(misfit.path);
    }
}

#[derive(Eq, PartialEq)]
enum Syntax {
    Invalid,
    /// A tree that can be checked, even if some keys are set twice.
    Parsed,
}

fn report_syntax(text: &str, errors: &[toml::de::Error], report: &mut Report<'_>) -> Syntax {
    let (duplicates, others): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| error.message() == "duplicate key");
    let mut duplicate_tables = Vec::new();
    for error in duplicates {
        report_duplicate(text, &error.span().unwrap_or_default(), &mut duplicate_tables, report);
    }
    // Only the first error is shown: the later ones usually follow from it.
    let first = others.iter().min_by_key(|error| error.span().unwrap_or_default().start);
    if let Some(error) = first {
        let message = format!("this is not TOML: {}", error.message());
        let hint = "correct this first: the rest cannot be read without it";
        report.add(&error.span().unwrap_or_default(), message, hint);
        return Syntax::Invalid;
    }
    Syntax::Parsed
}

/// Reports a key or a table that is defined twice. `duplicate_tables` are the lines where a table is defined a second time;
/// duplicate keys in such a table are not reported again.
fn report_duplicate(text: &str, span: &Span, duplicate_tables: &mut Vec<usize>, report: &mut Report<'_>) {
    let header = |line: &str| line.trim().split_inclusive(']').next().unwrap_or_default().to_owned();
    let number = report.position(span).line;
    let lines: Vec<&str> = text.lines().take(number).collect();
    let table_line = lines.iter().rposition(|line| line.trim_start().starts_with('['));
    if table_line.is_some_and(|table_line| duplicate_tables.contains(&table_line)) {
        return;
    }
    let Some(table_line) = table_line.filter(|table_line| table_line + 1 == number) else {
        let key = text.get(span.clone()).unwrap_or_default();
        report.add(span, format!("`{key}` is set twice in one table"), "keep one of the two");
        return;
    };
    let written = header(lines[table_line]);
    let first = lines[..table_line].iter().position(|earlier| header(earlier) == written);
    let first_line = first.map(|index| format!(", first on line {}", index + 1)).unwrap_or_default();
    report.add(
        span,
        format!("`{written}` is defined twice{first_line}"),
        "give one of the two another name, or make one table of them",
    );
    duplicate_tables.push(table_line);
}

/// An entry of the tree that does not fit its raw type.
struct Misfit {
    path: Vec<String>,
    value_type: &'static str,
    role: Role,
}

#[derive(Clone, Copy)]
enum Role {
    ArrayElement,
    Entry,
}

/// Finds the entry whose key, value or array element has exactly this span. Tables in an array have no names, so the path
/// of their entries does not tell them apart.
fn find_misfit(table: &DeTable<'_>, span: &Span) -> Option<Misfit> {
    table.iter().find_map(|(key, value)| {
        let name = || key.get_ref().clone().into_owned();
        if key.span() == *span {
            return Some(Misfit {
                path: vec![name()],
                value_type: type_name(value.get_ref()),
                role: Role::Entry,
            });
        }
        let inside = match value.get_ref() {
            DeValue::Table(inner) => find_misfit(inner, span),
            DeValue::Array(elements) => {
                elements.iter().find_map(|element| find_misfit(element.get_ref().as_table()?, span))
            }
            _ => None,
        };
        if let Some(mut misfit) = inside {
            misfit.path.insert(0, name());
            return Some(misfit);
        }
        type_at(value, span, Role::Entry).map(|(value_type, role)| Misfit {
            path: vec![name()],
            value_type,
            role,
        })
    })
}

fn type_at(value: &toml::Spanned<DeValue<'_>>, span: &Span, role: Role) -> Option<(&'static str, Role)> {
    if value.span() == *span {
        return Some((type_name(value.get_ref()), role));
    }
    value.get_ref().as_array()?.iter().find_map(|element| type_at(element, span, Role::ArrayElement))
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Array(_) => "an array",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Integer(_) => "a number",
        DeValue::String(_) => "a string",
        DeValue::Table(_) => "a table",
    }
}

fn remove_entry(table: &mut DeTable<'_>, path: &[String], span: &Span) {
    match path {
        [] => {}
        [key] => drop(table.remove(key.as_str())),
        [key, rest @ ..] => match table.get_mut(key.as_str()).map(toml::Spanned::get_mut) {
            Some(DeValue::Table(inner)) => remove_entry(inner, rest, span),
            Some(DeValue::Array(elements)) => {
                for element in elements.iter_mut() {
                    if let DeValue::Table(inner) = element.get_mut()
                        && find_misfit(inner, span).is_some()
                    {
                        remove_entry(inner, rest, span);
                    }
                }
            }
            _ => {}
        },
    }
}

/// Translates serde's error message into the terms of the file, without the value that serde quotes.
fn report_misfit(message: &str, span: &Span, misfit: &Misfit, report: &mut Report<'_>) {
    let key = dotted(&misfit.path);
    let expected = message.split_once(", expected ").map(|(_, expected)| expected).unwrap_or_default();
    if message.starts_with("unknown field ") {
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        report.add(span, format!("unknown key `{key}`"), hint_for_unknown(&misfit.path, &known));
    } else if message.starts_with("unknown variant ") {
        report.add(span, format!("`{key}` has a value that is not known"), format!("use {expected}"));
    } else if message.starts_with("invalid type") || message.starts_with("invalid value") {
        let expected = match expected {
            "a map" => "a table",
            "a sequence" => "an array",
            "a boolean" => "`true` or `false`",
            "i64" => "a whole number",
            other => other.strip_prefix("struct ").map_or(other, |_| "a table"),
        };
        let verb = match misfit.role {
            Role::ArrayElement => "hold",
            Role::Entry => "be",
        };
        report.add(span, format!("`{key}` cannot {verb} {}", misfit.value_type), format!("write {expected}"));
    } else {
        // Errors of the types in `quantities`: "expected …", without a value.
        let expected = message.strip_prefix("expected ").unwrap_or(message);
        report.add(span, format!("`{key}` cannot be read"), format!("write {expected}"));
    }
}

fn hint_for_unknown(path: &[String], known: &[&str]) -> String {
    let key = path.last().map(String::as_str).unwrap_or_default();
    let known_keys = || {
        match path {
        [table, _, _] if table == "secrets" => {
            "a secret names its source, `file`, `env`, `exec`, `kv` or `vault`; its value is never written here"
                .to_owned()
        }
        _ => format!("the keys here are {}", join_names(known)),
    }
    };
    nearest(key, known.iter().copied()).map_or_else(known_keys, |near| format!("did you mean `{near}`?"))
}

fn join_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A key's path such as `servers.github.env.TOKEN`, with quotes where TOML requires them.
pub(super) fn dotted<S: AsRef<str>>(path: &[S]) -> String {
    let part = |key: &S| {
        let key = key.as_ref();
        let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match !key.is_empty() && key.bytes().all(is_bare) {
            true => key.to_owned(),
            false => format!("{key:?}"),
        }
    };
    path.iter().map(part).collect::<Vec<_>>().join(".")
}
