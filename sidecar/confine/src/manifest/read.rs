//! Reads a manifest's file.
//!
//! What must stay true: no more is read than [`MAX_BYTES`]; a message quotes nothing of the file but words of the vocabulary,
//! because the wrong file may hold a credential.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc;
use serde::Deserialize;
use serde_json::error::Category;

use super::{About, Manifest, Permission};

/// A manifest has about a kilobyte. The limit protects against a wrong file.
const MAX_BYTES: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum ManifestError {
    #[error("it ends in the middle of its JSON")]
    Cut,
    #[error("it is not JSON: see line {line}, column {column}")]
    Syntax { line: usize, column: usize },
    #[error(
        "it is not a manifest: see line {line}, column {column}; it is an object with a list `permissions` of words"
    )]
    Shape { line: usize, column: usize },
    #[error("entry {position} of its `permissions` is not one of the 18 words of AgentManifest")]
    UnknownWord {
        /// From 1.
        position: usize,
        word: String,
    },
    #[error("its `permissions` name `{0}` twice")]
    Duplicate(Permission),
}

/// A manifest as it is in the file. Other keys, such as those for developers, say nothing about what is allowed.
#[derive(Deserialize)]
struct RawManifest {
    name: Option<String>,
    description: Option<String>,
    registry: Option<String>,
    package_name: Option<String>,
    permissions: Vec<String>,
}

impl Manifest {
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let raw: RawManifest = serde_json::from_slice(json).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            match error.classify() {
                Category::Eof => ManifestError::Cut,
                Category::Data => ManifestError::Shape { line, column },
                Category::Io | Category::Syntax => ManifestError::Syntax { line, column },
            }
        })?;
        let RawManifest { name, description, registry, package_name, permissions: words } = raw;
        let mut permissions = BTreeSet::new();
        for (index, word) in words.into_iter().enumerate() {
            let Some(permission) = Permission::from_word(&word) else {
                return Err(ManifestError::UnknownWord { position: index + 1, word });
            };
            if !permissions.insert(permission) {
                return Err(ManifestError::Duplicate(permission));
            }
        }
        Ok(Self { about: About { name, description, registry, package_name }, permissions })
    }
}

/// Reads the file, which must be a regular one: what a link leads to may change without a change of the configuration. Does not
/// block on a pipe.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ELOOP) => io::Error::other("it is a symbolic link: name the file itself"),
            _ => error,
        }
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other("it is larger than 64 KiB, so it is no manifest")),
        false => Ok(bytes),
    }
}
