//! The directories in which stdio servers start, unless their configuration names one.
//!
//! What must stay true: a server never starts in the directory in which the sidecar was started. `npx` and `python -m` prefer
//! packages of their directory, and a sandbox may be able to write to the one of a project.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use relay_proto::name::Name;

/// One directory for each server, made when the server first starts. It is kept: a server may leave files there for its next
/// process.
#[derive(Clone, Debug)]
pub struct WorkingDirectories(PathBuf);

#[derive(Debug, thiserror::Error)]
#[error(
    "make the directory `{}` in which the server starts; let the sidecar's user write there, or set `cwd`",
    directory.display()
)]
pub struct WorkingDirectoryError {
    directory: PathBuf,
    source: io::Error,
}

impl WorkingDirectories {
    pub fn in_state(state_dir: &Path) -> Self {
        Self(state_dir.join("servers"))
    }

    /// Where the directory of this server is, or will be.
    pub(crate) fn path_of(&self, server: &Name) -> PathBuf {
        self.0.join(server.as_str())
    }

    /// The directory of this server, which is made if it does not exist. Only the sidecar's user can open it.
    pub(crate) fn of(&self, server: &Name) -> Result<PathBuf, WorkingDirectoryError> {
        let directory = self.path_of(server);
        match DirBuilder::new().recursive(true).mode(0o700).create(&directory) {
            Ok(()) => Ok(directory),
            Err(source) => Err(WorkingDirectoryError { directory, source }),
        }
    }
}
