//! The sidecar's key, `state-dir/key`: created at first use with mode 0600, and pinned by every enrolled sandbox.
//!
//! What must stay true: a state directory has one key, even if several processes create it at once; a key that cannot be
//! read is an error and is never replaced, because no sandbox would accept another key.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, read_checked, write_file};
use relay_carriage::identity::{Identity, IdentityError};
use zeroize::Zeroizing;

use super::disk::{self, StoreError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error(
        "`{path}` is damaged: it does not hold the sidecar's key; restore the file, or remove it and enrol every sandbox again"
    )]
    Damaged {
        path: PathBuf,
        #[source]
        source: IdentityError,
    },
    #[error(
        "{exposure} `{path}`, the sidecar's private key; if no other user can have read it, run `chown {} {path}` and \
         `chmod 600 {path}`; else remove it and enrol every sandbox again",
        nix::unistd::geteuid()
    )]
    Exposed { path: PathBuf, exposure: Exposure },
    #[error(transparent)]
    Generate(#[from] IdentityError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How other users may have read or changed the key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Exposure {
    #[error("users other than its owner may read or change (mode {0:03o})")]
    Mode(u32),
    #[error("user {0} owns, and may read and change,")]
    Owner(u32),
}

/// An Ed25519 key in PKCS#8 has some 85 bytes.
const MAX_KEY_BYTES: u64 = 4 * 1024;

/// Loads the key of this state directory, or creates it. Writes.
pub(crate) fn load_or_create(state_dir: &Path) -> Result<Identity, KeyError> {
    let path = state_dir.join("key");
    if let Some(identity) = load(&path)? {
        return Ok(identity);
    }
    disk::create_private_directory(state_dir)?;
    let identity = Identity::generate()?;
    match write_file(state_dir, &path, &identity.to_pkcs8(), Replace::Never) {
        Ok(()) => Ok(identity),
        // Another process has created the key meanwhile: that one is used.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            load(&path)?.ok_or_else(|| StoreError::new("read the sidecar's key", &path)(error).into())
        }
        Err(error) => Err(StoreError::new("write the sidecar's key", &path)(error).into()),
    }
}

fn load(path: &Path) -> Result<Option<Identity>, KeyError> {
    let mut exposed = None;
    let read = read_checked(path, MAX_KEY_BYTES, |file| {
        exposed = exposure(file);
        match exposed {
            Some(_) => Err(io::ErrorKind::PermissionDenied.into()),
            None => Ok(()),
        }
    });
    if let Some(exposure) = exposed {
        return Err(KeyError::Exposed { path: path.into(), exposure });
    }
    match read.map(Zeroizing::new) {
        Ok(bytes) => {
            let identity = Identity::from_pkcs8(&bytes);
            identity.map(Some).map_err(|source| KeyError::Damaged { path: path.into(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::new("read the sidecar's key", path)(error).into()),
    }
}

fn exposure(file: &Metadata) -> Option<Exposure> {
    let (mode, owner) = (file.mode() & 0o777, file.uid());
    // Root can read every file anyway.
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        return Some(Exposure::Owner(owner));
    }
    (mode & 0o077 != 0).then_some(Exposure::Mode(mode))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::enrolment::tests::Directory;

    #[test]
    fn the_key_is_created_once_with_mode_0600() {
        let directory = Directory::new();
        let first = load_or_create(&directory.0).unwrap().public();
        assert_eq!(load_or_create(&directory.0).unwrap().public(), first);
        let mode = std::fs::metadata(directory.0.join("key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_key_that_other_users_may_read_is_refused_with_a_hint() {
        let directory = Directory::new();
        let key = directory.0.join("key");
        let first = load_or_create(&directory.0).unwrap().public();
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            let refused = load_or_create(&directory.0).unwrap_err();
            assert!(
                matches!(refused, KeyError::Exposed { exposure: Exposure::Mode(found), .. } if found == mode)
            );
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
        std::fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
        assert_eq!(load_or_create(&directory.0).unwrap().public(), first);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&key, Some(12345), None).unwrap();
            let refused = load_or_create(&directory.0).unwrap_err();
            assert!(matches!(refused, KeyError::Exposed { exposure: Exposure::Owner(12345), .. }));
        }
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let directory = Directory::new();
        write_file(&directory.0, &directory.0.join("key"), b"not a key", Replace::Never).unwrap();
        assert!(matches!(load_or_create(&directory.0), Err(KeyError::Damaged { .. })));
        assert_eq!(std::fs::read(directory.0.join("key")).unwrap(), b"not a key");
    }

    #[test]
    fn concurrent_calls_get_the_same_key() {
        let directory = Directory::new();
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| load_or_create(&directory.0).unwrap().public())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
    }
}
