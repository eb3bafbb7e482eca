//! What a configuration says of Vault once it has checked: where it is, how the sidecar logs in, and paths in it.
//!
//! Must stay true: nothing here holds a credential, only the files that do; and a path leads where it seems to lead,
//! whoever puts it into a URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Vault or OpenBao, from `[vault]`.
#[derive(Debug, Eq, PartialEq)]
pub struct Vault {
    /// A scheme, a host and perhaps a port, no more; `http` to loopback only, by what is written.
    pub address: http::Uri,
    /// Visible ASCII: it is sent in a header.
    pub namespace: Option<VaultPath>,
    /// It held certificates when it was checked. Where it is named, nothing else is trusted.
    pub ca_file: Option<PathBuf>,
    pub auth: VaultAuth,
    /// Session tokens are minted through this role; without it, as plain children.
    pub token_role: Option<String>,
}

/// How the sidecar logs in. Files are read at each login, so they may change. A mount is below `auth/`, which is not part of it.
#[derive(Debug, Eq, PartialEq)]
pub enum VaultAuth {
    AppRole { mount: VaultPath, role_id_file: PathBuf, secret_id_file: PathBuf, secret_id: SecretId },
    Cert { mount: VaultPath, cert_file: PathBuf, key_file: PathBuf, role: String },
    Jwt { mount: VaultPath, role: String, jwt_file: PathBuf },
    Kubernetes { mount: VaultPath, role: String, jwt_file: PathBuf },
    TokenFile { path: PathBuf },
    Userpass { mount: VaultPath, username: String, password_file: PathBuf },
}

/// What a secret-id file holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SecretId {
    /// The secret-id itself.
    Plain,
    /// `secret-id-wrapped = true`: a wrapping token, good for one unwrapping, made by the `secret-id` path of this AppRole.
    Wrapped { role: String },
}

impl VaultAuth {
    /// The method's name, as it is written.
    pub fn method(&self) -> &'static str {
        match self {
            Self::AppRole { .. } => "approle",
            Self::Cert { .. } => "cert",
            Self::Jwt { .. } => "jwt",
            Self::Kubernetes { .. } => "kubernetes",
            Self::TokenFile { .. } => "token-file",
            Self::Userpass { .. } => "userpass",
        }
    }

    /// Every file that logging in needs, by its key.
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        match self {
            Self::AppRole { role_id_file, secret_id_file, .. } => {
                vec![("role-id-file", role_id_file), ("secret-id-file", secret_id_file)]
            }
            Self::Cert { cert_file, key_file, .. } => vec![("cert-file", cert_file), ("key-file", key_file)],
            Self::Jwt { jwt_file, .. } | Self::Kubernetes { jwt_file, .. } => vec![("jwt-file", jwt_file)],
            Self::TokenFile { path } => vec![("path", path)],
            Self::Userpass { password_file, .. } => vec![("password-file", password_file)],
        }
    }
}

/// A path in Vault below `/v1/`, as Vault knows it: not encoded, without a slash at either end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VaultPath(Box<str>);

/// Nothing that people name is longer, and a request line has its bounds.
const MAX_PATH_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidVaultPath {
    #[error("holds a brace, and templates are not filled there")]
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
    /// The next step for whoever wrote the path.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Brace | Self::Control | Self::Empty | Self::TooLong => {
                "write a path such as `secret/github`"
            }
            Self::Dots | Self::EmptyPart => "write the path without detours, as `secret/github`",
            Self::Encoded => "write the path as Vault shows it; it is encoded when it is sent",
            Self::Query => "leave out what begins there; `write` gives parameters to a path that takes them",
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
            // A decoder on the way would make a slash or a dot of them.
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
