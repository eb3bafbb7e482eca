//! From text to raw: one bad entry must not hide the next.
//!
//! The text is parsed into a tree that remembers places. Whatever in it does not fit the raw types is reported,
//! taken out, and the rest is read again, until all of the rest fits.

use serde::Deserialize;
use toml::de::{DeTable, DeValue, Deserializer};

use super::at::Span;
use super::problem::Report;
use super::raw::RawConfig;
use super::suggest::nearest;

/// Each problem found costs another reading; a file with this many is better fixed in steps.
const MAX_READINGS: usize = 100;

/// What could be read, and where entries were taken out of it.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) raw: RawConfig,
    pub(super) damage: Damage,
}

/// Entries that were reported and taken out. What they would have said is not known, so nothing that seems to be
/// missing beside them is worth a second complaint.
#[derive(Debug, Default)]
pub(super) struct Damage(Vec<Vec<String>>);

impl Damage {
    /// Whether an entry of this table, or a table around it, was taken out.
    pub(super) fn touches(&self, table: &[&str]) -> bool {
        self.0.iter().any(|path| {
            let depth = path.len().min(table.len());
            path.len() <= table.len() + 1 && path[..depth] == table[..depth]
        })
    }
}

/// Reads all that can be read; `None` where the text is not TOML.
pub(super) fn read(text: &str, report: &mut Report<'_>) -> Option<Document> {
    let (mut tree, errors) = DeTable::parse_recoverable(text);
    if report_syntax(text, &errors, report) == Syntax::Broken {
        return None;
    }
    let mut damage = Damage::default();
    loop {
        let error = match RawConfig::deserialize(Deserializer::from(tree.clone())) {
            Ok(raw) => return Some(Document { raw, damage }),
            Err(error) => error,
        };
        let span = error.span().unwrap_or_default();
        let Some(found) = find(tree.get_ref(), &span) else {
            // Every misfit stands somewhere; should one ever not, its words may quote a value and are kept back.
            report.add(&span, "something does not fit the schema", "compare with cofferdam.schema.json");
            return None;
        };
        report_misfit(error.message(), &span, &found, report);
        if report.len() >= MAX_READINGS {
            report.add_anywhere("there are more problems than are shown here", "correct these first");
            return None;
        }
        take_out(tree.get_mut(), &found.path, &span);
        damage.0.push(found.path);
    }
}

#[derive(Eq, PartialEq)]
enum Syntax {
    Broken,
    /// Perhaps with keys that are set twice, which leave a tree that can be checked.
    Sound,
}

fn report_syntax(text: &str, errors: &[toml::de::Error], report: &mut Report<'_>) -> Syntax {
    let (doubled, broken): (Vec<_>, Vec<_>) =
        errors.iter().partition(|error| error.message() == "duplicate key");
    let mut doubled_headers = Vec::new();
    for error in doubled {
        report_duplicate(text, &error.span().unwrap_or_default(), &mut doubled_headers, report);
    }
    // The parser goes on, but whatever it stumbles over behind the first place follows from that one.
    let first = broken.iter().min_by_key(|error| error.span().unwrap_or_default().start);
    if let Some(error) = first {
        let message = format!("this is not TOML: {}", error.message());
        let hint = "correct this first: the rest cannot be read without it";
        report.add(&error.span().unwrap_or_default(), message, hint);
        return Syntax::Broken;
    }
    Syntax::Sound
}

/// `doubled_headers` are the lines of tables that are defined a second time: their keys are doubled too, then,
/// which is not worth saying.
fn report_duplicate(text: &str, span: &Span, doubled_headers: &mut Vec<usize>, report: &mut Report<'_>) {
    let header = |line: &str| line.trim().split_inclusive(']').next().unwrap_or_default().to_owned();
    let number = report.place(span).line;
    let lines: Vec<&str> = text.lines().take(number).collect();
    let own = lines.iter().rposition(|line| line.trim_start().starts_with('['));
    if own.is_some_and(|own| doubled_headers.contains(&own)) {
        return;
    }
    let Some(own) = own.filter(|own| own + 1 == number) else {
        let key = text.get(span.clone()).unwrap_or_default();
        report.add(span, format!("`{key}` is set twice in one table"), "keep one of the two");
        return;
    };
    let written = header(lines[own]);
    let first = lines[..own].iter().position(|earlier| header(earlier) == written);
    let place = first.map(|index| format!(", first on line {}", index + 1)).unwrap_or_default();
    report.add(
        span,
        format!("`{written}` is defined twice{place}"),
        "give one of the two another name, or make one table of them",
    );
    doubled_headers.push(own);
}

