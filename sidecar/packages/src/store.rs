//! Installed packages, below the state directory.
//!
//! ```text
//! packages/DIGEST/installed.json    what was installed, and what it must look like
//! packages/DIGEST/tree/             its files, read-only
//! packages/.new-…/                  an installation that is being made
//! ```
//!
//! What must stay true: a directory that is named after a digest is complete, because it is renamed to that name last; only one
//! process installs at a time; what an interrupted installation left is removed by the next one.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, read_bounded, sync_directory, write_file};
use cofferdam_base::{FileLock, FileLockError};
use serde::{Deserialize, Serialize};

use crate::tree;

const MAX_RECORD_BYTES: u64 = 1024 * 1024;
const RECORD: &str = "installed.json";
const TREE: &str = "tree";
const PENDING: &str = ".new-";
const LOCK: &str = ".lock";
const VERSION: u32 = 1;

/// The directory of all installed packages.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Store {
    root: PathBuf,
}

/// What is known of an installed package.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Installed {
    version: u32,
    /// Where it was installed: Python's environments have this path in their files.
    directory: PathBuf,
    /// Node.js, or the Python that the environment was made with, with no link in its path.
    pub(crate) interpreter: PathBuf,
    /// The programs of the package itself: their names, and their paths below the tree.
    pub(crate) programs: BTreeMap<String, String>,
    content: String,
    fingerprint: String,
}

/// An installation that is being made. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Pending {
    directory: PathBuf,
}

/// Held by the process that installs.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _lock: FileLock,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another `cofferdam install` is running in `{}`", .0.display())]
    Busy(PathBuf),
    #[error("cannot {what} in `{}`", directory.display())]
    Io { what: &'static str, directory: PathBuf, source: io::Error },
}

/// Why an installed package is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("its package is not installed")]
    Absent,
    #[error("the files of its package have changed since it was installed")]
    Changed,
    #[error("the interpreter that its package was installed with, `{}`, is gone or another one", .0.display())]
    Interpreter(PathBuf),
    #[error("its package was installed in another directory, and the state directory has moved since")]
    Moved,
    #[error("the files of its package cannot be read")]
    Unreadable(#[source] io::Error),
}

/// How thoroughly the files of a package are compared with what was installed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Inspection {
    /// All content is read.
    Content,
    /// The content is read only if a name, size or time is another.
    Quick,
}

impl Store {
    pub fn in_state(state_dir: &Path) -> Self {
        Self { root: state_dir.join("packages") }
    }

    /// The files of a package.
    pub(crate) fn tree(&self, key: &str) -> PathBuf {
        self.root.join(key).join(TREE)
    }

