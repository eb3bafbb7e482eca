//! The six ways to log in.
//!
//! What must stay true: credential files are read anew at each login, bounded, into wiped memory; what a login needs goes
//! into one request and no error.

use std::path::{Path, PathBuf};

use cofferdam_base::text::error_chain;
use cofferdam_secrets::{FileContent, read_file};
use zeroize::Zeroizing;

use super::backend::GrantedToken;
use super::wrapped::{WrappedSecretId, creation_path};
use crate::api::{Vault, post};
use crate::body::Body;
use crate::error::{Problem, RequestLine, VaultError};
use crate::token::Token;
use crate::trust::read_identity;

/// More than any token, password or secret-id; a JSON Web Token has a few KB.
const MAX_CREDENTIAL: usize = 64 * 1024;

/// How the sidecar logs in. Mounts are names below `auth/`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Method {
    AppRole {
        mount: String,
        role_id_file: PathBuf,
        secret_id: SecretId,
    },
    Cert {
        mount: String,
        certificate_file: PathBuf,
        key_file: PathBuf,
        role: Option<String>,
    },
    Jwt {
        mount: String,
        role: String,
        jwt_file: PathBuf,
    },
    Kubernetes {
        mount: String,
        role: String,
        jwt_file: PathBuf,
    },
    /// A token that the operator made and keeps; never revoked.
    TokenFile {
        path: PathBuf,
    },
    Userpass {
        mount: String,
        username: String,
        password_file: PathBuf,
    },
}

/// What proves an AppRole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SecretId {
    Plain {
        file: PathBuf,
    },
    /// The file holds a wrapping token, which has to be made by the `secret-id` path of the AppRole with this name.
    Wrapped {
        file: PathBuf,
        role: String,
    },
}

/// A method and what it has learned: a secret-id that was unwrapped is kept here.
pub(super) struct Authenticator {
    method: Method,
    wrapped: WrappedSecretId,
}

impl Authenticator {
    pub(super) fn new(method: Method) -> Self {
        Self { method, wrapped: WrappedSecretId::default() }
    }

    pub(super) async fn log_in(&mut self, vault: &Vault) -> Result<GrantedToken, VaultError> {
        let asked = self.method.asked();
        let body = match &self.method {
            Method::AppRole { mount, role_id_file, secret_id } => {
                let role_id = text(role_id_file, &asked).await?;
                let secret_id = match secret_id {
                    SecretId::Plain { file } => text(file, &asked).await?,
                    SecretId::Wrapped { file, role } => {
                        let wrap = token(file, &asked).await?;
                        self.wrapped.secret_id(vault, &wrap, &creation_path(mount, role)).await?
                    }
                };
                Body::new().secret("role_id", role_id).secret("secret_id", secret_id)
            }
            Method::Cert { certificate_file, key_file, role, .. } => {
                let (certificate, key) = (certificate_file.clone(), key_file.clone());
                let identity = blocking(move || read_identity(&certificate, &key)).await;
                let shown = identity.and_then(|identity| vault.present(identity));
                shown.map_err(|error| credential(certificate_file, error_chain(&error), &asked))?;
                match role {
                    Some(role) => Body::new().with("name", role.as_str()),
                    None => Body::new(),
                }
            }
            Method::Jwt { role, jwt_file, .. } | Method::Kubernetes { role, jwt_file, .. } => {
                Body::new().with("role", role.as_str()).secret("jwt", text(jwt_file, &asked).await?)
            }
            Method::TokenFile { path } => {
                let token = token(path, &asked).await?;
                let facts = vault.lookup_self(&token).await?;
                return Ok(GrantedToken::found(token, facts));
            }
            Method::Userpass { password_file, .. } => {
                Body::new().secret("password", text(password_file, &asked).await?)
            }
        };
        Ok(vault.auth(&post(None, &asked.path, body)).await?.into())
    }
}

impl Method {
    /// The request that logs in.
    pub(super) fn asked(&self) -> RequestLine {
        let path = match self {
            Self::AppRole { mount, .. }
            | Self::Cert { mount, .. }
            | Self::Jwt { mount, .. }
            | Self::Kubernetes { mount, .. } => format!("auth/{mount}/login"),
            Self::TokenFile { .. } => {
                return RequestLine { method: http::Method::GET, path: "auth/token/lookup-self".into() };
            }
            Self::Userpass { mount, username, .. } => format!("auth/{mount}/login/{username}"),
        };
        RequestLine { method: http::Method::POST, path }
    }
}

pub(super) async fn token(file: &Path, asked: &RequestLine) -> Result<Token, VaultError> {
    let bytes = bytes(file, asked).await?;
    Token::read(&bytes).map_err(|error| credential(file, error.to_string(), asked))
}

/// Whether a file can be read and holds something, without keeping it.
pub(super) async fn credential_is_there(file: &Path, asked: &RequestLine) -> Result<(), VaultError> {
    text(file, asked).await.map(drop)
}

/// A text without the newline at its end.
async fn text(file: &Path, asked: &RequestLine) -> Result<Zeroizing<String>, VaultError> {
    let bytes = bytes(file, asked).await?;
    let text = std::str::from_utf8(&bytes).map_err(|_| credential(file, "it is no text".into(), asked))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    match text.is_empty() {
        true => Err(credential(file, "it is empty".into(), asked)),
        false => Ok(Zeroizing::new(text.to_owned())),
    }
}

async fn bytes(file: &Path, asked: &RequestLine) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let path = file.to_owned();
    let read = blocking(move || read_file(&path, MAX_CREDENTIAL, FileContent::Secret)).await;
    read.map_err(|error| credential(file, error_chain(&error), asked))
}

/// A file system may hang; the runtime's threads may not.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading a file does not panic")
}

fn credential(file: &Path, why: String, asked: &RequestLine) -> VaultError {
    VaultError { asked: asked.clone(), problem: Problem::Credential { file: file.to_owned(), why } }
}
