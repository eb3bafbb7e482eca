//! Which registry to use, and with which credential: from the user's own settings of npm and pip.
//!
//! What must stay true: a credential is in a [`Secret`] from the moment it is read; it is passed on only for the host that the
//! settings name it for.

mod npm;
mod pip;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use cofferdam_egress::{AllowedHost, InvalidHost};
use cofferdam_process::Variable;
use cofferdam_secrets::{Secret, occurs_in, variable};
use zeroize::Zeroizing;

pub(crate) use npm::npm_settings;
pub(crate) use pip::pip_settings;

const MAX_BYTES: u64 = 256 * 1024;

/// A registry as a package manager is told of it.
#[derive(Debug)]
pub(crate) struct RegistrySettings {
    /// The only hosts that an installation may connect to.
    pub(crate) hosts: Vec<AllowedHost>,
    /// Environment variables of the package manager.
    plain: Vec<(OsString, String)>,
    /// The same, for credentials.
    credentials: Vec<(OsString, Secret)>,
    /// The certificates that the registry's own is checked with, if the settings name them.
    pub(crate) certificates: Option<PathBuf>,
}

/// Where settings come from.
pub struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Without the address, which may contain a password.
    #[error("the address of a registry in the settings of {tool} is not a URL with a host: see `{key}`")]
    Address { tool: &'static str, key: String },
    #[error("the settings of {tool} name a registry that cannot be reached by name")]
    Host { tool: &'static str, source: InvalidHost },
    #[error("cannot read the settings of {tool} in `{}`", path.display())]
    Read { tool: &'static str, path: PathBuf, source: std::io::Error },
}

impl RegistrySettings {
    pub(crate) fn variables(&self) -> Vec<Variable> {
        let plain =
            self.plain.iter().map(|(name, value)| (name.clone(), Zeroizing::new(value.clone().into_bytes())));
        plain.chain(self.credentials.iter().map(|(name, value)| variable(name.clone(), value))).collect()
    }

    /// Whether a credential is in a text, which then must not be shown.
    pub(crate) fn occur_in(&self, text: &[u8]) -> bool {
        self.credentials.iter().any(|(_, value)| occurs_in(value, text))
    }
}

impl Surroundings<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok().filter(|text| !text.is_empty())
    }

    fn home(&self) -> Option<PathBuf> {
        self.text("HOME").map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// The text of a settings file; `None` if there is none.
fn read(tool: &'static str, path: &Path) -> Result<Option<Zeroizing<String>>, SettingsError> {
    let failed = |source| SettingsError::Read { tool, path: path.to_owned(), source };
    // Settings are often links, to a mounted secret or into a directory of dot files.
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let bytes = Zeroizing::new(cofferdam_base::atomic_file::read_bounded(&real, MAX_BYTES).map_err(failed)?);
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(error) => Err(failed(std::io::Error::other(error))),
    }
}

/// The host of a registry's address, as an entry of the network. The user chose it, so it may have any address.
fn host(tool: &'static str, key: &str, address: &str) -> Result<AllowedHost, SettingsError> {
    let invalid = || SettingsError::Address { tool, key: key.to_owned() };
    let uri: http::Uri = address.parse().map_err(|_| invalid())?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("https" | "http"), Some(port)) => port,
        (Some("https"), None) => 443,
        (Some("http"), None) => 80,
        _ => return Err(invalid()),
    };
    let host = uri.host().ok_or_else(invalid)?;
    AllowedHost::chosen(host, port).map_err(|source| SettingsError::Host { tool, source })
}
