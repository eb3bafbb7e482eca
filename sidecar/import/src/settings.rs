//! One settings file: its entries, and the file with some of them changed.

use std::path::{Path, PathBuf};

use serde_json::Value;
use zeroize::Zeroizing;

use crate::dialect::{Dialect, server_tables};
use crate::document::{Document, DocumentError, Format};
use crate::edit::{Edit, EntryPath, RewriteError};
use crate::entry::{DISABLED, read_entry};
use crate::found::FoundEntry;
use crate::rewrite::{apply, can_rewrite};
use crate::shim_entry::{ShimProgram, read_shim, shim_members};
use crate::surroundings::Surroundings;

pub struct Settings {
    pub path: PathBuf,
    document: Document,
    pub entries: Vec<FoundEntry>,
}

/// What `cofferdam harness` does to one entry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HarnessEdit {
    /// The entry starts the shim for this server.
    Set(String),
    Remove(String),
}

/// A settings file with entries of an earlier version of it.
pub struct Restored {
    pub bytes: Zeroizing<Vec<u8>>,
    /// Entries that start something else than the shim by now, or are gone, and stay as they are.
    pub left: Vec<EntryPath>,
}

impl Settings {
    pub fn read(path: &Path, bytes: &[u8], surroundings: &Surroundings<'_>) -> Result<Self, DocumentError> {
        let document = Document::read(Format::of(path), bytes)?;
        let mut entries = Vec::new();
        for table in server_tables(&document, path) {
            let of_project = table.project.clone().map(|project| surroundings.of_project(project));
            let surroundings = of_project.as_ref().unwrap_or(surroundings);
            for (name, entry) in table.servers {
                let found = read_entry(name, entry, &table.path, table.dialect, surroundings);
                let is_excluded = table.excluded.contains(&name.as_str());
                entries.push(match found {
                    FoundEntry::Server(server) if is_excluded => {
                        FoundEntry::Skipped { name: server.name, why: DISABLED.to_owned() }
                    }
                    found => found,
                });
            }
        }
        Ok(Self { path: path.to_owned(), document, entries })
    }

    /// Whether its entries can be replaced by the shim.
    pub fn can_be_rewritten(&self) -> bool {
        self.servers().all(|server| can_rewrite(server.dialect))
    }

    pub fn servers(&self) -> impl Iterator<Item = &crate::found::FoundServer> {
        self.entries.iter().filter_map(|entry| match entry {
            FoundEntry::Server(server) => Some(server),
            FoundEntry::Shim(_) | FoundEntry::Skipped { .. } => None,
        })
    }

    pub fn servers_mut(&mut self) -> impl Iterator<Item = &mut crate::found::FoundServer> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            FoundEntry::Server(server) => Some(server),
            FoundEntry::Shim(_) | FoundEntry::Skipped { .. } => None,
        })
    }

    /// The file with its servers replaced by the shim. `names` are their names in the configuration, in the order of
    /// [`Self::servers`].
    pub fn rewritten(
        &self,
        names: &[&str],
        shim: ShimProgram<'_>,
    ) -> Result<(Zeroizing<Vec<u8>>, Vec<EntryPath>), RewriteError> {
        let mut edits = Vec::new();
        for (server, name) in self.servers().zip(names) {
            let members = shim_members(server.dialect, shim, name);
            let members = members.ok_or_else(|| RewriteError::Form(server.path.clone()))?;
            edits.push(Edit::Define { path: server.path.clone(), members });
        }
        let bytes = apply(&self.document, &edits, None)?;
        Ok((bytes, edits.iter().map(|edit| EntryPath(edit.path().to_vec())).collect()))
    }

    /// A settings file with entries of the shim added or removed. An entry that starts another program is not changed.
    /// Returns the new bytes, and the names of those entries.
    pub fn with_shim(
        path: &Path,
        bytes: &[u8],
        dialect: Dialect,
        edits: &[HarnessEdit],
        shim: ShimProgram<'_>,
    ) -> Result<(Zeroizing<Vec<u8>>, Vec<String>), HarnessEditError> {
        let document = Document::read(Format::of(path), bytes)?;
        let (mut applied, mut others) = (Vec::new(), Vec::new());
        for edit in edits {
            let (HarnessEdit::Set(server) | HarnessEdit::Remove(server)) = edit;
            let path: Vec<String> =
                dialect.servers_path().iter().map(|&step| step.to_owned()).chain([server.clone()]).collect();
            let present = path.iter().try_fold(&document.value.0, |value, step| value.get(step));
            // An entry of this name that has the arguments of one for the shim was written by an earlier call.
            let is_shim = |entry: &Value| {
                entry
                    .as_object()
                    .is_some_and(|entry| read_shim(server, entry, &|named| named == server).is_some())
            };
            let is_other = present.is_some_and(|entry| !is_shim(entry));
            match edit {
                HarnessEdit::Set(_) | HarnessEdit::Remove(_) if is_other => others.push(server.clone()),
                HarnessEdit::Set(_) => {
                    let members = shim_members(dialect, shim, server);
                    let members = members.ok_or_else(|| RewriteError::Form(path.clone()))?;
                    applied.push(Edit::Define { path, members });
                }
                HarnessEdit::Remove(_) if present.is_some() => applied.push(Edit::Remove { path }),
                HarnessEdit::Remove(_) => {}
            }
        }
        if applied.is_empty() {
            return Ok((Zeroizing::new(bytes.to_vec()), others));
        }
        Ok((apply(&document, &applied, None)?, others))
    }

    /// `current` with these entries as they were in `earlier`.
    pub fn restored(
        path: &Path,
        current: &[u8],
        earlier: &[u8],
        entries: &[EntryPath],
    ) -> Result<Restored, HarnessEditError> {
        let format = Format::of(path);
        let (current, earlier) = (Document::read(format, current)?, Document::read(format, earlier)?);
        let is_shim = |entry: &&EntryPath| {
            let found = entry.0.iter().try_fold(&current.value.0, |value, step| value.get(step));
            // The entry was rewritten: with the arguments of one for the shim, it is still that.
            let found = found.and_then(|entry| entry.as_object());
            found.is_some_and(|found| read_shim("", found, &|_| true).is_some())
        };
        let (restored, left): (Vec<&EntryPath>, Vec<&EntryPath>) = entries.iter().partition(is_shim);
        let edits: Vec<Edit> =
            restored.into_iter().map(|entry| Edit::Restore { path: entry.0.clone() }).collect();
        let bytes = apply(&current, &edits, Some(&earlier))?;
        Ok(Restored { bytes, left: left.into_iter().cloned().collect() })
    }
}

