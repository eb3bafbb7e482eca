//! Files with secrets, for servers that read them from files: in memory, readable by the owner only, removed with the server.
//!
//! ```text
//! /dev/shm/cofferdam-UID/     or $XDG_RUNTIME_DIR/cofferdam; locked while its directories are created or removed
//!     PID-N/                  of one sidecar, locked as long as that sidecar lives
//!         M/                  of one server process
//!             client.pem
//! ```
//!
//! What must stay true: the root directory is memory-backed (it may be swapped, as any memory), owned by this user and
//! closed to other users; a sidecar removes only directories whose lock is free, and follows no symbolic link.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::OFlag;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use super::fill::{InjectError, Secrets, fill};
use super::template::Template;

/// How many numbers are tried for a new directory: processes of other PID namespaces may use the same names.
const DIRECTORY_ATTEMPTS: u32 = 100;

/// This sidecar's directory. Removed with the last [`FileSet`] in it.
#[derive(Clone, Debug)]
pub struct FileStore(Arc<SidecarDirectory>);

/// The files of one server process. Removed when dropped.
#[derive(Debug)]
pub struct FileSet {
    directory: PathBuf,
    paths: BTreeMap<String, PathBuf>,
    _store: FileStore,
}

#[derive(Debug)]
struct SidecarDirectory {
    path: PathBuf,
    next: AtomicU64,
    /// The open directory. It is locked while this sidecar runs, so other sidecars do not remove it.
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("fill the injected file `{name}`")]
    Fill { name: String, source: InjectError },
    #[error("`{name}` cannot be the name of an injected file: it is a path, empty or too long")]
    InvalidName { name: String },
    #[error(
        "no memory-backed directory for injected files: set XDG_RUNTIME_DIR to one, or mount a tmpfs at /dev/shm"
    )]
    NoMemoryBackedDirectory(#[source] io::Error),
    #[error("write the injected file `{name}`")]
    Write { name: String, source: io::Error },
}

