//! `cofferdam.lock`: for each server the whole tree of its package, with versions and digests.
//!
//! What must stay true: a lock that is cut, was changed by hand, or comes from another version of Cofferdam is refused as a whole
//! or, where one server's part is wrong, that part; every package in it has a digest that its registry's file must have.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, read_bounded, write_file};
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// A tree of a thousand packages has less than a megabyte.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
const VERSION: u32 = 1;

/// The content of the file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockFile {
    version: u32,
    pub servers: BTreeMap<String, LockedServer>,
}

/// What is installed for one server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockedServer {
    /// The server's `package` when it was resolved.
    pub package: String,
    /// Whether install scripts may run.
    pub install_scripts: InstallScripts,
    /// For what it was resolved: the operating system, the processor and, for Python packages, the interpreter.
    pub platform: String,
    /// Every package of the tree, sorted.
    pub packages: Vec<LockedPackage>,
    /// Of npm: the tree as `package-lock.json` has it, without addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<serde_json::Value>,
    /// SHA-256 of all this, without the digest itself. It names the directory in the store.
    digest: String,
}

#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockedPackage {
    pub name: String,
    pub version: String,
    /// `sha512-…` in Base64 for npm, `sha256:…` in hexadecimal for Python.
    pub integrity: String,
}

/// Whether packages may run programs of their own while they are installed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstallScripts {
    Allow,
    #[default]
    Deny,
}

