//! Whatever lies in the relay's directory lies in the sandbox.
//!
//! `check` compares paths as they are written, for it touches nothing. Here they are compared as the file system has
//! them, links followed, before anything is made in them.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::config::{Config, SHARED_DIRECTORIES};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApartError {
    #[error(
        "`{key}` is really `{place}`, which lies in the relay's directory `{directory}`, and sandboxes can open that; \
         give `{of}` a directory of its own, one that holds nothing else"
    )]
    Inside { key: &'static str, place: PathBuf, directory: PathBuf, of: &'static str },
    #[error("`{0}` is not an absolute path; write the whole path of a directory")]
    NotAbsolute(PathBuf),
    #[error(
        "`{0}` is used by others too; choose a directory of its own for the sandbox, it is made if need be"
    )]
    Shared(PathBuf),
    #[error(
        "`{place}` is not the sandbox's own: {with} is in it or around it; choose a directory that holds nothing else"
    )]
    NotItsOwn { place: PathBuf, with: String },
    #[error("look into `{path}`")]
    Look {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("find out where `{path}` really is")]
    Unknown {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Neither the admin socket nor the state is in the sandbox.
pub(super) fn keep_apart(config: &Config) -> Result<(), ApartError> {
    let socket = config.relay.unix.as_ref().and_then(|unix| unix.path.parent());
    let directories = [("relay.unix", socket), ("relay.vsock-dir", config.relay.vsock_dir.as_deref())];
    for (of, directory) in directories {
        let Some(directory) = directory else { continue };
        let directory = real(directory)?;
        for (key, path) in [("admin.socket", &config.admin.socket), ("state-dir", &config.state_dir)] {
            let place = real(path)?;
            if place.starts_with(&directory) {
                return Err(ApartError::Inside { key, place, directory, of });
            }
        }
    }
    Ok(())
}

/// The directory as the file system has it, if a sandbox may be given it with its socket: nothing of the host's is in it
/// and nothing of another sandbox's, and nobody else can put anything there.
pub(super) fn fit_for_a_sandbox(
    config: &Config,
    config_file: &Path,
    directory: &Path,
    others: &[PathBuf],
) -> Result<PathBuf, ApartError> {
    if !directory.is_absolute() {
        return Err(ApartError::NotAbsolute(directory.into()));
    }
    let place = real(directory)?;
    let machines = config.relay.vsock_dir.as_deref().map(real).transpose()?;
    if SHARED_DIRECTORIES.iter().any(|shared| place == Path::new(shared)) || machines.as_ref() == Some(&place)
    {
        return Err(ApartError::Shared(place));
    }
    let relay = config.relay.unix.as_ref().and_then(|unix| unix.path.parent());
    let own = [("`state-dir`", Some(&*config.state_dir)), ("`relay.unix`", relay)];
    let own = own.into_iter().filter_map(|(key, path)| Some((key.to_owned(), path?)));
    let others = others.iter().map(|other| (format!("the socket in `{}`", other.display()), other.as_path()));
    for (with, path) in own.chain(others.clone()) {
        let path = real(path)?;
        let same_again = others.clone().any(|(_, other)| other == place && path == place);
        if !same_again && (path.starts_with(&place) || place.starts_with(&path)) {
            return Err(ApartError::NotItsOwn { place, with });
        }
    }
    for (with, path) in
        [("`admin.socket`", config.admin.socket.as_path()), ("the configuration", config_file)]
    {
        if real(path)?.starts_with(&place) {
            return Err(ApartError::NotItsOwn { place, with: with.into() });
        }
    }
    nobody_elses(place)
}

/// Nothing but a socket of ours lies there, and only its owner can change that.
fn nobody_elses(place: PathBuf) -> Result<PathBuf, ApartError> {
    let looked = |source| ApartError::Look { path: place.clone(), source };
    let entries = match std::fs::read_dir(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(place),
        entries => entries.map_err(looked)?,
    };
    if std::fs::metadata(&place).map_err(looked)?.permissions().mode() & 0o002 != 0 {
        return Err(ApartError::Shared(place));
    }
    for entry in entries {
        let name = entry.map_err(looked)?.file_name();
        // The last two are a microVM's: the monitor's own socket, and the one for its guest's port.
        if !["relay.sock", "vsock", "vsock_7443"].iter().any(|ours| name == *ours) {
            return Err(ApartError::NotItsOwn { place, with: format!("`{}`", name.display()) });
        }
    }
    Ok(place)
}

/// The path with every link followed; what is not there yet is taken as it is written.
fn real(path: &Path) -> Result<PathBuf, ApartError> {
    let mut missing = Vec::new();
    let mut there = path;
    loop {
        match there.canonicalize() {
            Ok(mut real) => {
                real.extend(missing.into_iter().rev());
                return Ok(real);
            }
            Err(source) => match (there.file_name(), there.parent()) {
                (Some(name), Some(parent)) if source.kind() == io::ErrorKind::NotFound => {
                    missing.push(name);
                    there = parent;
                }
                _ => return Err(ApartError::Unknown { path: path.into(), source }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_and_what_is_missing_is_kept() {
        let directory = std::env::temp_dir().join(crate::random::id("cofferdam-apart-"));
        std::fs::create_dir_all(directory.join("relay")).unwrap();
        std::os::unix::fs::symlink("relay", directory.join("elsewhere")).unwrap();
        let real_directory = directory.canonicalize().unwrap();
        assert_eq!(real(&directory.join("elsewhere/a/b")).unwrap(), real_directory.join("relay/a/b"));
        assert_eq!(real(&directory.join("none/a")).unwrap(), real_directory.join("none/a"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