impl FileStore {
    /// Creates this sidecar's directory and removes those of dead sidecars.
    pub fn open() -> Result<Self, FileError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
        let shared = PathBuf::from(format!("/dev/shm/cofferdam-{}", nix::unistd::geteuid()));
        let runtime = runtime.map(|path| PathBuf::from(path).join("cofferdam"));
        let mut problem = io::Error::from(io::ErrorKind::NotFound);
        for root in runtime.into_iter().chain([shared]) {
            match Self::open_at(&root) {
                Ok(store) => return Ok(store),
                Err(error) => problem = error,
            }
        }
        Err(FileError::NoMemoryBackedDirectory(problem))
    }

    /// Writes the files of one server process.
    pub fn write(
        &self,
        templates: &BTreeMap<String, Template>,
        secrets: &Secrets,
    ) -> Result<FileSet, FileError> {
        if let Some(name) = templates.keys().find(|name| !is_plain_name(name)) {
            return Err(FileError::InvalidName { name: name.clone() });
        }
        let directory = self.0.path.join(self.0.next.fetch_add(1, Ordering::Relaxed).to_string());
        let path = |name: &String| (name.clone(), directory.join(name));
        let paths = templates.keys().map(path).collect();
        // Created before anything is written, so that a failure below removes the directory.
        let set = FileSet { directory, paths, _store: self.clone() };
        let failed = |name: &str, source| FileError::Write { name: name.into(), source };
        if let Some(name) = templates.keys().next() {
            create_private_directory(&set.directory).map_err(|error| failed(name, error))?;
        }
        for (name, template) in templates {
            let content = fill(template, secrets, &set.paths)
                .map_err(|source| FileError::Fill { name: name.clone(), source })?;
            write_private(&set.paths[name], &content).map_err(|error| failed(name, error))?;
        }
        Ok(set)
    }

    fn open_at(root: &Path) -> io::Result<Self> {
        match create_private_directory(root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let directory = open_directory(root)?;
        check_root(&directory)?;
        // The root is locked until the new directory has its own lock: otherwise another sidecar could remove that
        // directory.
        directory.lock()?;
        remove_dead_sidecars(root)?;
        let process = std::process::id();
        for number in 0..DIRECTORY_ATTEMPTS {
            let path = root.join(format!("{process}-{number}"));
            match create_private_directory(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            let lock = open_directory(&path)?;
            lock.lock()?;
            return Ok(Self(Arc::new(SidecarDirectory { path, next: AtomicU64::new(0), _lock: lock })));
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl FileSet {
    /// Writes the same files with other values. A reader of a file finds either the whole old or the whole new content; if
    /// one of the files cannot be filled, all stay as they are.
    pub fn rewrite(
        &self,
        templates: &BTreeMap<String, Template>,
        secrets: &Secrets,
    ) -> Result<(), FileError> {
        let mut ready = Vec::new();
        let prepared = templates.iter().try_for_each(|(name, template)| {
            let Some(path) = self.paths.get(name) else {
                return Err(FileError::InvalidName { name: name.clone() });
            };
            let content = fill(template, secrets, &self.paths)
                .map_err(|source| FileError::Fill { name: name.clone(), source })?;
            // No injected file's name begins with a dot.
            let new = self.directory.join(format!(".{name}"));
            let written = write_private(&new, &content);
            ready.push((name, new, path));
            written.map_err(|source| FileError::Write { name: name.clone(), source })
        });
        if let Err(error) = prepared {
            for (_, new, _) in &ready {
                // A file that cannot be removed now is removed with its directory.
                let _ = std::fs::remove_file(new);
            }
            return Err(error);
        }
        ready.into_iter().try_for_each(|(name, new, path)| {
            std::fs::rename(new, path).map_err(|source| FileError::Write { name: name.clone(), source })
        })
    }

    /// Where the files are. `None` if there are none.
    pub fn directory(&self) -> Option<&Path> {
        (!self.paths.is_empty()).then_some(self.directory.as_path())
    }

    /// The paths by file name, for `{file:NAME}`.
    pub fn paths(&self) -> &BTreeMap<String, PathBuf> {
        &self.paths
    }
}

impl Drop for FileSet {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

impl Drop for SidecarDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes the directories of dead sidecars. The caller has locked `root`.
fn remove_dead_sidecars(root: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        // Anything but a directory is left alone.
        let Ok(directory) = open_directory(&path) else { continue };
        if directory.try_lock().is_ok() {
            remove(&path);
        }
    }
    Ok(())
}

fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits()).open(path)
}

/// Checks the open directory, so that it cannot be exchanged between check and use.
fn check_root(directory: &File) -> io::Result<()> {
    let metadata = directory.metadata()?;
    if metadata.uid() != nix::unistd::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user or is open to others",
        ));
    }
    match is_in_memory(directory)? {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::Unsupported, "it is not on a tmpfs")),
    }
}

fn is_in_memory(directory: &File) -> io::Result<bool> {
    Ok(fstatfs(directory)?.filesystem_type() == TMPFS_MAGIC)
}

fn remove(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "injected files could not be removed");
        }
        _ => {}
    }
}

fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::template::TemplatePart;
    use super::*;

    /// A memory-backed directory of one test, removed with it.
    struct TestDirectory(PathBuf);

    impl TestDirectory {
        fn new(test: &str) -> Self {
            let root = PathBuf::from(format!("/dev/shm/cofferdam-test-{test}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            Self(root)
        }
    }

    impl Drop for TestDirectory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn literal(text: &str) -> Template {
        Template { parts: vec![TemplatePart::Literal(text.into())] }
    }

    #[test]
    fn files_are_private_and_removed_with_the_server() {
        let root = TestDirectory::new("private");
        let store = FileStore::open_at(&root.0).unwrap();
        let pointer = Template { parts: vec![TemplatePart::File("key.pem".into())] };
        let templates =
            BTreeMap::from([("key.pem".to_owned(), literal("KEY")), ("pointer".to_owned(), pointer)]);
        let set = store.write(&templates, &Secrets::new()).unwrap();
        let key = set.paths()["key.pem"].clone();
        assert_eq!(std::fs::read(&key).unwrap(), b"KEY");
        assert_eq!(std::fs::read_to_string(&set.paths()["pointer"]).unwrap(), key.to_str().unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&key), 0o600);
        assert!(key.ancestors().skip(1).take(3).all(|directory| mode(directory) == 0o700));
        drop(store);
        assert!(key.exists(), "the sidecar's directory exists as long as the set");
        drop(set);
        assert_eq!(std::fs::read_dir(&root.0).unwrap().count(), 0);
    }

    #[test]
    fn a_set_that_cannot_be_filled_leaves_no_files() {
        let root = TestDirectory::new("unfilled");
        let store = FileStore::open_at(&root.0).unwrap();
        let missing = Template { parts: vec![TemplatePart::File("missing".into())] };
        let templates = BTreeMap::from([("a".to_owned(), literal("KEY")), ("b".to_owned(), missing)]);
        assert!(
            matches!(store.write(&templates, &Secrets::new()), Err(FileError::Fill { name, .. }) if name == "b")
        );
        assert_eq!(std::fs::read_dir(&store.0.path).unwrap().count(), 0);
    }

    #[test]
    fn files_are_rewritten_all_or_none_and_never_in_part() {
        let root = TestDirectory::new("rewritten");
        let store = FileStore::open_at(&root.0).unwrap();
        let templates = |value: &str, second: Template| {
            BTreeMap::from([("a".to_owned(), literal(value)), ("b".to_owned(), second)])
        };
        let set = store.write(&templates("OLD", literal("old")), &Secrets::new()).unwrap();
        let old = File::open(&set.paths()["a"]).unwrap();
        let missing = Template { parts: vec![TemplatePart::File("missing".into())] };
        set.rewrite(&templates("NEW", missing), &Secrets::new()).unwrap_err();
        assert_eq!(std::fs::read(&set.paths()["a"]).unwrap(), b"OLD");
        set.rewrite(&templates("NEW", literal("new")), &Secrets::new()).unwrap();
        assert_eq!(std::fs::read(&set.paths()["a"]).unwrap(), b"NEW");
        assert_eq!(std::fs::read(&set.paths()["b"]).unwrap(), b"new");
        assert_eq!(std::io::read_to_string(old).unwrap(), "OLD", "an open file keeps its content");
        let mode = std::fs::metadata(&set.paths()["a"]).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&set.directory).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        let root = TestDirectory::new("names");
        let store = FileStore::open_at(&root.0).unwrap();
        for name in ["../key", "/etc/key", "", ".", "..", "a/b", "nul\0"] {
            let templates = BTreeMap::from([(name.to_owned(), literal("KEY"))]);
            let error = store.write(&templates, &Secrets::new()).unwrap_err();
            assert!(matches!(error, FileError::InvalidName { .. }), "{name:?}: {error}");
        }
    }

    #[test]
    fn directories_of_dead_sidecars_are_removed_and_those_of_living_ones_kept() {
        let root = TestDirectory::new("sweep");
        let living = FileStore::open_at(&root.0).unwrap();
        let set = living.write(&BTreeMap::from([("k".to_owned(), literal("KEY"))]), &Secrets::new()).unwrap();
        let dead = root.0.join("1-0");
        std::fs::create_dir_all(dead.join("0")).unwrap();
        std::fs::write(dead.join("0/key"), "KEY").unwrap();
        let outside = TestDirectory::new("outside");
        std::fs::create_dir(&outside.0).unwrap();
        std::fs::write(outside.0.join("kept"), "").unwrap();
        std::os::unix::fs::symlink(&outside.0, dead.join("link")).unwrap();
        std::os::unix::fs::symlink(&outside.0, root.0.join("2-0")).unwrap();
        let second = FileStore::open_at(&root.0).unwrap();
        assert!(!dead.exists());
        assert!(set.paths()["k"].exists());
        assert!(outside.0.join("kept").exists());
        assert_ne!(second.0.path, living.0.path);
    }

    #[test]
    fn a_directory_that_is_open_to_others_or_not_in_memory_is_refused() {
        let root = TestDirectory::new("open");
        std::fs::create_dir(&root.0).unwrap();
        std::fs::set_permissions(&root.0, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(FileStore::open_at(&root.0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let link = TestDirectory::new("link");
        std::fs::set_permissions(&root.0, PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&root.0, &link.0).unwrap();
        assert!(FileStore::open_at(&link.0).is_err(), "a symbolic link is refused");
        std::fs::remove_file(&link.0).unwrap();
        assert!(is_in_memory(&File::open("/dev/shm").unwrap()).unwrap());
        assert!(!is_in_memory(&File::open("/proc").unwrap()).unwrap());
    }
}
