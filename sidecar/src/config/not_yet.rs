//! Keys that are read and checked, and that nothing behind the configuration obeys yet. They are refused beside every
//! other problem, and in the schema no value fits them.
//!
//! When tools have credentials of their own this module goes, with its calls in `check` and `schema`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use super::at::{Later, Span};
use super::document::dotted;
use super::problem::Report;
use super::raw::RawConfig;

/// The same keys in the schema.
const IN_THE_SCHEMA: [(&str, &[&str]); 1] = [("/$defs/Server/properties", &["scopes"])];

/// Where such keys are written. They are collected before the checks take the document apart.
pub(super) fn keys(raw: &RawConfig) -> Vec<(String, Span)> {
    let mut keys = Vec::new();
    let mut add = |path: &[&str], span: Option<&Span>| {
        keys.extend(span.map(|span| (dotted(path), span.clone())));
    };
    for (name, server) in &raw.servers {
        let mut add = |key, span| add(&["servers", &name.value, key], span);
        add("scopes", server.scopes.as_ref().map(|at| &at.span));
    }
    keys
}

pub(super) fn refuse(keys: Vec<(String, Span)>, report: &mut Report<'_>) {
    for (key, span) in keys {
        report.add(&span, format!("`{key}` is not supported by this version"), "leave it out");
    }
}

/// An editor marks them, as `cofferdam check` does, and offers nothing that would go into them.
pub(super) fn hide(schema: &mut Schema) {
    for (pointer, keys) in IN_THE_SCHEMA {
        let properties = schema.pointer_mut(pointer).and_then(Value::as_object_mut);
        let properties = properties.expect("the types in `raw` have these names");
        for key in keys {
            let later = Later::json_schema(&mut SchemaGenerator::default());
            properties.insert((*key).to_owned(), later.into());
        }
    }
    let definitions = |schema: &Schema| schema.get("$defs").and_then(Value::as_object).map(|all| all.len());
    loop {
        let before = definitions(schema);
        let text = serde_json::to_string(schema).expect("a schema is plain JSON");
        if let Some(all) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
            all.retain(|name, _| text.contains(&format!("\"#/$defs/{name}\"")));
        }
        if definitions(schema) == before {
            return;
        }
    }
}
