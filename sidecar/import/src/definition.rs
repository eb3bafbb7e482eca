//! A server as a table `[servers.NAME]` of the configuration.
//!
//! What must stay true: a secret that was not refused is never written, only its template; braces in other texts are
//! doubled where the configuration reads templates.

use serde_json::Value;
use toml_edit::{Array, InlineTable, Item, Table, TableLike, value};

use crate::document::table_value;
use crate::found::{Composed, FoundKind, FoundServer, Part};

/// The keys that say what a server is. A person may have added others, such as `tools`.
const DEFINING_KEYS: &[&str] =
    &["argv-secrets", "command", "cwd", "env", "files", "headers", "private", "url"];

/// The names of secrets in the configuration that the templates of a server refer to.
pub(crate) struct SecretNames<'a> {
    /// Of the secret with the fields that were found in the server's settings.
    pub(crate) own: &'a str,
    /// Of the sources that the server refers to, in their order.
    pub(crate) sources: &'a [String],
}

/// The field of a secret that is one value.
const ONE_VALUE: &str = "value";

/// Whether braces have a meaning in a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Braces {
    Plain,
    Template,
}

pub(crate) fn server_table(server: &FoundServer, names: &SecretNames<'_>) -> Table {
    let mut table = Table::new();
    match &server.kind {
        FoundKind::Command { command, env, directory } => {
            let braces = match needs_argument_secrets(server) {
                true => Braces::Template,
                false => Braces::Plain,
            };
            let mut words = Array::new();
            for (index, word) in command.iter().enumerate() {
                let braces = if index == 0 { Braces::Plain } else { braces };
                words.push(text(server, word, names, braces));
            }
            table.insert("command", value(words));
            if braces == Braces::Template {
                table.insert("argv-secrets", value("allow"));
            }
            if let Some(directory) = directory.as_ref().and_then(|directory| directory.to_str()) {
                table.insert("cwd", value(directory));
            }
            insert_templates(&mut table, "env", server, env, names);
            if let Some(confine) = server.needs.value() {
                table.insert("confine", Item::Value(confine));
            }
        }
        FoundKind::Url { url, headers, is_private } => {
            table.insert("url", value(url));
            if *is_private {
                table.insert("private", value(true));
            }
            insert_templates(&mut table, "headers", server, headers, names);
        }
    }
    table
}

/// Whether the arguments of a server have a secret in them, or a value that comes from elsewhere.
pub(crate) fn needs_argument_secrets(server: &FoundServer) -> bool {
    let FoundKind::Command { command, .. } = &server.kind else { return false };
    let is_filled = |part: &Part| match part {
        Part::Literal(_) => false,
        Part::Secret(index) => !server.secrets[*index].is_refused,
        Part::Source(_) => true,
    };
    command.iter().any(|word| word.0.iter().any(is_filled))
}

fn insert_templates(
    table: &mut Table,
    key: &str,
    server: &FoundServer,
    entries: &std::collections::BTreeMap<String, Composed>,
    names: &SecretNames<'_>,
) {
    if entries.is_empty() {
        return;
    }
    let mut templates = InlineTable::new();
    for (name, composed) in entries {
        templates.insert(name, text(server, composed, names, Braces::Template).into());
    }
    table.insert(key, value(templates));
}

fn text(server: &FoundServer, composed: &Composed, names: &SecretNames<'_>, braces: Braces) -> String {
    let literal = |text: &str| match braces {
        Braces::Plain => text.to_owned(),
        Braces::Template => text.replace('{', "{{").replace('}', "}}"),
    };
    let part = |part: &Part| match part {
        Part::Literal(text) => literal(text),
        Part::Secret(index) => match &server.secrets[*index] {
            secret if secret.is_refused => literal(&secret.value),
            secret => format!("{{{}.{}}}", names.own, secret.field),
        },
        Part::Source(index) => format!("{{{}.{ONE_VALUE}}}", names.sources[*index]),
    };
    composed.0.iter().map(part).collect()
}

/// Whether two tables define the same server, whatever else a person has added to one of them.
pub(crate) fn is_same_definition(one: &dyn TableLike, other: &dyn TableLike) -> bool {
    let (one, other) = (table_value(one), table_value(other));
    DEFINING_KEYS.iter().all(|key| one.get(key) == other.get(key))
}

/// A table `[secrets.NAME]` with one key.
pub(crate) fn secret_table(key: &str, source: &str) -> Table {
    let mut table = Table::new();
    table.insert(key, value(source));
    table
}

/// A source that is not a secret by its name is not scrubbed.
pub(crate) fn mark_public(table: &mut Table) {
    table.insert("public", value(Array::from_iter([ONE_VALUE])));
}

/// Whether a table of the configuration has exactly this source.
pub(crate) fn has_source(item: &Item, key: &str, source: &str) -> bool {
    let found = item.as_table_like().map(table_value).unwrap_or_default();
    found.get(key) == Some(&Value::from(source))
}
