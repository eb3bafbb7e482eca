//! Adds entries to a settings file in JSON.
//!
//! What must stay true: every byte outside of Cofferdam's entries is unchanged: unknown members, their order, white space. A
//! file that is not plain JSON, for instance because it has comments, is not changed.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{AddedEntries, MergeRefusal, starts_shim};

/// The members of a JSON object in their order, with the text of each value.
struct Members<'a>(Vec<(String, &'a RawValue)>);

/// A replacement of some bytes of the text.
struct Edit {
    start: usize,
    end: usize,
    replacement: String,
}

/// Adds the entries to the object in the member `key`. An existing entry of the same name is replaced if it starts the shim,
/// and is unchanged if it starts another program.
pub(super) fn add_entries(
    text: &str,
    key: &str,
    entries: &Map<String, Value>,
) -> Result<AddedEntries, MergeRefusal> {
    let settings = Members::read(text).ok_or(MergeRefusal::NotPlainJson)?;
    let not_object = || MergeRefusal::ServersForm(key.to_owned());
    let (mut edits, mut names_in_use, mut added) = (Vec::new(), Vec::new(), Map::new());
    match settings.find(key) {
        None => {
            added.clone_from(entries);
            let member = format!("{}: {}", Value::from(key), Value::Object(entries.clone()));
            edits.push(insertion(text, 0, &settings, &member, "\n  "));
        }
        Some(servers) => {
            let start = offset(text, servers.get());
            let present = Members::read(servers.get()).ok_or_else(not_object)?;
            let mut missing = Vec::new();
            for (name, entry) in entries {
                let Some(found) = present.find(name) else {
                    added.insert(name.clone(), entry.clone());
                    missing.push(format!("{}: {entry}", Value::from(name.as_str())));
                    continue;
                };
                let value: Value = serde_json::from_str(found.get()).map_err(|_| not_object())?;
                if value == *entry {
                    continue;
                }
                if !starts_shim(&value) {
                    names_in_use.push(name.clone());
                    continue;
                }
                added.insert(name.clone(), entry.clone());
                let start = offset(text, found.get());
                edits.push(Edit { start, end: start + found.get().len(), replacement: entry.to_string() });
            }
            if !missing.is_empty() {
                let separator = if text.contains('\n') { ",\n    " } else { "," };
                edits.push(insertion(text, start, &present, &missing.join(separator), "\n    "));
            }
        }
    }
    edits.sort_by_key(|edit| std::cmp::Reverse(edit.start));
    let mut result = text.to_owned();
    for Edit { start, end, replacement } in edits {
        result.replace_range(start..end, &replacement);
    }
    // Checks that the edits changed nothing else, whatever the text looked like.
    match serde_json::from_str::<Value>(&result).ok() == expected(text, key, added) {
        true => Ok(AddedEntries { text: result, names_in_use }),
        false => Err(MergeRefusal::NotPlainJson),
    }
}

/// The parsed settings that the edited text must have.
fn expected(text: &str, key: &str, added: Map<String, Value>) -> Option<Value> {
    let mut settings: Map<String, Value> = serde_json::from_str(text).ok()?;
    let servers = settings.entry(key).or_insert_with(|| Map::new().into());
    servers.as_object_mut()?.extend(added);
    Some(settings.into())
}

/// The edit that adds a member after the last one of the object that begins at `start`.
fn insertion(text: &str, start: usize, members: &Members<'_>, member: &str, indent: &str) -> Edit {
    let indent = if text.contains('\n') { indent } else { "" };
    let (position, replacement) = match members.0.last() {
        Some((_, last)) => (offset(text, last.get()) + last.get().len(), format!(",{indent}{member}")),
        None => {
            let brace = text[start..].find('{').unwrap_or_default();
            (start + brace + 1, format!("{indent}{member}"))
        }
    };
    Edit { start: position, end: position, replacement }
}

/// The position of `part`, a slice of `text`, in it.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr().addr() - text.as_ptr().addr()
}

impl<'a> Members<'a> {
    fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn find(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(member, _)| member == name).map(|(_, value)| *value)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                // The file is the sandbox's: the time to read it must not grow with the square of its size.
                let mut names = HashSet::new();
                let mut members: Vec<(String, &RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom("a member is repeated"));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn add(text: &str) -> Result<AddedEntries, MergeRefusal> {
        let Value::Object(entries) = json!({
            "github": {"command": "/b/cofferdam-shim", "args": ["--server", "github"]},
            "wiki": {"command": "/b/cofferdam-shim", "args": ["--server", "wiki"]},
        }) else {
            unreachable!("it is an object")
        };
        add_entries(text, "mcpServers", &entries)
    }

    #[test]
    fn all_other_bytes_are_unchanged() {
        let existing = "{\n  \"z\": 1e2,\n  \"mcpServers\": {\n    \"db\": {\"command\":  \"x\"}\n  },\n\t\"a\": \"ä\\u00e4\"\n}\n";
        let added = add(existing).unwrap();
        assert!(added.names_in_use.is_empty());
        assert!(added.text.starts_with(
            "{\n  \"z\": 1e2,\n  \"mcpServers\": {\n    \"db\": {\"command\":  \"x\"},\n    \"github\": {"
        ));
        assert!(added.text.ends_with("}\n  },\n\t\"a\": \"ä\\u00e4\"\n}\n"), "{}", added.text);
        assert_eq!(add(&added.text).unwrap().text, added.text, "what is there is not added again");
    }

    #[test]
    fn entries_are_added_to_empty_objects() {
        for existing in ["{}", "{ }\n", "{\"mcpServers\":{}}", " {\"a\":1, \"mcpServers\": {\n}}"] {
            let text = add(existing).unwrap().text;
            let settings: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(settings["mcpServers"]["wiki"]["args"], json!(["--server", "wiki"]), "{text}");
        }
        assert_eq!(add(" {\"a\": 1}").unwrap().text.split_once(",\"mcpServers\"").unwrap().0, " {\"a\": 1");
    }

    #[test]
    fn an_entry_that_starts_another_program_is_unchanged_and_an_old_entry_of_the_shim_is_replaced() {
        let existing = r#"{"mcpServers": {"github": {"command": "gh-server"}, "wiki": {"command": "/old/cofferdam-shim"}, "x": 1}}"#;
        let added = add(existing).unwrap();
        assert_eq!(added.names_in_use, ["github"]);
        let start = r#"{"mcpServers": {"github": {"command": "gh-server"}, "wiki": {"#;
        assert!(added.text.starts_with(start) && added.text.ends_with(r#", "x": 1}}"#), "{}", added.text);
        assert!(added.text.contains("/b/cofferdam-shim") && !added.text.contains("/old/"), "{}", added.text);
    }

    #[test]
    fn text_that_is_not_plain_json_is_refused() {
        for existing in ["", "[]", "// a comment\n{}", "{\"a\": 1,}", "{\"a\": 1, \"a\": 2}", "{} {}"] {
            assert_eq!(add(existing), Err(MergeRefusal::NotPlainJson), "{existing}");
        }
        for existing in ["{\"mcpServers\": []}", "{\"mcpServers\": {\"a\": 1, \"a\": 1}}"] {
            assert_eq!(add(existing), Err(MergeRefusal::ServersForm("mcpServers".into())), "{existing}");
        }
    }
}
