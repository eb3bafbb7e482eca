//! Adds entries to a settings file in JSON.
//!
//! What must stay true: every byte that is not an entry of ours stays as it is: unknown members, their order, spaces. A file
//! that is not plain JSON, for instance because it has comments, is not changed.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{AddedEntries, MergeRefusal, starts_shim};

/// The members of an object in their order, each value as it is written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

/// A replacement of some bytes of the text.
struct Edit {
    start: usize,
    end: usize,
    with: String,
}

/// Adds the entries to the object in the member `key`. An entry that starts the shim is replaced if it differs; one of the
/// same name that starts another program stays.
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
                edits.push(Edit { start, end: start + found.get().len(), with: entry.to_string() });
            }
            if !missing.is_empty() {
                let separator = if text.contains('\n') { ",\n    " } else { "," };
                edits.push(insertion(text, start, &present, &missing.join(separator), "\n    "));
            }
        }
    }
    edits.sort_by_key(|edit| std::cmp::Reverse(edit.start));
    let mut result = text.to_owned();
    for Edit { start, end, with } in edits {
        result.replace_range(start..end, &with);
    }
    // Whatever the text looked like: nothing else has changed.
    match serde_json::from_str::<Value>(&result).ok() == expected(text, key, added) {
        true => Ok(AddedEntries { text: result, names_in_use }),
        false => Err(MergeRefusal::NotPlainJson),
    }
}

/// The settings as they should be afterwards.
fn expected(text: &str, key: &str, added: Map<String, Value>) -> Option<Value> {
    let mut settings: Map<String, Value> = serde_json::from_str(text).ok()?;
    let servers = settings.entry(key).or_insert_with(|| Map::new().into());
    servers.as_object_mut()?.extend(added);
    Some(settings.into())
}

/// Adds a member behind the last one of the object that begins at `start`.
fn insertion(text: &str, start: usize, members: &Members<'_>, member: &str, line: &str) -> Edit {
    let line = if text.contains('\n') { line } else { "" };
    let (position, with) = match members.0.last() {
        Some((_, last)) => (offset(text, last.get()) + last.get().len(), format!(",{line}{member}")),
        None => {
            let brace = text[start..].find('{').unwrap_or_default();
            (start + brace + 1, format!("{line}{member}"))
        }
    };
    Edit { start: position, end: position, with }
}

/// Where `part` begins, which is a part of the text.
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
                let mut members: Vec<(String, &RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if members.iter().any(|(other, _)| *other == name) {
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
    fn all_other_bytes_stay() {
        let own = "{\n  \"z\": 1e2,\n  \"mcpServers\": {\n    \"db\": {\"command\":  \"x\"}\n  },\n\t\"a\": \"ä\\u00e4\"\n}\n";
        let added = add(own).unwrap();
        assert!(added.names_in_use.is_empty());
        assert!(added.text.starts_with(
            "{\n  \"z\": 1e2,\n  \"mcpServers\": {\n    \"db\": {\"command\":  \"x\"},\n    \"github\": {"
        ));
        assert!(added.text.ends_with("}\n  },\n\t\"a\": \"ä\\u00e4\"\n}\n"), "{}", added.text);
        assert_eq!(add(&added.text).unwrap().text, added.text, "what is there is not added again");
    }

    #[test]
    fn objects_without_members_get_their_first_one() {
        for own in ["{}", "{ }\n", "{\"mcpServers\":{}}", " {\"a\":1, \"mcpServers\": {\n}}"] {
            let text = add(own).unwrap().text;
            let settings: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(settings["mcpServers"]["wiki"]["args"], json!(["--server", "wiki"]), "{text}");
        }
        assert_eq!(add(" {\"a\": 1}").unwrap().text.split_once(",\"mcpServers\"").unwrap().0, " {\"a\": 1");
    }

    #[test]
    fn an_entry_of_another_program_stays_and_an_old_one_of_the_shim_is_replaced() {
        let own = r#"{"mcpServers": {"github": {"command": "gh-server"}, "wiki": {"command": "/old/cofferdam-shim"}, "x": 1}}"#;
        let added = add(own).unwrap();
        assert_eq!(added.names_in_use, ["github"]);
        let start = r#"{"mcpServers": {"github": {"command": "gh-server"}, "wiki": {"#;
        assert!(added.text.starts_with(start) && added.text.ends_with(r#", "x": 1}}"#), "{}", added.text);
        assert!(added.text.contains("/b/cofferdam-shim") && !added.text.contains("/old/"), "{}", added.text);
    }

    #[test]
    fn what_is_not_plain_json_is_refused() {
        for own in ["", "[]", "// a comment\n{}", "{\"a\": 1,}", "{\"a\": 1, \"a\": 2}", "{} {}"] {
            assert_eq!(add(own), Err(MergeRefusal::NotPlainJson), "{own}");
        }
        for own in ["{\"mcpServers\": []}", "{\"mcpServers\": {\"a\": 1, \"a\": 1}}"] {
            assert_eq!(add(own), Err(MergeRefusal::ServersForm("mcpServers".into())), "{own}");
        }
    }
}