    /// What is installed, if its files are those that were installed. Reads files, so it blocks.
    pub(crate) fn inspect(&self, key: &str, inspection: Inspection) -> Result<Installed, Unusable> {
        let directory = self.root.join(key);
        let installed: Installed = match read_bounded(&directory.join(RECORD), MAX_RECORD_BYTES) {
            // A record that cannot be understood belongs to another version of Cofferdam, or was changed.
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| Unusable::Changed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unusable::Absent),
            Err(error) => return Err(Unusable::Unreadable(error)),
        };
        let real = directory.canonicalize().map_err(Unusable::Unreadable)?;
        if installed.version != VERSION {
            return Err(Unusable::Changed);
        }
        if installed.directory != real {
            return Err(Unusable::Moved);
        }
        let interpreter = &installed.interpreter;
        if !interpreter.canonicalize().is_ok_and(|path| path == *interpreter && path.is_file()) {
            return Err(Unusable::Interpreter(interpreter.clone()));
        }
        let tree = directory.join(TREE);
        let is_same = match inspection {
            Inspection::Quick => {
                tree::fingerprint(&tree).map_err(Unusable::Unreadable)? == installed.fingerprint
            }
            Inspection::Content => false,
        };
        // Times differ also after a backup was restored, and then the content decides.
        match is_same || tree::content_digest(&tree).map_err(Unusable::Unreadable)? == installed.content {
            true => Ok(installed),
            false => Err(Unusable::Changed),
        }
    }

    /// Makes the store where it is missing, and keeps other installations out. Removes what interrupted ones have left.
    pub(crate) fn lock(&mut self) -> Result<StoreLock, StoreError> {
        let failed = |root: &Path, what| {
            let directory = root.to_owned();
            move |source| StoreError::Io { what, directory, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.root)
            .map_err(failed(&self.root, "make the store"))?;
        // Python's environments have their path in their files, so it must be the real one.
        self.root = self.root.canonicalize().map_err(failed(&self.root, "find the store"))?;
        let lock = FileLock::take(&self.root.join(LOCK)).map_err(|error| match error {
            FileLockError::Held => StoreError::Busy(self.root.clone()),
            FileLockError::Io(source) => failed(&self.root, "lock the store")(source),
        })?;
        let entries = fs::read_dir(&self.root).map_err(failed(&self.root, "list the store"))?;
        for entry in
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PENDING))
        {
            tree::remove(&entry.path()).map_err(failed(&self.root, "remove an interrupted installation"))?;
        }
        Ok(StoreLock { _lock: lock })
    }

    /// Begins an installation. The store must be locked.
    pub(crate) fn begin(&self, _lock: &StoreLock) -> Result<Pending, StoreError> {
        let directory = self.root.join(format!("{PENDING}{}", cofferdam_base::random::hex::<8>()));
        let pending = Pending { directory };
        let failed = |source| StoreError::Io {
            what: "make a directory for the installation",
            directory: self.root.clone(),
            source,
        };
        for directory in [pending.directory.clone(), pending.tree(), pending.work(), pending.temporary()] {
            DirBuilder::new().mode(0o755).create(directory).map_err(failed)?;
        }
        Ok(pending)
    }

    /// Completes an installation: from now on it can be started.
    pub(crate) fn finish(
        &self,
        pending: Pending,
        key: &str,
        interpreter: PathBuf,
        programs: BTreeMap<String, String>,
    ) -> Result<(), StoreError> {
        let place = self.root.join(key);
        let complete = || -> io::Result<()> {
            tree::remove(&pending.work())?;
            let tree = pending.tree();
            tree::make_read_only(&tree)?;
            let installed = Installed {
                version: VERSION,
                directory: place.clone(),
                interpreter,
                programs,
                content: tree::content_digest(&tree)?,
                fingerprint: tree::fingerprint(&tree)?,
            };
            let record = serde_json::to_vec_pretty(&installed).map_err(io::Error::other)?;
            let directory = &pending.directory;
            write_file(directory, &directory.join(RECORD), &record, Replace::Always)?;
            if place.exists() {
                // It was found unusable. Between these two steps it is absent, which a server's start reports as such.
                fs::rename(&place, self.root.join(format!("{PENDING}replaced-{key}")))?;
            }
            fs::rename(directory, &place)?;
            sync_directory(&self.root)
        };
        complete().map_err(|source| StoreError::Io {
            what: "complete the installation",
            directory: self.root.clone(),
            source,
        })?;
        let replaced = self.root.join(format!("{PENDING}replaced-{key}"));
        if replaced.exists() {
            // If this fails, the next installation tries again.
            let _ = tree::remove(&replaced);
        }
        Ok(())
    }
}

impl Pending {
    /// The files of the package.
    pub(crate) fn tree(&self) -> PathBuf {
        self.directory.join(TREE)
    }

    /// For what is needed only while it is installed.
    pub(crate) fn work(&self) -> PathBuf {
        self.directory.join("work")
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.work().join("tmp")
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After `finish` it is not there any more; otherwise the next installation tries again.
        let _ = tree::remove(&self.directory);
    }
}

impl StoreError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Busy(_) => "wait until it has ended",
            Self::Io { .. } => {
                "run `cofferdam install` as the sidecar's user or as root, and look at the space on the disk"
            }
        }
    }
}

