//! Checks that no private path lies in the directory of a relay socket, where sandboxes can see it.
//!
//! The checks of the configuration compare paths as they are written. Here they are compared as the file
//! system resolves them, symbolic links followed, before anything is created.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::config::{Config, SHARED_DIRECTORIES};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PathIsolationError {
    #[error(
        "`{key}` resolves to `{path}`, inside the relay's directory `{directory}`, which sandboxes can open; \
         give `{of}` a directory that holds nothing else"
    )]
    Inside { key: &'static str, path: PathBuf, directory: PathBuf, of: &'static str },
    #[error("`{0}` is not an absolute path; give the full path of a directory")]
    NotAbsolute(PathBuf),
    #[error(
        "other users or sandboxes can write to `{0}`; choose a directory for this sandbox alone, it is created if missing"
    )]
    Shared(PathBuf),
    #[error(
        "`{directory}` is not for this sandbox alone: {with} is in it or contains it; choose a directory that holds nothing else"
    )]
    NotExclusive { directory: PathBuf, with: String },
    #[error("cannot list the directory `{path}`")]
    List {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot resolve the path `{path}`")]
    Resolve {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Refuses a configuration whose admin socket or state directory lies in a directory that sandboxes see.
pub(crate) fn check_relay_directories(config: &Config) -> Result<(), PathIsolationError> {
    let socket = config.relay.unix.as_ref().and_then(|unix| unix.path.parent());
    let directories = [("relay.unix", socket), ("relay.vsock-dir", config.relay.vsock_dir.as_deref())];
    for (of, directory) in directories {
        let Some(directory) = directory else { continue };
        let directory = resolve(directory)?;
        for (key, path) in [("admin.socket", &config.admin.socket), ("state-dir", &config.state_dir)] {
            let path = resolve(path)?;
            if path.starts_with(&directory) {
                return Err(PathIsolationError::Inside { key, path, directory, of });
            }
        }
    }
    Ok(())
}

/// Checks that a sandbox may get this directory for its socket: it contains nothing of the host or of another sandbox,
/// and not every user can write to it. Returns the resolved path.
pub(super) fn check_sandbox_directory(
    config: &Config,
    config_file: &Path,
    directory: &Path,
    others: &[PathBuf],
) -> Result<PathBuf, PathIsolationError> {
    if !directory.is_absolute() {
        return Err(PathIsolationError::NotAbsolute(directory.into()));
    }
    let resolved = resolve(directory)?;
    let vsock_dir = config.relay.vsock_dir.as_deref().map(resolve).transpose()?;
    if SHARED_DIRECTORIES.iter().any(|shared| resolved == Path::new(shared))
        || vsock_dir.as_ref() == Some(&resolved)
    {
        return Err(PathIsolationError::Shared(resolved));
    }
    let relay = config.relay.unix.as_ref().and_then(|unix| unix.path.parent());
    let host_paths = [("`state-dir`", Some(&*config.state_dir)), ("`relay.unix`", relay)];
    let host_paths = host_paths.into_iter().filter_map(|(key, path)| Some((key.to_owned(), path?)));
    let others = others.iter().map(|other| (format!("the socket in `{}`", other.display()), other.as_path()));
    for (with, path) in host_paths.chain(others.clone()) {
        let path = resolve(path)?;
        // `create_with_socket` refuses the very directory of another enrolment, with the id of that enrolment.
        let is_reused = others.clone().any(|(_, other)| other == resolved && path == resolved);
        if !is_reused && (path.starts_with(&resolved) || resolved.starts_with(&path)) {
            return Err(PathIsolationError::NotExclusive { directory: resolved, with });
        }
    }
    for (with, path) in
        [("`admin.socket`", config.admin.socket.as_path()), ("the configuration", config_file)]
    {
        if resolve(path)?.starts_with(&resolved) {
            return Err(PathIsolationError::NotExclusive { directory: resolved, with: with.into() });
        }
    }
    check_contents(resolved)
}

/// Checks that the directory, if it exists, contains only sockets of ours, and that not every user can write to it.
fn check_contents(resolved: PathBuf) -> Result<PathBuf, PathIsolationError> {
    let read_error = |source| PathIsolationError::List { path: resolved.clone(), source };
    let entries = match std::fs::read_dir(&resolved) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(resolved),
        entries => entries.map_err(read_error)?,
    };
    if std::fs::metadata(&resolved).map_err(read_error)?.permissions().mode() & 0o002 != 0 {
        return Err(PathIsolationError::Shared(resolved));
    }
    for entry in entries {
        let name = entry.map_err(read_error)?.file_name();
        // The last two belong to a microVM: the socket of its monitor, and the socket for the guest's port.
        if !["relay.sock", "vsock", "vsock_7443"].iter().any(|ours| name == *ours) {
            return Err(PathIsolationError::NotExclusive {
                directory: resolved,
                with: format!("`{}`", name.display()),
            });
        }
    }
    Ok(resolved)
}

/// Follows the symbolic links of a path. Components that do not exist are left as they are.
fn resolve(path: &Path) -> Result<PathBuf, PathIsolationError> {
    let mut missing = Vec::new();
    let mut existing = path;
    loop {
        match existing.canonicalize() {
            Ok(mut resolved) => {
                resolved.extend(missing.into_iter().rev());
                return Ok(resolved);
            }
            Err(source) => match (existing.file_name(), existing.parent()) {
                (Some(name), Some(parent)) if source.kind() == io::ErrorKind::NotFound => {
                    missing.push(name);
                    existing = parent;
                }
                _ => return Err(PathIsolationError::Resolve { path: path.into(), source }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_links_are_followed_and_missing_components_are_unchanged() {
        let directory = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-path-isolation-"));
        std::fs::create_dir_all(directory.join("relay")).unwrap();
        std::os::unix::fs::symlink("relay", directory.join("elsewhere")).unwrap();
        let real_directory = directory.canonicalize().unwrap();
        assert_eq!(resolve(&directory.join("elsewhere/a/b")).unwrap(), real_directory.join("relay/a/b"));
        assert_eq!(resolve(&directory.join("none/a")).unwrap(), real_directory.join("none/a"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
