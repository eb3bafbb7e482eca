//! Projects in which `cofferdam run` would refuse the new configuration: a sandbox there could change what the sidecar starts on
//! this host with credentials, or read its files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_import::project_of;

use super::gather::ReadSettings;
use crate::config::Config;
use crate::run::{RefusedFile, refused_in};

/// A project, and the files in it because of which `run` refuses it.
pub(super) struct RefusingProject {
    pub(super) directory: PathBuf,
    pub(super) files: BTreeSet<RefusedFile>,
}

/// Looks at the projects of the settings, and at the current directory.
pub(super) fn refusing(settings: &[ReadSettings], config: &Config, path: &Path) -> Vec<RefusingProject> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let of_settings = settings.iter().filter_map(|read| project_of(&read.settings.path, home.as_deref()));
    let directories: BTreeSet<PathBuf> = of_settings.chain(std::env::current_dir().ok()).collect();
    // `run` never starts in the home itself.
    let directories = directories
        .into_iter()
        .filter(|directory| !home.as_ref().is_some_and(|home| home.starts_with(directory)));
    let found = directories.map(|directory| {
        let files = refused_in(&directory, config, path).into_iter().collect();
        RefusingProject { directory, files }
    });
    found.filter(|project| !project.files.is_empty()).collect()
}
