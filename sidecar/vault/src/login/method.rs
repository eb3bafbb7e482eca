//! The six ways to log in.
//!
//! What must stay true: credential files are read at each login, bounded, into memory that is wiped when dropped; a
//! credential is searched for by every link before it is sent, is sent in one request and is in no error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_base::text::error_chain;
use cofferdam_scrub::{Holding, OwnCredentials};
use cofferdam_secrets::{FileContent, read_file};
use zeroize::Zeroizing;

use super::backend::GrantedToken;
use super::unwrap_records::UnwrapRecords;
use super::wrapped::{WrappedSecretId, creation_path};
use crate::api::{Vault, post};
use crate::body::Body;
use crate::error::{Problem, RequestLine, VaultError};
use crate::token::Token;
use crate::trust::{read_identity, read_private_key};

/// More than any token, password or secret-id; a JSON Web Token has a few KB.
const MAX_CREDENTIAL_BYTES: usize = 64 * 1024;
/// The role-ids that Vault makes have 36 bytes. A shorter one is a name that a person chose, which ordinary text may
/// contain; it is worth nothing without the secret-id.
const SHORTEST_SECRET_ROLE_ID: usize = 32;

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
    /// A token that an operator created and renews; never revoked by the sidecar.
    TokenFile {
        path: PathBuf,
    },
    Userpass {
        mount: String,
        username: String,
        password_file: PathBuf,
    },
}

/// Where the secret-id of an AppRole comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SecretId {
    Plain {
        file: PathBuf,
    },
    /// The file contains a wrapping token, which must have been created by the `secret-id` path of this AppRole.
    Wrapped {
        file: PathBuf,
        role: String,
    },
}

/// A login method, and the unwrapped secret-id once there is one.
pub(super) struct Authenticator {
    method: Method,
    wrapped: WrappedSecretId,
    /// Holds what is read for a login and what a login returns.
    own: Arc<OwnCredentials>,
}

impl Authenticator {
    pub(super) fn new(method: Method, unwraps: Option<UnwrapRecords>, own: Arc<OwnCredentials>) -> Self {
        Self { method, wrapped: WrappedSecretId::new(unwraps), own }
    }

    /// Logs in. Links search for the token, too, when this returns it.
    pub(super) async fn log_in(&mut self, vault: &Vault) -> Result<GrantedToken, VaultError> {
        let granted = self.request_token(vault).await?;
        self.hold_token("vault.login-token", &granted.token);
        Ok(granted)
    }

    async fn request_token(&mut self, vault: &Vault) -> Result<GrantedToken, VaultError> {
        let request = self.method.login_request();
        let body = match &self.method {
            Method::AppRole { mount, role_id_file, secret_id } => {
                let role_id = read_text(role_id_file, &request).await?;
                if role_id.len() >= SHORTEST_SECRET_ROLE_ID {
                    self.hold("vault.login-role-id", &role_id);
                }
                let secret_id = match secret_id {
                    SecretId::Plain { file } => read_text(file, &request).await?,
                    SecretId::Wrapped { file, role } => {
                        let wrap = read_token(file, &request).await?;
                        self.hold_token("vault.login-wrapping-token", &wrap);
                        self.wrapped.secret_id(vault, &wrap, &creation_path(mount, role)).await?
                    }
                };
                self.hold("vault.login-secret-id", &secret_id);
                Body::new().with_secret("role_id", role_id).with_secret("secret_id", secret_id)
            }
            Method::Cert { certificate_file, key_file, role, .. } => {
                let (certificate, key, own) = (certificate_file.clone(), key_file.clone(), self.own.clone());
                let read = move || {
                    let pem = read_private_key(&key)?;
                    own.hold_private_keys("vault.login-key", &pem);
                    read_identity(&certificate, (&key, &pem))
                };
                let identity = run_blocking(read).await;
                let presented = identity.and_then(|identity| vault.present(identity));
                presented
                    .map_err(|error| credential_error(certificate_file, error_chain(&error), &request))?;
                match role {
                    Some(role) => Body::new().with("name", role.as_str()),
                    None => Body::new(),
                }
            }
            Method::Jwt { role, jwt_file, .. } | Method::Kubernetes { role, jwt_file, .. } => {
                let jwt = read_text(jwt_file, &request).await?;
                self.hold("vault.login-jwt", &jwt);
                Body::new().with("role", role.as_str()).with_secret("jwt", jwt)
            }
            Method::TokenFile { path } => {
                let token = read_token(path, &request).await?;
                self.hold_token("vault.login-token", &token);
                let info = vault.lookup_self(&token).await?;
                return Ok(GrantedToken::from_lookup(token, info));
            }
            Method::Userpass { password_file, .. } => {
                let password = read_text(password_file, &request).await?;
                self.hold("vault.login-password", &password);
                Body::new().with_secret("password", password)
            }
        };
        Ok(vault.auth(&post(None, &request.path, body)).await?.into())
    }

    fn hold(&self, kind: &str, value: &str) {
        if self.own.hold(kind, value.as_bytes()) == Holding::Guessable {
            tracing::warn!(
                credential = kind,
                "a credential of the Vault login could be found by guessing, so that it is not removed from what servers send: use a longer one"
            );
        }
    }

    fn hold_token(&self, kind: &str, token: &Token) {
        self.hold(kind, token.expose());
    }
}

impl Method {
    /// The method and path of the request that logs in.
    pub(super) fn login_request(&self) -> RequestLine {
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

pub(super) async fn read_token(file: &Path, request: &RequestLine) -> Result<Token, VaultError> {
    let bytes = read_bytes(file, request).await?;
    Token::read(&bytes).map_err(|error| credential_error(file, error.to_string(), request))
}

/// Checks that a credential file can be read and is not empty.
pub(super) async fn check_credential(file: &Path, request: &RequestLine) -> Result<(), VaultError> {
    read_text(file, request).await.map(drop)
}

/// Reads a text file, without the newline at its end.
async fn read_text(file: &Path, request: &RequestLine) -> Result<Zeroizing<String>, VaultError> {
    let bytes = read_bytes(file, request).await?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| credential_error(file, "it is not UTF-8 text".into(), request))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    match text.is_empty() {
        true => Err(credential_error(file, "it is empty".into(), request)),
        false => Ok(Zeroizing::new(text.to_owned())),
    }
}

async fn read_bytes(file: &Path, request: &RequestLine) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let path = file.to_owned();
    let read = run_blocking(move || read_file(&path, MAX_CREDENTIAL_BYTES, FileContent::Secret)).await;
    read.map_err(|error| credential_error(file, error_chain(&error), request))
}

/// Reading may block for long on a network file system, so it must not use a thread of the runtime.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading a file does not panic")
}

fn credential_error(file: &Path, why: String, request: &RequestLine) -> VaultError {
    VaultError { request: request.clone(), problem: Problem::Credential { file: file.to_owned(), why } }
}
