//! Mounts of the host's files into the sandbox.
//!
//! What must stay true: the host's system directories are mounted read-only, and of `/etc` only what programs need; of the
//! user's home only what a mount names is in the sandbox.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// A file or directory of the host, and its path in the sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) target: PathBuf,
    pub(super) access: Access,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
}

/// A system directory or file of the host, or a symbolic link to one, in the sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum SystemEntry {
    Mount(Mount),
    /// A symbolic link of the host, such as `/bin` to `usr/bin`.
    Link {
        path: PathBuf,
        target: PathBuf,
    },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidMount {
    #[error("`{}` has an empty part", .0.display())]
    Empty(OsString),
    #[error("the path `{}` in the sandbox must be absolute and without `..`", .0.display())]
    Target(PathBuf),
    #[error("`{}` has more parts than SRC:DST:ro", .0.display())]
    Parts(OsString),
}

/// The system directories. Those that do not exist on the host are omitted.
const SYSTEM_DIRECTORIES: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
/// What programs need of `/etc`: the files for user names, host names and DNS, for CA certificates, the dynamic loader, locale
/// and shells. Other files there may hold credentials.
const ETC_ENTRIES: [&str; 29] = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "pki/tls/certs",
    "profile",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
];

impl Mount {
    pub(super) fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>, access: Access) -> Self {
        Self { source: source.into(), target: target.into(), access }
    }

    /// A mount with the same path on the host and in the sandbox.
    pub(super) fn same(path: impl Into<PathBuf>, access: Access) -> Self {
        let path = path.into();
        Self { source: path.clone(), target: path, access }
    }

    /// Parses `SRC[:DST][:ro|:rw]`. A relative source is relative to `directory`; the default target is the source's path.
    pub(super) fn parse(text: &OsString, directory: &Path) -> Result<Self, InvalidMount> {
        let mut parts: Vec<&[u8]> = text.as_bytes().split(|byte| *byte == b':').collect();
        let access = match parts.last() {
            Some(&b"ro") if parts.len() > 1 => Some(Access::ReadOnly),
            Some(&b"rw") if parts.len() > 1 => Some(Access::ReadWrite),
            _ => None,
        };
        if access.is_some() {
            parts.pop();
        }
        if parts.iter().any(|part| part.is_empty()) {
            return Err(InvalidMount::Empty(text.clone()));
        }
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let (source, target) = match parts[..] {
            [source] => (directory.join(path(source)), None),
            [source, target] => (directory.join(path(source)), Some(path(target))),
            _ => return Err(InvalidMount::Parts(text.clone())),
        };
        let target = target.unwrap_or_else(|| source.clone());
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !target.is_absolute() || !target.components().all(is_plain) {
            return Err(InvalidMount::Target(target));
        }
        Ok(Self { source, target, access: access.unwrap_or(Access::ReadWrite) })
    }
}

/// The system directories and files of the host, for sandboxes without an image.
pub(super) fn system_entries() -> Vec<SystemEntry> {
    let mut entries: Vec<SystemEntry> =
        SYSTEM_DIRECTORIES.iter().filter_map(|path| system_directory(Path::new(path))).collect();
    entries.extend(ETC_ENTRIES.iter().filter_map(|name| {
        let target = Path::new("/etc").join(name);
        // Resolved, because for example `/etc/resolv.conf` is often a link to a file that is not in the sandbox.
        let source = target.canonicalize().ok()?;
        Some(SystemEntry::Mount(Mount::new(source, target, Access::ReadOnly)))
    }));
    entries
}

/// Whether a path is in one of the mounted system directories; `/etc` is none of them.
pub(super) fn is_in_system_directory(path: &Path) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|directory| path.starts_with(directory))
}

fn system_directory(path: &Path) -> Option<SystemEntry> {
    let metadata = fs::symlink_metadata(path).ok()?;
    match metadata.is_symlink() {
        true => Some(SystemEntry::Link { path: path.to_owned(), target: fs::read_link(path).ok()? }),
        false => Some(SystemEntry::Mount(Mount::same(path, Access::ReadOnly))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Mount, String> {
        Mount::parse(&text.into(), Path::new("/work")).map_err(|error| error.to_string())
    }

    #[test]
    fn mounts_are_read_with_and_without_a_target() {
        assert_eq!(parse("data").unwrap(), Mount::same("/work/data", Access::ReadWrite));
        assert_eq!(parse("/a b:ro").unwrap(), Mount::same("/a b", Access::ReadOnly));
        assert_eq!(parse("/a:/b").unwrap(), Mount::new("/a", "/b", Access::ReadWrite));
        assert_eq!(parse("/a:/b:ro").unwrap(), Mount::new("/a", "/b", Access::ReadOnly));
        // Without a colon before it, `ro` is the name of a directory.
        assert_eq!(parse("ro").unwrap(), Mount::same("/work/ro", Access::ReadWrite));
    }

    #[test]
    fn invalid_mounts_are_refused() {
        for text in ["", ":", "/a:", ":/b", "/a:b", "/a:/b/../c", "/a:/b:/c:ro", "/a:/b:rx", "..:ro"] {
            assert!(parse(text).is_err(), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn system_files_that_may_hold_credentials_are_not_mounted() {
        let targets: Vec<PathBuf> = system_entries()
            .into_iter()
            .map(|entry| match entry {
                SystemEntry::Mount(mount) => mount.target,
                SystemEntry::Link { path, .. } => path,
            })
            .collect();
        for hidden in
            ["/", "/etc", "/etc/shadow", "/etc/cofferdam", "/etc/ssl", "/root", "/home", "/var", "/run"]
        {
            assert!(!targets.iter().any(|target| target == Path::new(hidden)), "{hidden}");
        }
        assert!(targets.contains(&"/usr".into()) && targets.contains(&"/etc/passwd".into()), "{targets:?}");
    }
}
