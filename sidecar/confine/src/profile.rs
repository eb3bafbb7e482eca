//! What the configuration says that a server may reach.
//!
//! What must stay true: a path that the profile names contains none of the sidecar's own files, and replaces none of the
//! directories that every confined server has for itself.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::wall::FurtherWall;

/// The home directory of every confined server.
pub const HOME: &str = "/home/server";
pub(crate) const TEMPORARY: &str = "/tmp";

/// `[servers.NAME.confine]`, checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Profile {
    /// Files and directories of the host that it may read, besides its program and the operating system.
    pub read: Vec<ShownPath>,
    /// Directories, and files, that it may read and change.
    pub write: Vec<ShownPath>,
    /// The only programs that it may execute besides its own. `None`: all that it sees.
    pub exec: Option<Vec<ShownPath>>,
    pub home: Home,
    /// Bytes of memory: in a control group of all its processes together, otherwise of each of them.
    pub memory: Option<u64>,
    /// Processes and threads at the same time.
    pub pids: Option<u64>,
    /// Thousandths of a processor. Needs a control group.
    pub cpu: Option<u32>,
    /// The walls without which it does not start, besides those of every confined server.
    pub require: BTreeSet<FurtherWall>,
}

/// A path that the profile names, and where it led when the configuration was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShownPath {
    path: PathBuf,
    real: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ShownPathError {
    #[error(
        "`{}` leads to `{}`, and to another place when the configuration was read: reload it if that is intended",
        path.display(), now.display()
    )]
    Changed { path: PathBuf, now: PathBuf },
    #[error("cannot show `{}`", path.display())]
    Missing { path: PathBuf, source: io::Error },
}

impl ShownPath {
    /// Checks a path for a profile: it is absolute and without `..`. `private` are the sidecar's own files.
    pub fn new(path: PathBuf, private: &[PathBuf]) -> Result<Self, InvalidPath> {
        // What the path leads to is checked too: the server sees that.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        check_path(&path, private)?;
        check_path(&real, private)?;
        Ok(Self { path, real })
    }

    /// Where the server finds it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is on the host. A link that was changed meanwhile is not followed: another server may have changed it.
    pub(crate) fn source(&self) -> Result<&Path, ShownPathError> {
        match self.path.canonicalize() {
            Ok(now) if now == self.real => Ok(&self.real),
            Ok(now) => Err(ShownPathError::Changed { path: self.path.clone(), now }),
            Err(source) => Err(ShownPathError::Missing { path: self.path.clone(), source }),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Home {
    /// An empty directory in memory, which ends with the process.
    #[default]
    Private,
    /// A directory of the server's own in `state-dir`, which the processes of this server share and which lasts.
    Keep,
}

#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum InvalidPath {
    #[error("it contains `{}`, which the server must not see", .0.display())]
    ContainsPrivate(PathBuf),
    #[error("it is, or contains, `{0}`, of which every confined server has its own")]
    Own(&'static str),
}

/// Directories that are made for every confined server. What is shown may lie inside most of them, but not replace them.
const OWN: [&str; 8] = ["/dev", "/dev/shm", "/etc", HOME, "/proc", "/sys", TEMPORARY, "/run"];
/// Nothing of the host may be shown inside of these.
const CLOSED: [&str; 3] = ["/dev", "/proc", "/sys"];

fn check_path(path: &Path, private: &[PathBuf]) -> Result<(), InvalidPath> {
    let own = OWN.iter().find(|own| Path::new(own).starts_with(path));
    let closed = CLOSED.iter().find(|closed| path.starts_with(closed));
    if let Some(own) = own.or(closed) {
        return Err(InvalidPath::Own(own));
    }
    match private.iter().find(|private| overlap(path, private)) {
        Some(private) => Err(InvalidPath::ContainsPrivate(private.clone())),
        None => Ok(()),
    }
}

/// Whether showing `path` would show `private`.
pub(crate) fn overlap(path: &Path, private: &Path) -> bool {
    let real = private.canonicalize().unwrap_or_else(|_| private.to_owned());
    private.starts_with(path)
        || real.starts_with(path)
        || path.starts_with(private)
        || path.starts_with(&real)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, private: &[PathBuf]) -> Result<(), InvalidPath> {
        ShownPath::new(path.into(), private).map(drop)
    }

    #[test]
    fn the_sidecars_files_and_the_servers_own_directories_cannot_be_named() {
        let private = [PathBuf::from("/var/lib/cofferdam/state")];
        for path in
            ["/", "/etc", "/proc", "/proc/1", "/dev/shm/x", "/sys/fs", "/home/server", "/home", "/tmp"]
        {
            assert!(matches!(check(path, &private), Err(InvalidPath::Own(_))), "{path}");
        }
        for path in ["/var/lib", "/var/lib/cofferdam/state", "/var/lib/cofferdam/state/keys"] {
            assert_eq!(
                check(path, &private),
                Err(InvalidPath::ContainsPrivate(private[0].clone())),
                "{path}"
            );
        }
        for path in
            ["/srv/data", "/etc/ssl/certs", "/home/user/project", "/tmp/x", "/var/lib/cofferdam/other"]
        {
            assert_eq!(check(path, &private), Ok(()), "{path}");
        }
    }

    #[test]
    fn a_link_to_a_private_directory_cannot_be_named() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let link = directory.path().join("link");
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::symlink(&state, &link).unwrap();
        let refused = check(link.to_str().unwrap(), std::slice::from_ref(&state));
        assert_eq!(refused, Err(InvalidPath::ContainsPrivate(state)));
    }

    #[test]
    fn a_path_that_leads_elsewhere_later_is_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        std::fs::create_dir(&path).unwrap();
        let shown = ShownPath::new(path.clone(), &[]).unwrap();
        assert_eq!(shown.source().unwrap(), path.canonicalize().unwrap());
        std::fs::remove_dir(&path).unwrap();
        assert!(matches!(shown.source(), Err(ShownPathError::Missing { .. })));
        std::os::unix::fs::symlink("/usr", &path).unwrap();
        assert!(matches!(shown.source(), Err(ShownPathError::Changed { .. })));
    }
}
