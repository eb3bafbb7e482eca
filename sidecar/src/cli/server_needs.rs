//! What `import` and `init` look at on this host to find what a server needs inside its walls.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use cofferdam_confine::{DownloadSource, ShownPath};
use cofferdam_import::Directory;
use cofferdam_process::run_bounded;

use crate::config::{Config, Environment};

/// Settings of package managers are a few lines.
const MAX_SETTINGS_BYTES: u64 = 256 * 1024;
/// Prints the default too. It writes no log into the home, and asks for no update.
const NPM_REGISTRY: [&str; 6] = ["npm", "config", "get", "registry", "--logs-max=0", "--no-update-notifier"];
/// npm takes some 200 ms.
const NPM_TIME: Duration = Duration::from_secs(10);
const MAX_ADDRESS_BYTES: usize = 4096;

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

/// What npm says that it downloads from, asked once. Other package managers do not tell their default.
pub(super) fn default_registry(source: DownloadSource) -> Option<String> {
    static OF_NPM: OnceLock<Option<String>> = OnceLock::new();
    match source {
        DownloadSource::Npm => OF_NPM.get_or_init(ask_npm).clone(),
        DownloadSource::Images | DownloadSource::PyPi => None,
    }
}

fn ask_npm() -> Option<String> {
    let command = NPM_REGISTRY.map(str::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    // Without npm, or where it fails, the default is not known, and a note says what to add.
    let printed = runtime.block_on(run_bounded(&command, NPM_TIME, MAX_ADDRESS_BYTES)).ok()?;
    String::from_utf8(printed.to_vec()).ok()
}