/// Why entries of a settings file cannot be changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HarnessEditError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
}

impl Dialect {
    /// The members from the root of a harness's own settings file to its servers.
    pub fn servers_path(self) -> &'static [&'static str] {
        match self {
            Self::Codex => &["mcp_servers"],
            Self::E2b | Self::OpenCode => &["mcp"],
            Self::Gemini | Self::Standard => &["mcpServers"],
            Self::VsCode => &["servers"],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHIM: ShimProgram<'_> = ShimProgram { program: "cofferdam-shim", relay: None };

    /// White space and comments, as people and programs write them.
    const SPACE: &str = r"( |\t|\n|\r\n|/\* é \*/|// \{x\n){0,3}";
    const TEXT: &str = r#""([a-z{}$:/ é]|\\"|\\u00e9|\\n){0,8}""#;

    fn entry() -> impl Strategy<Value = String> {
        (SPACE, SPACE, SPACE, TEXT, "[a-z0-9]{8,20}", any::<bool>(), any::<bool>()).prop_map(
            |(one, two, three, text, token, has_url, has_more)| {
                let defined = match has_url {
                    true => format!("\"url\":{one}\"https://a.example/mcp\",\"headers\":{{\"X-Token\":\"CANARY{token}\"}}"),
                    false => format!("\"command\":{one}\"a\",{two}\"args\":[{text}],\"env\":{{{three}\"T_TOKEN\":\"CANARY{token}\"}}"),
                };
                let more = if has_more { format!(",{two}\"timeout\":{three}1e3,\"note\":{text}") } else { String::new() };
                format!("{{{one}{defined}{more}{two}}}")
            },
        )
    }

    fn settings() -> impl Strategy<Value = String> {
        let entries = proptest::collection::vec((SPACE, SPACE, entry()), 0..4);
        (SPACE, SPACE, SPACE, TEXT, entries, any::<[bool; 3]>()).prop_map(
            |(one, two, three, text, entries, [has_mark, has_comma, is_first])| {
                let entries: Vec<String> = entries
                    .into_iter()
                    .enumerate()
                    .map(|(number, (before, after, entry))| {
                        format!("{before}\"server {number}\"{after}:{entry}{after}")
                    })
                    .collect();
                let comma = if has_comma && !entries.is_empty() { "," } else { "" };
                let servers = format!("\"mcpServers\"{one}:{two}{{{}{comma}{three}}}", entries.join(","));
                let other = format!("\"other\":{{\"a\":{text},{one}\"b\":[1.50,{two}true]}}");
                let members = if is_first {
                    format!("{servers}{three},{other}")
                } else {
                    format!("{other},{one}{servers}")
                };
                format!("{}{one}{{{two}{members}{three}}}{one}", if has_mark { "\u{feff}" } else { "" })
            },
        )
    }

    /// The same servers in the form of another harness: JSON with comments.
    fn of_harness(harness: &str, settings: &str) -> String {
        match harness {
            "/p/.vscode/mcp.json" => settings.replace("\"mcpServers\"", "\"servers\""),
            "/p/.gemini/settings.json" => settings.replace("\"url\"", "\"httpUrl\""),
            "/p/opencode.jsonc" => settings
                .replace("\"mcpServers\"", "\"mcp\"")
                .replace("\"env\"", "\"environment\"")
                .replace("\"command\":", "\"type\":\"local\",\"command\":"),
            _ => settings.to_owned(),
        }
    }

    /// A settings file of Codex, with tables and inline tables, comments, and both ways to end lines.
    fn codex_settings() -> impl Strategy<Value = String> {
        let space = r"( |\t){0,2}";
        let comment = r"( # [a-zé\[\]=]{0,6})?";
        let lines = r"(\n|# \[x\]\n){0,2}(other = 1 # é\n)?";
        let text = r#""([a-z{}$:/ é]|\\"|\\u00e9|\\n){0,8}""#;
        let entry = (space, space, comment, text, "[a-z0-9]{8,20}", any::<[bool; 3]>()).prop_map(
            |(one, two, comment, text, token, [is_inline, has_url, has_more])| {
                let defined = match has_url {
                    true => vec![
                        format!("url{one}={two}\"https://a.example/mcp\""),
                        format!("http_headers = {{{one}\"X-Token\"{two}= \"CANARY{token}\" }}"),
                    ],
                    false => vec![
                        format!("command{two}={one}\"a\""),
                        format!("args = [{one}{text},{two}]"),
                        format!("env = {{ T_TOKEN{one}= \"CANARY{token}\"{two}}}"),
                    ],
                };
                let more = has_more.then(|| format!("startup_timeout_sec{one}={two}1.50"));
                let members: Vec<String> = defined.into_iter().chain(more).collect();
                (is_inline, comment, members)
            },
        );
        let entries = proptest::collection::vec((lines, entry), 0..4);
        (lines, entries, any::<[bool; 2]>()).prop_map(|(end, entries, [has_carriage_returns, is_cut])| {
            let (mut inline, mut tables) = (String::new(), String::new());
            for (number, (lines, (is_inline, comment, members))) in entries.into_iter().enumerate() {
                let lines = lines.replace("other", &format!("other{number}"));
                match is_inline {
                    true => {
                        inline += &format!("\"server {number}\" = {{ {} }}{comment}\n", members.join(", "))
                    }
                    false => {
                        let members: String =
                            members.iter().map(|line| format!("{line}{comment}\n")).collect();
                        tables += &format!("{lines}[mcp_servers.s{number}]{comment}\n{members}");
                    }
                }
            }
            let inline = if inline.is_empty() { inline } else { format!("[mcp_servers] # all\n{inline}") };
            let text = format!("model = \"o\" # best\n{inline}{tables}{}", end.replace("other", "last"));
            let text = if is_cut { text.trim_end_matches('\n').to_owned() } else { text };
            if has_carriage_returns { text.replace('\n', "\r\n") } else { text }
        })
    }

    /// Rewrites all servers, and asserts that restoring them gives the same bytes.
    fn check_restored(path: &str, text: &str) -> Result<(), TestCaseError> {
        let path = Path::new(path);
        let read = |bytes: &[u8]| Settings::read(path, bytes, &Surroundings::nowhere());
        let original = read(text.as_bytes()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let names = vec!["x"; original.servers().count()];
        // A file with line ends of two kinds is refused, and stays as it is.
        let (rewritten, entries) = match original.rewritten(&names, SHIM) {
            Err(RewriteError::MixedLineEnds) => return Ok(()),
            rewritten => rewritten.map_err(|error| TestCaseError::fail(error.to_string()))?,
        };
        let shown = String::from_utf8_lossy(&rewritten).into_owned();
        prop_assert!(!shown.contains("CANARY"), "{}", shown);
        prop_assert_eq!(read(&rewritten).expect("it was valid").servers().count(), 0);
        let restored = Settings::restored(path, &rewritten, text.as_bytes(), &entries)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(restored.left.is_empty());
        prop_assert_eq!(String::from_utf8_lossy(&restored.bytes), text);
        Ok(())
    }

    proptest! {
        #[test]
        fn restoring_the_entries_of_a_rewritten_file_gives_the_same_bytes(
            text in settings(),
            path in prop::sample::select(vec![
                "/p/.mcp.json", "/p/.vscode/mcp.json", "/p/.gemini/settings.json", "/p/opencode.jsonc",
            ]),
        ) {
            check_restored(path, &of_harness(path, &text))?;
        }

        #[test]
        fn restoring_the_entries_of_a_rewritten_file_of_codex_gives_the_same_bytes(text in codex_settings()) {
            check_restored("/p/.codex/config.toml", &text)?;
        }

        #[test]
        fn no_text_makes_reading_panic(text in r#"([{}\[\]",:=#\n]|mcp|_?[sS]ervers|command|url|"a"|\\|//|/\*|é|1){0,40}"#) {
            for path in ["/p/.mcp.json", "/p/config.toml"] {
                if let Ok(settings) = Settings::read(Path::new(path), text.as_bytes(), &Surroundings::nowhere()) {
                    let names = vec!["x"; settings.servers().count()];
                    let _ = settings.rewritten(&names, SHIM);
                }
            }
        }
    }
}
