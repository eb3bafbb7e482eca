//! The harnesses' ways to write servers, and where in a settings file they are.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::document::{Document, Format};

/// How a harness writes a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dialect {
    /// Codex: TOML, references by the names of variables.
    Codex,
    /// The `mcp` object of E2B's SDKs.
    E2b,
    /// Gemini CLI: `httpUrl`, and variables without braces.
    Gemini,
    /// opencode: `type`, a command with its arguments, `environment`.
    OpenCode,
    /// Claude Code, Claude Desktop, Cursor, Windsurf and others.
    Standard,
    /// VS Code: `servers` with `inputs`.
    VsCode,
}

/// An object of a settings file whose members are servers.
pub(crate) struct ServerTable<'a> {
    /// The members from the root to the object.
    pub(crate) path: Vec<String>,
    pub(crate) dialect: Dialect,
    /// The project that its servers are for, where the settings name one.
    pub(crate) project: Option<PathBuf>,
    pub(crate) servers: &'a Map<String, Value>,
    /// The names of servers that the settings exclude elsewhere than in their entries.
    pub(crate) excluded: Vec<&'a str>,
}

/// All objects with servers in a settings file.
pub(crate) fn server_tables<'a>(document: &'a Document, file: &Path) -> Vec<ServerTable<'a>> {
    let Value::Object(root) = &document.value.0 else { return Vec::new() };
    let mut tables = Vec::new();
    let mut add = |path: &[&str], dialect, project: Option<PathBuf>, servers: &'a Map<String, Value>| {
        let path = path.iter().map(|&name| name.to_owned()).collect();
        let excluded = if dialect == Dialect::Gemini { excluded(root) } else { Vec::new() };
        tables.push(ServerTable { path, dialect, project, servers, excluded });
    };
    if document.format == Format::Toml {
        if let Some(servers) = object(root, "mcp_servers") {
            add(&["mcp_servers"], Dialect::Codex, None, servers);
        }
        return tables;
    }
    if let Some(servers) = object(root, "mcpServers") {
        add(&["mcpServers"], standard_or_gemini(file, servers), None, servers);
    }
    for (directory, project) in object(root, "projects").into_iter().flatten() {
        if let Some(servers) = project.as_object().and_then(|project| object(project, "mcpServers")) {
            let path = ["projects", directory, "mcpServers"];
            add(&path, Dialect::Standard, Some(directory.into()), servers);
        }
    }
    if let Some(servers) = object(root, "servers").filter(|servers| are_servers(servers)) {
        add(&["servers"], Dialect::VsCode, None, servers);
    }
    if let Some(mcp) = object(root, "mcp") {
        match object(mcp, "servers").filter(|servers| are_servers(servers)) {
            Some(servers) => add(&["mcp", "servers"], Dialect::VsCode, None, servers),
            None if is_e2b(mcp) => add(&["mcp"], Dialect::E2b, None, mcp),
            // Gemini CLI has lists of names there.
            None if !mcp.is_empty() && !mcp.values().any(Value::is_object) => {}
            None => add(&["mcp"], Dialect::OpenCode, None, mcp),
        }
    }
    if tables.is_empty() && !root.is_empty() {
        match root {
            root if is_e2b(root) => tables.push(root_table(Dialect::E2b, root)),
            root if root.values().all(is_server) => {
                tables.push(root_table(Dialect::Standard, root));
            }
            _ => {}
        }
    }
    tables
}

fn root_table(dialect: Dialect, servers: &Map<String, Value>) -> ServerTable<'_> {
    ServerTable { path: Vec::new(), dialect, project: None, servers, excluded: Vec::new() }
}

/// The servers that Gemini CLI does not start: `mcp.excluded`.
fn excluded(root: &Map<String, Value>) -> Vec<&str> {
    let list = object(root, "mcp").and_then(|mcp| mcp.get("excluded")?.as_array());
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn object<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    members.get(name)?.as_object()
}

fn standard_or_gemini(file: &Path, servers: &Map<String, Value>) -> Dialect {
    let is_in = file.parent().and_then(Path::file_name).is_some_and(|directory| directory == ".gemini");
    let has_http_url = servers.values().any(|entry| entry.get("httpUrl").is_some());
    match is_in || has_http_url {
        true => Dialect::Gemini,
        false => Dialect::Standard,
    }
}

fn is_server(entry: &Value) -> bool {
    ["command", "url", "serverUrl", "httpUrl"].iter().any(|key| entry.get(key).is_some())
}

/// `servers` is a common name, so at least one of its members has to look like a server.
fn are_servers(servers: &Map<String, Value>) -> bool {
    servers.is_empty() || servers.values().any(is_server)
}

/// Whether the members are those of E2B's SDKs: names in a catalogue with parameters, or programs of GitHub repositories.
fn is_e2b(servers: &Map<String, Value>) -> bool {
    let is_of_e2b = |(name, entry): (&String, &Value)| match entry {
        Value::Object(entry) if name.starts_with("github/") => entry.contains_key("runCmd"),
        Value::Object(_) => {
            crate::e2b::is_catalogue_name(name) && !is_server(entry) && entry.get("type").is_none()
        }
        _ => false,
    };
    !servers.is_empty() && servers.iter().all(is_of_e2b)
}