/// An entry of the tree, with what stands at the place that was looked for.
struct Found {
    path: Vec<String>,
    kind: &'static str,
    role: Role,
}

#[derive(Clone, Copy)]
enum Role {
    Element,
    Entry,
}

/// The entry whose key or value (or an element of whose array) stands exactly there. Tables in an array have no names:
/// their entries are found as if they stood in one.
fn find(table: &DeTable<'_>, span: &Span) -> Option<Found> {
    table.iter().find_map(|(key, value)| {
        let name = || key.get_ref().clone().into_owned();
        if key.span() == *span {
            return Some(Found { path: vec![name()], kind: kind(value.get_ref()), role: Role::Entry });
        }
        let inside = match value.get_ref() {
            DeValue::Table(inner) => find(inner, span),
            DeValue::Array(elements) => {
                elements.iter().find_map(|element| find(element.get_ref().as_table()?, span))
            }
            _ => None,
        };
        if let Some(mut found) = inside {
            found.path.insert(0, name());
            return Some(found);
        }
        kind_at(value, span, Role::Entry).map(|(kind, role)| Found { path: vec![name()], kind, role })
    })
}

fn kind_at(value: &toml::Spanned<DeValue<'_>>, span: &Span, role: Role) -> Option<(&'static str, Role)> {
    if value.span() == *span {
        return Some((kind(value.get_ref()), role));
    }
    value.get_ref().as_array()?.iter().find_map(|element| kind_at(element, span, Role::Element))
}

fn kind(value: &DeValue<'_>) -> &'static str {
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

fn take_out(table: &mut DeTable<'_>, path: &[String], span: &Span) {
    match path {
        [] => {}
        [key] => drop(table.remove(key.as_str())),
        [key, rest @ ..] => match table.get_mut(key.as_str()).map(toml::Spanned::get_mut) {
            Some(DeValue::Table(inner)) => take_out(inner, rest, span),
            Some(DeValue::Array(elements)) => {
                for element in elements.iter_mut() {
                    if let DeValue::Table(inner) = element.get_mut()
                        && find(inner, span).is_some()
                    {
                        take_out(inner, rest, span);
                    }
                }
            }
            _ => {}
        },
    }
}

/// Serde's sentences in the words of the file, without the value that it quotes.
fn report_misfit(message: &str, span: &Span, found: &Found, report: &mut Report<'_>) {
    let key = dotted(&found.path);
    let expected = message.split_once(", expected ").map(|(_, expected)| expected).unwrap_or_default();
    if message.starts_with("unknown field ") {
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        report.add(span, format!("unknown key `{key}`"), hint_for_unknown(&found.path, &known));
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
        let verb = match found.role {
            Role::Element => "hold",
            Role::Entry => "be",
        };
        report.add(span, format!("`{key}` cannot {verb} {}", found.kind), format!("write {expected}"));
    } else {
        // Our own types: they say what they expected and quote nothing.
        let expected = message.strip_prefix("expected ").unwrap_or(message);
        report.add(span, format!("`{key}` cannot be read"), format!("write {expected}"));
    }
}

fn hint_for_unknown(path: &[String], known: &[&str]) -> String {
    let key = path.last().map(String::as_str).unwrap_or_default();
    let inline_value = || {
        match path {
        [table, _, _] if table == "secrets" => {
            "a secret names its source, `file`, `env`, `exec`, `kv` or `vault`; its value is never written here"
                .to_owned()
        }
        _ => format!("the keys here are {}", list(known)),
    }
    };
    nearest(key, known.iter().copied()).map_or_else(inline_value, |near| format!("did you mean `{near}`?"))
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// `servers.github.env.TOKEN`, with quotes where TOML wants them.
pub(super) fn dotted<S: AsRef<str>>(path: &[S]) -> String {
    let part = |key: &S| {
        let key = key.as_ref();
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match !key.is_empty() && key.bytes().all(bare) {
            true => key.to_owned(),
            false => format!("{key:?}"),
        }
    };
    path.iter().map(part).collect::<Vec<_>>().join(".")
}
