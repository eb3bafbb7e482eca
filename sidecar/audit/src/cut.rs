//! The mark of a cut: from which file and record on the chain is kept, after older files were removed.
//!
//! It is signed with the audit's key, so that only a program that may read this directory can make one. Like the chain
//! itself it does not protect against an attacker who can do that: for that an earlier head is kept elsewhere.

use std::io;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, read_bounded, write_file};
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::chain::Hash;
use super::error::AuditError;
use super::{files, key};

/// Where the chain begins after a cut.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Cut {
    /// The first file that is kept.
    pub(super) file: u32,
    /// The last record that was removed.
    pub(super) number: u64,
    pub(super) chain: Hash,
}

#[derive(Deserialize, Serialize)]
struct Mark {
    first_file: u32,
    last_removed_record: u64,
    last_removed_chain: String,
    hmac: String,
}

#[derive(Debug, thiserror::Error)]
pub enum CutError {
    #[error("`{}` was not written by `audit prune` with this audit's key", .path.display())]
    Forged { path: PathBuf },
    #[error("read the audit's key")]
    Key(#[source] Box<AuditError>),
    #[error("read `{}`", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Cut {
    /// The mark in this directory, if files were removed.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, CutError> {
        let path = directory.join(FILE_NAME);
        let bytes = match read_bounded(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CutError::Read { path, source }),
        };
        let key = key::load(directory).map_err(|error| CutError::Key(Box::new(error)))?;
        let forged = || CutError::Forged { path: path.clone() };
        let mark: Mark = serde_json::from_slice(&bytes).map_err(|_| forged())?;
        let chain = mark.last_removed_chain.parse().map_err(|_| forged())?;
        let cut = Self { file: mark.first_file, number: mark.last_removed_record, chain };
        match cut.hmac(&key).as_str() == mark.hmac {
            true => Ok(Some(cut)),
            false => Err(forged()),
        }
    }

    /// Replaces the mark in this directory.
    pub(super) fn write(&self, directory: &Path) -> Result<(), AuditError> {
        let mark = Mark {
            first_file: self.file,
            last_removed_record: self.number,
            last_removed_chain: self.chain.to_string(),
            hmac: self.hmac(&key::load(directory)?).to_string(),
        };
        let path = directory.join(FILE_NAME);
        let bytes = serde_json::to_vec(&mark).expect("numbers and texts can be serialised");
        write_file(directory, &path, &bytes, Replace::Always)
            .map_err(AuditError::prepare("cannot write the mark of the cut", &path))
    }

    fn hmac(&self, key: &hmac::Key) -> Hash {
        let text = format!("audit cut\n{}\n{}\n{}", files::file_name(self.file), self.number, self.chain);
        Hash::from_digest(hmac::sign(key, text.as_bytes()).as_ref())
    }
}

/// Not the name of an audit file.
pub(super) const FILE_NAME: &str = "cut.json";
/// A mark has about 250 bytes.
const MAX_BYTES: u64 = 4096;
