//! Where harnesses keep their settings.

use std::path::{Path, PathBuf};

/// In a project's directory.
const OF_PROJECTS: &[&str] = &[
    ".mcp.json",
    ".cursor/mcp.json",
    ".vscode/mcp.json",
    ".gemini/settings.json",
    ".codex/config.toml",
    "opencode.json",
    "opencode.jsonc",
];
/// In the home. The directories of configurations are below `.config`, or where `XDG_CONFIG_HOME` says.
const OF_USERS: &[&str] = &[
    ".claude.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codeium/windsurf/mcp_config.json",
    "Library/Application Support/Claude/claude_desktop_config.json",
];
const OF_CONFIGURATIONS: &[&str] = &[
    "Claude/claude_desktop_config.json",
    "Code/User/mcp.json",
    "Code/User/settings.json",
    "opencode/opencode.json",
    "opencode/opencode.jsonc",
];

/// The settings files that may exist, each once: those of the project in `directory`, then those of the user.
pub fn known_files(
    directory: &Path,
    home: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<PathBuf> {
    let below = |root: &Path, names: &[&str]| names.iter().map(|name| root.join(name)).collect::<Vec<_>>();
    let directory_in = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let mut files = below(directory, OF_PROJECTS);
    if let Some(home) = home {
        files.extend(below(home, OF_USERS));
        let configurations = directory_in("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        files.extend(below(&configurations, OF_CONFIGURATIONS));
        let codex = directory_in("CODEX_HOME").unwrap_or_else(|| home.join(".codex"));
        files.push(codex.join("config.toml"));
    }
    if let Some(claude) = directory_in("CLAUDE_CONFIG_DIR") {
        files.push(claude.join(".claude.json"));
    }
    let mut known: Vec<PathBuf> = Vec::new();
    for file in files {
        if !known.contains(&file) {
            known.push(file);
        }
    }
    known
}
