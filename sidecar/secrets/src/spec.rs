//! What a checked configuration says about a secret: where it comes from and how its values are treated.
//!
//! What must stay true: nothing here holds a credential; a Vault path means the same in a URL as in the configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use relay_proto::name::Name;

/// Every secret of a configuration.
pub type SecretSpecs = BTreeMap<Name, Arc<SecretSpec>>;

/// Limits for reading a source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SourceLimits {
    /// The most bytes that a source may return.
    pub bytes: usize,
    pub exec_timeout: Duration,
}

/// One secret: where its values come from, and how they are treated.
#[derive(Clone, Debug)]
pub struct SecretSpec {
    pub name: Name,
    pub origin: Origin,
    /// Fields that are not secret: they are not scrubbed, and may be short.
    pub public: Vec<String>,
    pub short: ShortValues,
}

#[derive(Clone, Debug)]
pub enum Origin {
    Env(String),
    /// The output of a command.
    Exec {
        /// Never empty; argv only, never a shell.
        command: Vec<String>,
        format: ExecFormat,
    },
    File(PathBuf),
    Vault(VaultOrigin),
}

/// What is read from Vault.
#[derive(Clone, Debug)]
pub enum VaultOrigin {
    /// A credential that Vault generates: a lease, a certificate, a token.
    Generated {
        path: VaultPath,
        /// The body to write to the path; `None` reads the path.
        write: Option<BTreeMap<String, serde_json::Value>>,
    },
    /// A static secret in a KV engine, version 1 or 2.
    Kv {
        path: VaultPath,
        /// How often the secret is read again, for a newer version.
        refresh: Duration,
    },
}

impl Origin {
    pub fn is_in_vault(&self) -> bool {
        self.vault().is_some()
    }

    /// What to read from Vault, for a secret that is there.
    pub fn vault(&self) -> Option<&VaultOrigin> {
        match self {
            Self::Vault(origin) => Some(origin),
            Self::Env(_) | Self::Exec { .. } | Self::File(_) => None,
        }
    }

    /// The key of the configuration that names a file or a program of this host, with its path: no sandbox may open it.
    pub fn private_path(&self) -> Option<(&'static str, &Path)> {
        match self {
            Self::Env(_) | Self::Vault(_) => None,
            Self::Exec { command, .. } => command.first().map(|program| ("exec", Path::new(program))),
            Self::File(path) => Some(("file", path)),
        }
    }

    /// The origin as errors and `sessions` name it. Never the arguments of a command: they may hold credentials.
    pub fn description(&self) -> String {
        match self {
            Self::Env(name) => format!("the environment variable `{name}`"),
            Self::Exec { command, .. } => {
                format!("the command `{}`", command.first().map_or("", String::as_str))
            }
            Self::File(path) => format!("the file `{}`", path.display()),
            Self::Vault(origin) => format!("Vault's `{}`", origin.path()),
        }
    }

    /// Whether the values may change during a session.
    pub fn may_change(&self) -> bool {
        self.is_in_vault() || matches!(self, Self::Exec { format: ExecFormat::Expiring, .. })
    }

    /// Whether each read makes another credential, such as a database user or a certificate.
    pub fn makes_credentials(&self) -> bool {
        matches!(
            self,
            Self::Vault(VaultOrigin::Generated { .. }) | Self::Exec { format: ExecFormat::Expiring, .. }
        )
    }
}

impl VaultOrigin {
    pub fn path(&self) -> &VaultPath {
        match self {
            Self::Generated { path, .. } | Self::Kv { path, .. } => path,
        }
    }
}

/// What a command prints.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ExecFormat {
    /// A JSON object of fields, or one value; without an expiry.
    #[default]
    Plain,
    /// Fields and when they expire; the command is run again before that.
    Expiring,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShortValues {
    /// `short = "allow"`: values under 8 bytes are used, and scrubbed even inside other text.
    Allow,
    Refuse,
}

/// A path in Vault below `/v1/`: not percent-encoded, without a slash at either end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VaultPath(Box<str>);

/// Longer than any path in use; keeps the request line bounded.
const MAX_PATH_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidVaultPath {
    #[error("holds a brace, but templates are not supported there")]
    Brace,
    #[error("holds a control character")]
    Control,
    #[error("has a part that is `.` or `..`")]
    Dots,
    #[error("is empty")]
    Empty,
    #[error("holds `%` or `\\`")]
    Encoded,
    #[error("has two slashes with nothing between them")]
    EmptyPart,
    #[error("holds `?` or `#`")]
    Query,
    #[error("begins or ends with a slash")]
    Slash,
    #[error("is longer than {MAX_PATH_BYTES} bytes")]
    TooLong,
}

impl VaultPath {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl InvalidVaultPath {
    /// The next step for the author of the path.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Brace | Self::Control | Self::Empty | Self::TooLong => {
                "write a path such as `secret/github`"
            }
            Self::Dots | Self::EmptyPart => {
                "write the path without empty, `.` or `..` parts, as `secret/github`"
            }
            Self::Encoded => "write the path as Vault shows it; it is encoded when it is sent",
            Self::Query => {
                "leave out the `?` or `#` and what follows; `write` gives parameters to a path that takes them"
            }
            Self::Slash => "leave the slash out, as in `secret/github`",
        }
    }
}

impl FromStr for VaultPath {
    type Err = InvalidVaultPath;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refusals = [
            (text.is_empty(), InvalidVaultPath::Empty),
            (text.len() > MAX_PATH_BYTES, InvalidVaultPath::TooLong),
            (text.contains(char::is_control), InvalidVaultPath::Control),
            (text.contains(['{', '}']), InvalidVaultPath::Brace),
            (text.contains(['?', '#']), InvalidVaultPath::Query),
            // A proxy that decodes them could turn them into a slash or a dot.
            (text.contains(['%', '\\']), InvalidVaultPath::Encoded),
            (text.starts_with('/') || text.ends_with('/'), InvalidVaultPath::Slash),
            (text.split('/').any(str::is_empty), InvalidVaultPath::EmptyPart),
            (text.split('/').any(|part| matches!(part, "." | "..")), InvalidVaultPath::Dots),
        ];
        match refusals.into_iter().find(|(refused, _)| *refused) {
            Some((_, reason)) => Err(reason),
            None => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for VaultPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
