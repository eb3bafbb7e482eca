//! Carries out a plan, in steps of which each is done as a whole or not at all: secrets, then the configuration that names
//! them, then backups, then the settings files.
//!
//! What must stay true: an import that is interrupted between two steps, or in one, has lost nothing, and the same import
//! again continues it. If one of the files was changed since it was read, nothing is written.

use std::error::Error;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use zeroize::Zeroizing;

use crate::edit::EntryPath;
use crate::file_change::{FileVersion, ReplaceError, is_unchanged, replace};
use crate::plan::{Fields, Plan, StoredAt};
use crate::record::Record;
use crate::store::{Store, StoreError};

/// Writes a secret to Vault.
pub trait WriteSecret {
    fn write(&mut self, path: &str, fields: &Fields) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// A plan with everything that it was made from.
pub struct Application<'a> {
    pub store: &'a Store,
    pub plan: &'a Plan,
    pub configuration: &'a Path,
    /// `None` if there was no configuration.
    pub configuration_version: Option<&'a FileVersion>,
    /// All settings files that were read.
    pub read: &'a [(&'a Path, FileVersion)],
    pub changes: &'a [SettingsChange],
}

/// A settings file that is rewritten.
pub struct SettingsChange {
    pub path: PathBuf,
    pub before: FileVersion,
    pub original: Zeroizing<Vec<u8>>,
    pub rewritten: Zeroizing<Vec<u8>>,
    pub entries: Vec<EntryPath>,
}

/// A step that was done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ApplyEvent<'a> {
    BackedUp(&'a Path),
    ConfigurationWritten(&'a Path),
    Rewritten(&'a Path),
    Stored(&'a StoredAt),
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("`{}` was changed by another program meanwhile", .0.display())]
    Changed(PathBuf),
    #[error("this user may not write to the directory `{}`", .0.display())]
    NotWritable(PathBuf),
    #[error("cannot replace `{}`", path.display())]
    Replace {
        path: PathBuf,
        #[source]
        source: ReplaceError,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot store {place}")]
    Vault {
        place: StoredAt,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Calls `done` after each step.
pub fn apply(
    application: &Application<'_>,
    vault: &mut dyn WriteSecret,
    done: &mut dyn FnMut(ApplyEvent<'_>),
) -> Result<(), ApplyError> {
    let Application { store, plan, configuration, configuration_version, read, changes } = application;
    check_writable(application)?;
    if let Some(parent) = configuration.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)
            .map_err(|source| StoreError::Write { path: parent.to_owned(), source })?;
    }
    // A record that cannot be used is found before anything is written.
    if !changes.is_empty() {
        Record::read(store)?;
    }
    let _lock = store.open()?;
    // Under the lock, so that another import is either seen here or waits.
    let files = read.iter().map(|(path, version)| (*path, Some(version)));
    let files = files.chain([(*configuration, *configuration_version)]);
    if let Some((path, _)) = files.into_iter().find(|(path, version)| !is_unchanged(path, *version)) {
        return Err(ApplyError::Changed(path.to_owned()));
    }
    for secret in &plan.secrets {
        match &secret.place {
            StoredAt::File(path) => store.write_secret(path, &secret.fields)?,
            StoredAt::Kv(path) => vault
                .write(path, &secret.fields)
                .map_err(|source| ApplyError::Vault { place: secret.place.clone(), source })?,
        }
        done(ApplyEvent::Stored(&secret.place));
    }
    let written = hexadecimal_of(&plan.configuration);
    if configuration_version.is_none_or(|version| version.digest != written) {
        replace_file(configuration, plan.configuration.as_bytes(), *configuration_version)?;
        done(ApplyEvent::ConfigurationWritten(configuration));
    }
    if changes.is_empty() {
        return Ok(());
    }
    let mut record = Record::read(store)?;
    for change in *changes {
        record.add(&change.path, &change.original, &change.rewritten, &change.entries)?;
        done(ApplyEvent::BackedUp(&change.path));
        replace_file(&change.path, &change.rewritten, Some(&change.before))?;
        done(ApplyEvent::Rewritten(&change.path));
    }
    Ok(())
}

fn hexadecimal_of(text: &str) -> String {
    crate::file_change::hexadecimal(text.as_bytes())
}

fn replace_file(path: &Path, bytes: &[u8], expected: Option<&FileVersion>) -> Result<(), ApplyError> {
    replace(path, bytes, expected).map_err(|source| match source {
        ReplaceError::Changed => ApplyError::Changed(path.to_owned()),
        source => ApplyError::Replace { path: path.to_owned(), source },
    })
}

/// A directory that cannot be written to is found before anything is written.
fn check_writable(application: &Application<'_>) -> Result<(), ApplyError> {
    let settings = application.changes.iter().filter_map(|change| change.path.parent());
    let written = [Some(application.store.directory()), application.configuration.parent()];
    for directory in settings.chain(written.into_iter().flatten()) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let Some(existing) = directory.ancestors().find(|ancestor| ancestor.exists()) else { continue };
        if access(existing, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
            return Err(ApplyError::NotWritable(existing.to_owned()));
        }
    }
    Ok(())
}
