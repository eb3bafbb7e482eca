//! The checked configuration of Vault: its address and how the sidecar logs in.
//!
//! What must stay true: nothing here holds a credential, only the names of the files that do.

use std::path::{Path, PathBuf};

use cofferdam_secrets::VaultPath;

/// Vault or OpenBao, from `[vault]`.
#[derive(Debug, Eq, PartialEq)]
pub struct Settings {
    /// A scheme, a host and perhaps a port, no more; `http` to loopback only, judged by the text.
    pub address: http::Uri,
    /// Visible ASCII: it is sent in a header.
    pub namespace: Option<VaultPath>,
    /// It contained certificates when it was checked. If set, only these are trusted.
    pub ca_file: Option<PathBuf>,
    pub auth: AuthSettings,
    /// Session tokens are created through this role; without it, as plain children of the login's token.
    pub token_role: Option<String>,
}

/// How the sidecar logs in. Files are read at each login, so they may change. A mount is relative to `auth/`.
#[derive(Debug, Eq, PartialEq)]
pub enum AuthSettings {
    AppRole { mount: VaultPath, role_id_file: PathBuf, secret_id_file: PathBuf, secret_id: SecretIdForm },
    Cert { mount: VaultPath, cert_file: PathBuf, key_file: PathBuf, role: String },
    Jwt { mount: VaultPath, role: String, jwt_file: PathBuf },
    Kubernetes { mount: VaultPath, role: String, jwt_file: PathBuf },
    TokenFile { path: PathBuf },
    Userpass { mount: VaultPath, username: String, password_file: PathBuf },
}

/// What a secret-id file contains.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SecretIdForm {
    /// The secret-id itself.
    Plain,
    /// `secret-id-wrapped = true`: a wrapping token for one use, created by the `secret-id` path of this AppRole.
    Wrapped { role: String },
}

impl AuthSettings {
    /// Whether a login uses up what is in its file.
    pub fn is_wrapped(&self) -> bool {
        matches!(self, Self::AppRole { secret_id: SecretIdForm::Wrapped { .. }, .. })
    }

    /// The name of the method in the configuration.
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

    /// Every file that a login reads, with its key in the configuration.
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
