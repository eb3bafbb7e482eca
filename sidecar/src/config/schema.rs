//! The JSON Schema of the configuration, for editors. A test compares it with `sidecar/cofferdam.schema.json`;
//! `UPDATE_SCHEMA=1 cargo test -p cofferdam --lib config::schema` updates that file.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::Value;

use super::raw::RawConfig;

/// The schema as text, ending in a newline.
pub fn schema() -> String {
    let settings = SchemaSettings::draft2020_12().with_transform(WithoutNull);
    let mut schema = settings.into_generator().into_root_schema_for::<RawConfig>();
    schema.insert("title".to_owned(), "cofferdam.toml".into());
    let text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    format!("{text}\n")
}

/// Removes `null` from the types of optional keys: TOML has no null.
#[derive(Clone)]
struct WithoutNull;

impl Transform for WithoutNull {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if let Some(Value::Array(types)) = schema.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                schema.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
            choices.retain(|choice| choice["type"] != "null");
            if let [Value::Object(only)] = choices.as_slice() {
                let only = only.clone();
                schema.remove("anyOf");
                for (key, value) in only {
                    schema.insert(key, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_file_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/cofferdam.schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, schema()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == schema(),
            "cofferdam.schema.json is out of date: run `UPDATE_SCHEMA=1 cargo test -p cofferdam --lib config::schema`"
        );
    }

    #[test]
    fn every_limit_has_a_description_and_a_default() {
        let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
        let limits = schema["$defs"]["Limits"]["properties"].as_object().unwrap();
        assert!(limits.contains_key("message-bytes"));
        assert!(!schema.to_string().contains("\"null\""), "TOML has no null");
        for (key, limit) in limits {
            assert!(limit["description"].is_string(), "{key}");
            assert!(!limit["default"].is_null(), "{key}");
        }
    }
}
