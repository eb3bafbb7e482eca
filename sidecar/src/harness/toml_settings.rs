//! Adds entries to a settings file in TOML.
//!
//! What must stay true: the text of the file stays as it is, comments included; entries are tables at its end. Where that
//! would change the meaning of the file, or is not possible, nothing is added.

use serde_json::{Map, Value};
use toml::Table;

use super::{AddedEntries, MergeRefusal};

/// Adds the entries as tables `[key.NAME]`. An entry that is there already stays, whatever it starts.
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
    // Tables cannot be added to an inline table, for instance.
    match text.parse::<Table>() {
        Ok(written) if written == settings => Ok(AddedEntries { text, names_in_use }),
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
        for own in ["", "# mine\nmodel = \"o\"\n", "[mcp_servers]\n", "[mcp_servers.db]\ncommand = 'x' # why"]
        {
            let added = add(own).unwrap();
            assert!(added.text.starts_with(own) && added.text[own.len()..].contains(ENTRY), "{}", added.text);
            assert_eq!(add(&added.text).unwrap().text, added.text, "what is there is not added again");
        }
    }

    #[test]
    fn another_entry_of_the_same_name_stays() {
        let own = "[mcp_servers.git-hub]\ncommand = 'x'\n";
        assert_eq!(
            add(own).unwrap(),
            AddedEntries { text: own.into(), names_in_use: vec!["git-hub".into()] }
        );
    }

    #[test]
    fn what_cannot_be_added_to_is_refused() {
        assert_eq!(add("a = "), Err(MergeRefusal::NotToml));
        for own in ["mcp_servers = {}\n", "mcp_servers = { db = { command = 'x' } }\n", "mcp_servers = 1\n"] {
            assert_eq!(add(own), Err(MergeRefusal::ServersForm("mcp_servers".into())), "{own}");
        }
    }
}
