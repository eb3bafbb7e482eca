//! The entries for the shim that a project has in its own settings, as `cofferdam import --rewrite` leaves them.
//!
//! Claude Code asks at each start whether it may use the servers of a project's `.mcp.json`, because the home in the sandbox is new,
//! and offers a server twice if its name there is another than in the configuration. So these entries are switched off in
//! the sandbox, and the generated ones have their names, which the person's permissions refer to.
//!
//! What must stay true: a sandbox may have written the file, so only the names of entries that start the shim for a server
//! of the grant are used, and a symbolic link is not followed.

use std::collections::BTreeMap;
use std::path::Path;

use cofferdam_import::{FileState, FoundEntry, Settings, Surroundings, read_version};
use relay_proto::name::Name;

use super::Harness;

const CLAUDE_CODE_FILE: &str = ".mcp.json";

/// The name of each entry, and its server.
#[derive(Debug, Default)]
pub(in crate::run) struct ProjectEntries(pub(super) BTreeMap<String, Name>);

impl ProjectEntries {
    /// Those in this directory for the servers. A file that cannot be used has none: the harness itself reports it.
    pub(in crate::run) fn read(harness: Harness, directory: &Path, servers: &[Name]) -> Self {
        if harness != Harness::ClaudeCode {
            return Self::default();
        }
        let path = directory.join(CLAUDE_CODE_FILE);
        let Ok(FileState::Present { bytes, .. }) = read_version(&path) else { return Self::default() };
        let server_of = |name: &str| servers.iter().find(|server| server.as_str() == name);
        let is_configured = |name: &str| server_of(name).is_some();
        let surroundings = Surroundings { is_configured: &is_configured, ..Surroundings::nowhere() };
        let settings = Settings::read(&path, &bytes, &surroundings);
        let entries = settings.into_iter().flat_map(|settings| settings.entries);
        let shims = entries.filter_map(|entry| match entry {
            FoundEntry::Shim(shim) => Some((shim.name, server_of(&shim.server?)?.clone())),
            FoundEntry::Server(_) | FoundEntry::Skipped { .. } => None,
        });
        Self(shims.collect())
    }

    /// The names of the generated entry or entries of a server. The name of another server is only that one's.
    pub(super) fn names_of(&self, server: &Name, servers: &[Name]) -> Vec<String> {
        let is_of_other = |name: &str| servers.iter().any(|other| other != server && other.as_str() == name);
        let own = self.0.iter().filter(|(name, of)| *of == server && !is_of_other(name));
        let names: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        if names.is_empty() { vec![server.to_string()] } else { names }
    }
}
