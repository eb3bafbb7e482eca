//! Both programs in one directory, as the guide tells users to install them: the sidecar then finds the shim by itself.

use std::path::{Path, PathBuf};

use crate::attach::shim_binary;
use crate::process::built;

/// A directory with `cofferdam` and `cofferdam-shim`.
#[derive(Debug)]
pub struct InstalledPrograms {
    directory: tempfile::TempDir,
}

impl InstalledPrograms {
    #[track_caller]
    pub fn new() -> Self {
        let sidecar = built("COFFERDAM_BIN", "cofferdam");
        // Beside the built program, because a hard link cannot lead to another file system. A symbolic link is not enough: the
        // sidecar looks for the shim beside the file of its own program.
        let parent = sidecar.parent().expect("a program is in a directory");
        let directory = tempfile::Builder::new().prefix("installed-").tempdir_in(parent);
        let directory = directory.expect("the directory of the built program is writable");
        let programs = Self { directory };
        std::fs::hard_link(&sidecar, programs.sidecar()).expect("a program can be linked");
        // Only read by the sidecar, so that a copy does the same.
        std::fs::copy(shim_binary(), programs.path().join("cofferdam-shim"))
            .expect("the directory is writable");
        programs
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn sidecar(&self) -> PathBuf {
        self.directory.path().join("cofferdam")
    }
}

impl Default for InstalledPrograms {
    fn default() -> Self {
        Self::new()
    }
}