/// A part of the lock without its digest, which is computed of it.
#[derive(Serialize)]
struct Digested<'a> {
    package: &'a str,
    install_scripts: InstallScripts,
    platform: &'a str,
    packages: &'a [LockedPackage],
    tree: &'a Option<serde_json::Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("`{}` is cut or was damaged: it is not the JSON that `cofferdam install` writes", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("`{}` was changed by hand, or only in part: the digest of `{server}` is not that of its packages", path.display())]
    Digest { path: PathBuf, server: String },
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` has the format {found}, and this version of Cofferdam knows {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("cannot write `{}`", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Where the lock of a configuration is: beside it, with the ending `.lock`.
pub fn lock_path(configuration: &Path) -> PathBuf {
    configuration.with_extension("lock")
}

impl LockFile {
    /// Reads the lock. An absent file is an empty lock.
    pub fn read(path: &Path) -> Result<Self, LockError> {
        let bytes = match read_bounded(path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(LockError::Read { path: path.to_owned(), source }),
        };
        /// Read first: other versions may have other fields.
        #[derive(Deserialize)]
        struct Format {
            version: u32,
        }
        let damaged = |source| LockError::Damaged { path: path.to_owned(), source };
        let Format { version: found } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if found != VERSION {
            return Err(LockError::Version { path: path.to_owned(), found });
        }
        let lock: Self = serde_json::from_slice(&bytes).map_err(damaged)?;
        match lock.servers.iter().find(|(_, locked)| locked.digest != locked.computed_digest()) {
            Some((server, _)) => Err(LockError::Digest { path: path.to_owned(), server: server.clone() }),
            None => Ok(lock),
        }
    }

    /// Replaces the file as a whole.
    pub fn write(&self, path: &Path) -> Result<(), LockError> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let mut text = serde_json::to_string_pretty(self).expect("a lock is plain data");
        text.push('\n');
        write_file(directory, path, text.as_bytes(), Replace::Always)
            .map_err(|source| LockError::Write { path: path.to_owned(), source })
    }
}

impl Default for LockFile {
    fn default() -> Self {
        Self { version: VERSION, servers: BTreeMap::new() }
    }
}

impl LockedServer {
    pub(crate) fn new(
        package: String,
        install_scripts: InstallScripts,
        platform: String,
        mut packages: Vec<LockedPackage>,
        tree: Option<serde_json::Value>,
    ) -> Self {
        packages.sort_unstable();
        packages.dedup();
        let mut locked = Self { package, install_scripts, platform, packages, tree, digest: String::new() };
        locked.digest = locked.computed_digest();
        locked
    }

    /// The name of its directory in the store.
    pub fn key(&self) -> &str {
        &self.digest
    }

    fn computed_digest(&self) -> String {
        let Self { package, install_scripts, platform, packages, tree, digest: _ } = self;
        let digested = Digested { package, install_scripts: *install_scripts, platform, packages, tree };
        let text = serde_json::to_vec(&digested).expect("a lock is plain data");
        hex(digest(&SHA256, &text).as_ref())
    }
}

impl LockError {
    /// The next step.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Damaged { .. } | Self::Digest { .. } => {
                "restore the file, or remove it and run `cofferdam install` to decide anew"
            }
            Self::Read { .. } => "make it a file that the sidecar's user can read",
            Self::Version { .. } => {
                "use the version of Cofferdam that wrote it, or remove it and run `cofferdam install`"
            }
            Self::Write { .. } => "run `cofferdam install` as a user who may write beside the configuration",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub(crate) fn package(name: &str, version: &str) -> LockedPackage {
        LockedPackage {
            name: name.into(),
            version: version.into(),
            integrity: format!("sha512-{name}{version}"),
        }
    }

    pub(crate) fn server(packages: &[(&str, &str)]) -> LockedServer {
        let packages = packages.iter().map(|(name, version)| package(name, version)).collect();
        let tree = Some(json!({"b": 1, "a": [true]}));
        LockedServer::new("npm:x@1.0.0".into(), InstallScripts::Deny, "linux-x86_64".into(), packages, tree)
    }

    fn written(lock: &LockFile) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = lock_path(&directory.path().join("cofferdam.toml"));
        lock.write(&path).unwrap();
        (directory, path)
    }

    fn example() -> LockFile {
        let servers = BTreeMap::from([("one".to_owned(), server(&[("x", "1.0.0"), ("y", "2.0.0")]))]);
        LockFile { servers, ..LockFile::default() }
    }

    #[test]
    fn a_lock_is_read_as_it_was_written_and_an_absent_one_is_empty() {
        let (directory, path) = written(&example());
        assert!(path.ends_with("cofferdam.lock"));
        assert_eq!(LockFile::read(&path).unwrap(), example());
        assert_eq!(LockFile::read(&directory.path().join("none.lock")).unwrap(), LockFile::default());
    }

    #[test]
    fn a_lock_that_was_changed_is_refused() {
        let (_directory, path) = written(&example());
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in
            [("\"2.0.0\"", "\"2.0.1\""), ("sha512-x", "sha512-z"), ("true", "false"), ("deny", "allow")]
        {
            assert!(text.contains(from), "{from}");
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            assert!(
                matches!(LockFile::read(&path), Err(LockError::Digest { server, .. }) if server == "one"),
                "{from}"
            );
        }
        std::fs::write(&path, text.replacen("\"version\": 1", "\"version\": 2", 1)).unwrap();
        assert!(matches!(LockFile::read(&path), Err(LockError::Version { found: 2, .. })));
        std::fs::write(&path, text.replacen("\"platform\"", "\"host\"", 1)).unwrap();
        assert!(matches!(LockFile::read(&path), Err(LockError::Damaged { .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(LockFile::read(&path), Err(LockError::Read { .. })));
    }

    #[test]
    fn every_part_of_a_lock_changes_its_digest() {
        let base = server(&[("x", "1.0.0")]);
        let mut others = vec![server(&[("x", "1.0.1")]), server(&[])];
        others.push(LockedServer { platform: "linux-aarch64".into(), ..base.clone() });
        others.push(LockedServer { install_scripts: InstallScripts::Allow, ..base.clone() });
        others.push(LockedServer { tree: None, ..base.clone() });
        others.push(LockedServer { package: "npm:x@1.0.1".into(), ..base.clone() });
        for other in others {
            assert_ne!(other.computed_digest(), base.key(), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn a_lock_that_is_cut_anywhere_is_refused(missing in 2..1_000_usize) {
            let (_directory, path) = written(&example());
            let text = std::fs::read(&path).unwrap();
            // Without its last newline the text would be complete.
            std::fs::write(&path, &text[..text.len().saturating_sub(missing)]).unwrap();
            let is_refused = matches!(LockFile::read(&path), Err(LockError::Damaged { .. }));
            prop_assert!(is_refused);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("cofferdam.lock");
            std::fs::write(&path, bytes).unwrap();
            prop_assert!(LockFile::read(&path).is_err());
        }
    }
}
