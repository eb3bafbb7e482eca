//! Adds entries to a settings file in TOML.
//!
//! What must stay true: the existing text is unchanged, comments included; entries are tables at its end. If that is not
//! possible, or would change the meaning of the file, nothing is added.

use serde_json::{Map, Value};
use toml::Table;

use super::{AddedEntries, MergeRefusal};

/// Adds the entries as tables `[key.NAME]`. An existing entry is unchanged, even if it starts the shim.
pub(super) fn add_entries(
    text: &str,
    key: &str,
    entries: &Map<String, Value>,
) -> Result<AddedEntries, MergeRefusal> {
    let mut settings: Table = text.parse().map_err(|_| MergeRefusal::NotToml)?;
    let not_tables = || MergeRefusal::ServersForm(key.to_owned());
    let servers = settings.entry(key).or_insert_with(|| Table::new().into());
    let servers = servers.as_table_mut().ok_or_else(not_tables)?;
    let (mut missing, mut names_in_use) = (Table::new(), Vec::new());
    for (name, entry) in entries {
        let entry = toml::Value::try_from(entry).map_err(|_| not_tables())?;
        match servers.get(name) {
            None => drop(missing.insert(name.clone(), entry)),
            Some(found) if *found == entry => {}
            Some(_) => names_in_use.push(name.clone()),
        }
    }
    if missing.is_empty() {
        return Ok(AddedEntries { text: text.to_owned(), names_in_use });
    }
    servers.extend(missing.clone());
    let separator = match text {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    let tables = Table::from_iter([(key.to_owned(), toml::Value::Table(missing))]);
    let text = format!("{text}{separator}{tables}");
    // Checks the result: for instance, tables cannot be added to an inline table.
    match text.parse::<Table>() {
        Ok(parsed) if parsed == settings => Ok(AddedEntries { text, names_in_use }),
        _ => Err(not_tables()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn add(text: &str) -> Result<AddedEntries, MergeRefusal> {
        let Value::Object(entries) =
            json!({"git-hub": {"command": "/b/cofferdam-shim", "args": ["--server", "git-hub"]}})
        else {
            unreachable!("it is an object")
        };
        add_entries(text, "mcp_servers", &entries)
    }

    const ENTRY: &str = "[mcp_servers.git-hub]\n";

    #[test]
    fn entries_are_tables_at_the_end() {
        for existing in
            ["", "# mine\nmodel = \"o\"\n", "[mcp_servers]\n", "[mcp_servers.db]\ncommand = 'x' # why"]
        {
            let added = add(existing).unwrap();
            assert!(
                added.text.starts_with(existing) && added.text[existing.len()..].contains(ENTRY),
                "{}",
                added.text
            );
            assert_eq!(add(&added.text).unwrap().text, added.text, "what is there is not added again");
        }
    }

    #[test]
    fn an_existing_entry_of_the_same_name_is_unchanged() {
        let existing = "[mcp_servers.git-hub]\ncommand = 'x'\n";
        assert_eq!(
            add(existing).unwrap(),
            AddedEntries { text: existing.into(), names_in_use: vec!["git-hub".into()] }
        );
    }

    #[test]
    fn files_to_which_tables_cannot_be_added_are_refused() {
        assert_eq!(add("a = "), Err(MergeRefusal::NotToml));
        for existing in
            ["mcp_servers = {}\n", "mcp_servers = { db = { command = 'x' } }\n", "mcp_servers = 1\n"]
        {
            assert_eq!(add(existing), Err(MergeRefusal::ServersForm("mcp_servers".into())), "{existing}");
        }
    }
}
