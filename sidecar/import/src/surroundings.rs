//! What the meaning of a settings file depends on besides its text: directories and environment variables. They are passed
//! in, so that reading settings has no hidden inputs.

use std::path::{Component, Path, PathBuf};

use cofferdam_confine::DownloadSource;

pub struct Surroundings<'a> {
    pub home: Option<PathBuf>,
    /// The directory of the project that the settings belong to; `None` for settings of the user.
    pub project: Option<PathBuf>,
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub exists: &'a dyn Fn(&Path) -> bool,
    /// Whether a path is a directory that a confined server may see.
    pub directory: &'a dyn Fn(&Path) -> Directory,
    /// The content of a settings file of a package manager.
    pub text_of: &'a dyn Fn(&Path) -> Option<String>,
    /// The registry that a package manager downloads from where no settings name one.
    pub default_registry: &'a dyn Fn(DownloadSource) -> Option<String>,
    /// Whether the configuration of the sidecar has a server of this name.
    pub is_configured: &'a dyn Fn(&str) -> bool,
}

/// What a path is to a confined server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Directory {
    /// It is no directory.
    None,
    /// It can be shown.
    Ordinary,
    /// It contains what no confined server may see.
    TooWide,
}

/// Directories in which a project has the settings of one harness.
const HARNESS_DIRECTORIES: &[&str] = &[".codex", ".cursor", ".gemini", ".vscode"];
/// Settings files that lie in the project's directory itself.
const PROJECT_FILES: &[&str] = &[".mcp.json", "opencode.json", "opencode.jsonc", "mcp.json"];

impl Surroundings<'_> {
    /// Without directories and variables.
    pub fn nowhere() -> Self {
        Self {
            home: None,
            project: None,
            variable: &|_| None,
            exists: &|_| false,
            directory: &|_| Directory::None,
            text_of: &|_| None,
            default_registry: &|_| None,
            is_configured: &|_| false,
        }
    }

    /// A path in settings: `~` is the home, a relative path begins at the project.
    pub(crate) fn absolute(&self, path: &str) -> PathBuf {
        let joined = match (path.strip_prefix("~/"), &self.home, &self.project) {
            (Some(rest), Some(home), _) => home.join(rest),
            (_, _, Some(project)) => project.join(path),
            _ => PathBuf::from(path),
        };
        joined.components().filter(|component| *component != Component::CurDir).collect()
    }

    pub(crate) fn of_project(&self, project: PathBuf) -> Self {
        Self { home: self.home.clone(), project: Some(project), ..*self }
    }
}

/// The project that a settings file belongs to, by the places where harnesses look. `None` for settings of the user.
pub fn project_of(settings: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let directory = settings.parent()?;
    let name = settings.file_name()?.to_str()?;
    let project = match directory.file_name().and_then(|name| name.to_str()) {
        Some(parent) if HARNESS_DIRECTORIES.contains(&parent) => directory.parent()?,
        _ if PROJECT_FILES.contains(&name) => directory,
        _ => return None,
    };
    let is_of_user = home.is_some_and(|home| project == home || directory.starts_with(home.join(".config")));
    (!is_of_user).then(|| project.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_project_and_of_the_user_are_told_apart() {
        let home = Some(Path::new("/home/ada"));
        for (settings, project) in [
            ("/home/ada/app/.mcp.json", Some("/home/ada/app")),
            ("/home/ada/app/.vscode/mcp.json", Some("/home/ada/app")),
            ("/home/ada/.cursor/mcp.json", None),
            ("/home/ada/.claude.json", None),
            ("/home/ada/.config/opencode/opencode.json", None),
            ("/srv/app/opencode.jsonc", Some("/srv/app")),
        ] {
            assert_eq!(project_of(Path::new(settings), home), project.map(PathBuf::from), "{settings}");
        }
    }

    #[test]
    fn paths_begin_at_home_or_project() {
        let surroundings = Surroundings {
            home: Some("/home/ada".into()),
            project: Some("/srv/app".into()),
            ..Surroundings::nowhere()
        };
        assert_eq!(surroundings.absolute("~/key"), Path::new("/home/ada/key"));
        assert_eq!(surroundings.absolute("./bin/x"), Path::new("/srv/app/bin/x"));
        assert_eq!(surroundings.absolute("/bin/x"), Path::new("/bin/x"));
    }
}