/// The sidecar's own files, without the directories around a package: from these, what belongs to the package is shown to it.
pub fn without_those_around(package: &Path, private: &[PathBuf]) -> Vec<PathBuf> {
    let is_around = |path: &PathBuf| {
        package.starts_with(path) || path.canonicalize().is_ok_and(|real| package.starts_with(real))
    };
    private.iter().filter(|path| !is_around(path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123";

    struct Example {
        directory: tempfile::TempDir,
        store: Store,
    }

    fn example() -> Example {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::in_state(directory.path());
        Example { directory, store }
    }

    impl Example {
        fn install(&mut self) {
            let lock = self.store.lock().unwrap();
            let pending = self.store.begin(&lock).unwrap();
            fs::write(pending.tree().join("server.js"), "content").unwrap();
            let interpreter = Path::new("/bin/sh").canonicalize().unwrap();
            let programs = BTreeMap::from([("server".to_owned(), "server.js".to_owned())]);
            self.store.finish(pending, KEY, interpreter, programs).unwrap();
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.directory.path().join("packages")).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn only_directories_around_a_package_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        fs::create_dir(real.join("state")).unwrap();
        std::os::unix::fs::symlink("state", real.join("link")).unwrap();
        let private = ["state", "link", "state/packages/2", "key"].map(|name| real.join(name));
        let left = without_those_around(&real.join("state/packages/1/tree"), &private);
        assert_eq!(left, private[2..]);
    }

    #[test]
    fn what_was_installed_is_found_and_nothing_else_is_left() {
        let mut example = example();
        assert!(matches!(example.store.inspect(KEY, Inspection::Quick), Err(Unusable::Absent)));
        example.install();
        let installed = example.store.inspect(KEY, Inspection::Quick).unwrap();
        assert_eq!(installed.programs["server"], "server.js");
        assert_eq!(installed, example.store.inspect(KEY, Inspection::Content).unwrap());
        assert_eq!(example.names(), [".lock", KEY]);
        example.install();
        assert_eq!(example.names(), [".lock", KEY]);
    }

    #[test]
    fn a_changed_or_moved_package_is_not_used() {
        let mut example = example();
        example.install();
        let file = example.store.tree(KEY).join("server.js");
        fs::remove_file(&file)
            .or_else(|_| {
                make_writable_for_test(&example.store.tree(KEY));
                fs::remove_file(&file)
            })
            .unwrap();
        fs::write(&file, "other").unwrap();
        for inspection in [Inspection::Quick, Inspection::Content] {
            assert!(matches!(example.store.inspect(KEY, inspection), Err(Unusable::Changed)));
        }
        // The same content at another time is as good as before.
        fs::write(&file, "content").unwrap();
        example.store.inspect(KEY, Inspection::Quick).unwrap();
        let moved = example.directory.path().join("moved");
        fs::rename(example.directory.path().join("packages"), &moved).unwrap();
        let store = Store { root: moved };
        assert!(matches!(store.inspect(KEY, Inspection::Quick), Err(Unusable::Moved)));
    }

    fn make_writable_for_test(directory: &Path) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_damaged_record_or_another_interpreter_is_noticed() {
        let mut example = example();
        example.install();
        let record = example.directory.path().join("packages").join(KEY).join(RECORD);
        let text = fs::read_to_string(&record).unwrap();
        let interpreter = Path::new("/bin/sh").canonicalize().unwrap();
        fs::write(&record, text.replace(interpreter.to_str().unwrap(), "/nonexistent/python3")).unwrap();
        assert!(matches!(example.store.inspect(KEY, Inspection::Quick), Err(Unusable::Interpreter(_))));
        fs::write(&record, &text[..text.len() / 2]).unwrap();
        assert!(matches!(example.store.inspect(KEY, Inspection::Quick), Err(Unusable::Changed)));
    }

    #[test]
    fn what_an_interrupted_installation_left_is_removed_and_only_one_runs() {
        let mut example = example();
        let lock = example.store.lock().unwrap();
        let pending = example.store.begin(&lock).unwrap();
        fs::write(pending.tree().join("half"), "").unwrap();
        tree::make_read_only(&pending.tree()).unwrap();
        // As after `kill -9`: nothing is dropped.
        std::mem::forget(pending);
        assert!(matches!(example.store.clone().lock(), Err(StoreError::Busy(_))));
        drop(lock);
        drop(example.store.lock().unwrap());
        assert_eq!(example.names(), [".lock"]);
    }
}
