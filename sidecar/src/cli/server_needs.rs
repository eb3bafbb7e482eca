//! What `import` and `init` look at on this host to find what a server needs inside its walls.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cofferdam_confine::ShownPath;
use cofferdam_import::Directory;

use crate::config::{Config, Environment};

/// Settings of package managers are a few lines.
const MAX_SETTINGS_BYTES: u64 = 256 * 1024;

/// The sidecar's own files, which no confined server may see. `file` is the configuration, which may not exist yet.
pub(super) fn hidden(file: &Path, config: Option<&Config>) -> Vec<PathBuf> {
    let secrets = file.parent().map(|directory| directory.join("secrets"));
    let state = Environment::of_process().default_state_dir();
    match config {
        Some(config) => config.private_paths(file).into_iter().map(|(_, path)| path).chain(secrets).collect(),
        None => [Some(file.to_owned()), secrets, state].into_iter().flatten().collect(),
    }
}

pub(super) fn directory(path: &Path, hidden: &[PathBuf]) -> Directory {
    match path.is_dir() {
        false => Directory::None,
        true if ShownPath::new(path.to_owned(), hidden).is_ok() => Directory::Ordinary,
        true => Directory::TooWide,
    }
}

/// The content of a small file.
pub(super) fn text_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_SETTINGS_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}
