//! packaging/guide/configuration.md is generated from the configuration's JSON Schema.

use std::fmt::Write;

use serde_json::Value;

use super::root;

const SCHEMA: &str = include_str!("../../../sidecar/cofferdam.schema.json");

/// Sections of the page: heading, definition in the schema, and its description if the schema has none.
const SECTIONS: [(&str, &str, &str); 14] = [
    ("`[relay]`", "Relay", ""),
    ("`[admin]`", "Admin", ""),
    ("`[vault]`", "Vault", ""),
    ("`auth` of `[vault]`", "VaultAuth", ""),
    ("`[secrets.NAME]`", "Secret", ""),
    ("`[servers.NAME]`", "Server", ""),
    ("`tools` of a server", "Tools", ""),
    ("`methods-to-harness` of a server", "MethodsToHarness", ""),
    ("`[servers.NAME.confine]`", "Profile", ""),
    ("`[[servers.NAME.scopes]]`", "Scope", ""),
    ("`[grants.NAME]`", "Grant", ""),
    ("`[platforms.NAME]`", "Platform", ""),
    ("`[attach.NAME]`", "Attachment", ""),
    ("`[limits]`", "Limits", "Every bound of the sidecar, with its reason."),
];

#[test]
fn the_configuration_page_is_generated_from_the_current_schema() {
    let path = root().join("packaging/guide/configuration.md");
    let page = page(&serde_json::from_str(SCHEMA).expect("the schema is JSON"));
    if std::env::var_os("UPDATE_GUIDE").is_some() {
        std::fs::write(&path, &page).expect("the guide is writable");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "packaging/guide/configuration.md is stale: run `UPDATE_GUIDE=1 tests/run -p cofferdam-tests --test documents`"
    );
}

#[test]
fn the_configuration_page_leaves_out_no_table_of_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    for (name, definition) in schema["$defs"].as_object().expect("the schema has definitions") {
        let is_table = definition.get("properties").is_some();
        assert!(!is_table || SECTIONS.iter().any(|(_, section, _)| section == name), "{name} has no section");
    }
}

fn page(schema: &Value) -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         <!-- Generated from sidecar/cofferdam.schema.json by tests/tests/documents/configuration.rs. -->\n\n\
         Unknown keys are errors, and `cofferdam check` reports every problem at once. `packaging/examples/` has\n\
         complete files; `cofferdam check --schema` prints the JSON Schema for editors.\n\n\
         Durations are written `500ms`, `20s`, `2h30m`; sizes `64KiB`, `10MiB` or a number of bytes.\n\n\
         ## At the top of the file\n\n",
    );
    let is_table = |value: &Value| value["type"] == "object" || refers_to_a_table(schema, value);
    table(&mut page, schema, &schema["properties"], |value| !is_table(value));
    for (heading, name, note) in SECTIONS {
        let definition = &schema["$defs"][name];
        let description = definition["description"].as_str().unwrap_or(note);
        write!(page, "\n## {heading}\n\n{}\n\n", one_line(description)).expect("a String can be written to");
        table(&mut page, schema, &definition["properties"], |_| true);
    }
    page
}

fn table(page: &mut String, schema: &Value, properties: &Value, shown: impl Fn(&Value) -> bool) {
    page.push_str("| key | default | meaning |\n|---|---|---|\n");
    for (key, value) in properties.as_object().into_iter().flatten().filter(|(_, value)| shown(value)) {
        let default = value.get("default").map(|default| match default {
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        });
        let description = value["description"].as_str().map(one_line).unwrap_or_default();
        let choices = choices(schema, value);
        let separator = if description.is_empty() || choices.is_empty() { "" } else { " " };
        let default = default.unwrap_or_default();
        writeln!(page, "| `{key}` | {default} | {description}{separator}{choices} |")
            .expect("a String can be written to");
    }
}

/// The values of a key that accepts one of a few words, with their descriptions.
fn choices(schema: &Value, value: &Value) -> String {
    let definition = referenced(schema, value);
    if let Some(words) = definition["enum"].as_array() {
        let words: Vec<String> =
            words.iter().filter_map(|word| Some(format!("`{}`", word.as_str()?))).collect();
        return format!("One of {}.", words.join(", "));
    }
    let described = definition["oneOf"].as_array().into_iter().flatten().filter_map(|choice| {
        let description = one_line(choice["description"].as_str()?);
        Some(format!("`{}`: {description}", choice["const"].as_str()?))
    });
    described.collect::<Vec<_>>().join(" ")
}

fn refers_to_a_table(schema: &Value, value: &Value) -> bool {
    referenced(schema, value)["type"] == "object"
}

fn referenced<'a>(schema: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        Some(name) => &schema["$defs"][name],
        None => value,
    }
}

/// A description on one line; a vertical bar would end its cell.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
