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

#[cfg(test)]
mod tests {
    use super::*;

    fn files(home: Option<&str>, variables: &[(&str, &str)]) -> Vec<String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let files = known_files(Path::new("/work/app"), home.map(Path::new), &variable);
        files.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_project_comes_first_and_then_the_home() {
        let files = files(Some("/home/ada"), &[]);
        let position = |path: &str| files.iter().position(|file| file == path).expect(path);
        for path in [
            "/work/app/.mcp.json",
            "/work/app/.cursor/mcp.json",
            "/work/app/.vscode/mcp.json",
            "/work/app/.gemini/settings.json",
            "/work/app/.codex/config.toml",
            "/work/app/opencode.jsonc",
        ] {
            assert!(position(path) < position("/home/ada/.claude.json"), "{path}");
        }
        for path in [
            "/home/ada/.cursor/mcp.json",
            "/home/ada/.gemini/settings.json",
            "/home/ada/.codex/config.toml",
            "/home/ada/.codeium/windsurf/mcp_config.json",
            "/home/ada/.config/Claude/claude_desktop_config.json",
            "/home/ada/.config/Code/User/mcp.json",
            "/home/ada/.config/opencode/opencode.json",
        ] {
            position(path);
        }
    }

    #[test]
    fn variables_move_directories_and_relative_ones_are_not_used() {
        let moved = files(
            Some("/home/ada"),
            &[("XDG_CONFIG_HOME", "/x"), ("CODEX_HOME", "/codex"), ("CLAUDE_CONFIG_DIR", "/claude")],
        );
        for path in ["/x/opencode/opencode.json", "/codex/config.toml", "/claude/.claude.json"] {
            assert!(moved.iter().any(|file| file == path), "{path}: {moved:?}");
        }
        assert!(
            !moved.iter().any(|file| file.contains("/.config/") || file == "/home/ada/.codex/config.toml")
        );
        let relative = [("XDG_CONFIG_HOME", "x"), ("CODEX_HOME", "codex"), ("CLAUDE_CONFIG_DIR", "claude")];
        assert_eq!(files(Some("/home/ada"), &relative), files(Some("/home/ada"), &[]));
    }

    #[test]
    fn a_project_in_the_home_is_looked_at_once_and_without_a_home_only_the_project_is() {
        let in_home = known_files(Path::new("/home/ada"), Some(Path::new("/home/ada")), &|_| None);
        let cursor = in_home.iter().filter(|path| path.ends_with(".cursor/mcp.json"));
        assert_eq!(cursor.count(), 1);
        assert!(files(None, &[]).iter().all(|file| file.starts_with("/work/app/")));
    }
}
