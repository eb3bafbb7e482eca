//! The directory that `just dist` makes, for the tests that take what is published instead of making packages of the programs
//! under test.
//!
//! `COFFERDAM_DIST` names one that is there already. Without it the first test runs the recipe in a clone of the commit that is
//! checked out, and the others wait for it: each test is a process of its own. A build of an earlier run is taken if it is of
//! the same commit.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::{Running, command, into_file, output_of, read};
use cofferdam_tests::tools::Tool;

/// A build of everything takes most of an hour on a busy machine.
pub(crate) const BUILD_TIME: Duration = PATIENCE.saturating_mul(150);

const JUSTFILE: &str = include_str!("../../../Justfile");
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The processor of the sidecar; there are shims for both.
pub(crate) const ARCHITECTURE: &str = std::env::consts::ARCH;

pub(crate) struct Published {
    directory: PathBuf,
    /// The start of the commit that was built, where a test has built it.
    pub(crate) commit: Option<String>,
}

impl Published {
    /// `None` if a tool of `tests/tools --dist` is missing, which is reported.
    #[track_caller]
    pub(crate) fn open() -> Option<Self> {
        if let Some(directory) = std::env::var_os("COFFERDAM_DIST") {
            let directory =
                PathBuf::from(directory).canonicalize().expect("COFFERDAM_DIST names a directory");
            return Some(Self { directory, commit: None });
        }
        for tool in [Tool::CargoAuditable, Tool::CargoDeb, Tool::Npm, Tool::Podman] {
            tool.path()?;
        }
        Some(Self::build())
    }

    #[track_caller]
    fn build() -> Self {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let place = target.join("published");
        std::fs::create_dir_all(&place).expect("the target directory is writable");
        let lock = File::create(place.join("lock")).expect("the target directory is writable");
        lock.lock().expect("the file can be locked");
        let commit = git(&["rev-parse", "HEAD"]);
        let (source, stamp) = (place.join("source"), place.join("commit"));
        if !std::fs::read_to_string(&stamp).is_ok_and(|built| built == commit) {
            let _ = std::fs::remove_file(&stamp);
            let _ = std::fs::remove_dir_all(&source);
            clone_into(&source);
            let mut recipe = command("sh");
            recipe.args(["-ec", &recipe_of_everything()]).current_dir(&source);
            recipe.env("CARGO_TARGET_DIR", place.join("target"));
            build(recipe, "just dist", &place.join("log"));
            std::fs::write(stamp, &commit).expect("the target directory is writable");
        }
        Self { directory: source.join("dist"), commit: Some(commit[..12].to_owned()) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A published file.
    #[track_caller]
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        let file = self.directory.join(name);
        assert!(file.is_file(), "{} is not published", file.display());
        file
    }

    #[track_caller]
    pub(crate) fn shim(&self, architecture: &str) -> PathBuf {
        self.file(&format!("cofferdam-shim-{VERSION}-{architecture}"))
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The command of the Justfile's recipe `dist`, for all parts.
#[track_caller]
fn recipe_of_everything() -> String {
    let mut lines = JUSTFILE.lines().skip_while(|line| !line.starts_with("dist "));
    let command = lines.nth(1).expect("the recipe has a command");
    assert!(command.starts_with("    ") && command.ends_with(" {{PARTS}}"), "{command}");
    command.trim().trim_end_matches("{{PARTS}}").to_owned()
}

/// Runs a command that builds programs; the log is shown if it fails.
#[track_caller]
pub(crate) fn build(mut command: Command, name: &str, log: &Path) {
    let _ = std::fs::remove_file(log);
    command.stdout(into_file(log)).stderr(into_file(log));
    let status = Running::spawn(command, name).wait(BUILD_TIME);
    assert!(status.success(), "{name}: {}", String::from_utf8_lossy(&read(log)));
}

/// A clone of the commit that is checked out.
#[track_caller]
pub(crate) fn clone_into(folder: &Path) {
    let folder = folder.to_str().expect("the target directory has a name of text");
    git(&["clone", "--quiet", "--no-hardlinks", ".", folder]);
}

#[track_caller]
fn git(arguments: &[&str]) -> String {
    let mut git = command("git");
    git.arg("-C").arg(root()).args(arguments);
    let Output { status, stdout, stderr } = output_of(git, "git");
    assert!(status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).trim().to_owned()
}
