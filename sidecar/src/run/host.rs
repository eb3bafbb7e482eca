//! What a run takes from the machine and the user: read once, so that a plan has no other inputs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use nix::unistd::{User, getuid};

use crate::terminal::failure::{Failure, Sysexit};

#[derive(Debug)]
pub(super) struct Host {
    /// The user's home, links resolved.
    pub(super) home: PathBuf,
    /// The working directory, links resolved.
    pub(super) directory: PathBuf,
    pub(super) search_path: OsString,
    /// Where the run's own directory is made.
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
                "the home of this user is not known, or is `/`",
            )
            .hint("set HOME to a directory that is the user's own"));
        };
        let unreadable = |error| {
            Failure::new(Sysexit::NoInput, format!("find the working directory: {error}"))
                .hint("change to a directory that exists")
        };
        let directory = std::env::current_dir().and_then(|path| path.canonicalize()).map_err(unreadable)?;
        let search_path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        let temporary = std::env::temp_dir();
        let temporary = temporary.canonicalize().unwrap_or(temporary);
        Ok(Self { home, directory, search_path, temporary, variables })
    }

    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(OsStr::new(name)).cloned()
    }

    /// The whole environment, for programs that take values from it by name.
    pub(super) fn all_variables(&self) -> BTreeMap<OsString, OsString> {
        self.variables.clone()
    }

    /// `LC_ALL`, `LC_CTYPE` and the like.
    pub(super) fn locale(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let of_locale = |name: &OsStr| name.as_encoded_bytes().starts_with(b"LC_");
        self.variables.clone().into_iter().filter(move |(name, _)| of_locale(name))
    }
}
