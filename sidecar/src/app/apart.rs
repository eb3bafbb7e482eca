//! Whatever lies in the relay's directory lies in the sandbox.
//!
//! `check` compares paths as they are written, for it touches nothing. Here they are compared as the file system has
//! them, links followed, before anything is made in them.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::Config;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApartError {
    #[error(
        "`{key}` is really `{place}`, which lies in the relay's directory `{directory}`, and sandboxes can open that; \
         give `relay.unix` a directory of its own, one that holds nothing else"
    )]
    Inside { key: &'static str, place: PathBuf, directory: PathBuf },
    #[error("find out where `{path}` really is")]
    Unknown {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Neither the admin socket nor the state is in the sandbox.
pub(super) fn keep_apart(config: &Config) -> Result<(), ApartError> {
    let Some(directory) = config.relay.unix.as_ref().and_then(|unix| unix.path.parent()) else {
        return Ok(());
    };
    let directory = real(directory)?;
    for (key, path) in [("admin.socket", &config.admin.socket), ("state-dir", &config.state_dir)] {
        let place = real(path)?;
        if place.starts_with(&directory) {
            return Err(ApartError::Inside { key, place, directory });
        }
    }
    Ok(())
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
        let directory = std::env::temp_dir().join(crate::session::random_id("cofferdam-apart-"));
        std::fs::create_dir_all(directory.join("relay")).unwrap();
        std::os::unix::fs::symlink("relay", directory.join("elsewhere")).unwrap();
        let real_directory = directory.canonicalize().unwrap();
        assert_eq!(real(&directory.join("elsewhere/a/b")).unwrap(), real_directory.join("relay/a/b"));
        assert_eq!(real(&directory.join("none/a")).unwrap(), real_directory.join("none/a"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
