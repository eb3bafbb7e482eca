//! What a run uses of the user's environment, read once at the start.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use nix::unistd::{User, getuid};

use crate::terminal::failure::{Failure, Sysexit};

#[derive(Debug)]
pub(super) struct Host {
    /// The user's home directory, symbolic links resolved.
    pub(super) home: PathBuf,
    /// The working directory, symbolic links resolved.
    pub(super) directory: PathBuf,
    pub(super) search_path: OsString,
    /// The directory for temporary files, in which the run creates its own.
    pub(super) temporary: PathBuf,
    variables: BTreeMap<OsString, OsString>,
}

impl Host {
    pub(super) fn of_process() -> Result<Self, Failure> {
        let variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let of_account = || User::from_uid(getuid()).ok().flatten().map(|user| user.dir);
        let home = variables.get(OsStr::new("HOME")).map(PathBuf::from).or_else(of_account);
        let home = home.filter(|home| home.is_absolute()).and_then(|home| home.canonicalize().ok());
        let Some(home) = home.filter(|home| home.parent().is_some()) else {
            return Err(Failure::new(
                Sysexit::Configuration,
                "the home directory of this user is not known, does not exist, or is `/`",
            )
            .hint("set HOME to your home directory"));
        };
        let no_directory = |error| {
            Failure::new(Sysexit::NoInput, format!("cannot find the working directory: {error}"))
                .hint("change to a directory that exists")
        };
        let directory = std::env::current_dir().and_then(|path| path.canonicalize()).map_err(no_directory)?;
        let search_path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        let temporary = std::env::temp_dir();
        let temporary = temporary.canonicalize().unwrap_or(temporary);
        Ok(Self { home, directory, search_path, temporary, variables })
    }

    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(OsStr::new(name)).cloned()
    }

    /// The whole environment, for programs that are given the names of variables and read the values themselves.
    pub(super) fn all_variables(&self) -> BTreeMap<OsString, OsString> {
        self.variables.clone()
    }

    /// `LC_ALL`, `LC_CTYPE` and the like.
    pub(super) fn locale_variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let is_locale = |name: &OsStr| name.as_encoded_bytes().starts_with(b"LC_");
        self.variables.clone().into_iter().filter(move |(name, _)| is_locale(name))
    }
}
