//! The requests that the sidecar sends. None of them is retried here.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use ::http::Method;
use ::http::header::HeaderValue;
use cofferdam_base::metrics;
use cofferdam_net::Identity;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::address::{Address, AddressError};
use crate::body::Body;
use crate::client::{HEALTH, Request, Transport, VaultResponse};
use crate::envelope::{Auth, Data, Envelope};
use crate::error::{Problem, VaultError, VaultMessages};
use crate::token::Token;
use crate::trust::{self, TrustError};

/// A client for one Vault. Cheap to clone.
#[derive(Clone)]
pub struct Vault {
    transport: Arc<Transport>,
}

/// Which Vault to connect to, and how it is authenticated.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub address: Address,
    pub namespace: Option<String>,
    /// If set, only these certificate authorities are trusted.
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("a namespace must be a path of visible ASCII characters")]
    Namespace,
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The health of a node.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Health {
    pub initialized: bool,
    pub sealed: bool,
    pub standby: bool,
    pub version: String,
    pub cluster_name: String,
    /// 200 active, 429 standby, 472 and 473 other standbys, 501 not initialised, 503 sealed.
    #[serde(skip)]
    pub status: u16,
    /// Vault's own clock.
    #[serde(skip)]
    pub date: Option<SystemTime>,
}

impl Vault {
    /// Reads the certificate authorities, so it may block. Sends nothing.
    pub fn new(settings: &ClientSettings) -> Result<Self, SettingsError> {
        let namespace = match settings.namespace.as_deref().map(|name| name.trim_matches('/')) {
            None | Some("") => None,
            Some(name) if name.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Some(HeaderValue::from_str(name).map_err(|_| SettingsError::Namespace)?)
            }
            Some(_) => return Err(SettingsError::Namespace),
        };
        let roots = match settings.address.needs_roots() {
            true => trust::roots(settings.ca_file.as_deref())?,
            false => Arc::new(rustls::RootCertStore::empty()),
        };
        let transport = Transport::new(settings.address.clone(), namespace, roots)?;
        Ok(Self { transport: Arc::new(transport) })
    }

    #[cfg(test)]
    pub(crate) fn fake(fake: Arc<crate::tests::FakeVault>) -> Self {
        Self { transport: Arc::new(Transport::fake(fake)) }
    }

    /// Reads any path. A success may have created a lease, so do not repeat the request.
    pub async fn read(&self, token: &Token, path: &str) -> Result<Envelope, VaultError> {
        self.call(&get(token, path)).await
    }

    /// Reads a path by writing to it: certificates, signatures, tokens of other systems.
    pub async fn write(
        &self,
        token: &Token,
        path: &str,
        values: &Map<String, Value>,
    ) -> Result<Envelope, VaultError> {
        let body = values.iter().fold(Body::new(), |body, (name, value)| body.with(name, value.clone()));
        self.call(&post(Some(token), path, body)).await
    }

    /// The capabilities of the token at each path, in the order of `paths`.
    pub async fn capabilities_self(
        &self,
        token: &Token,
        paths: &[&str],
    ) -> Result<Vec<Vec<String>>, VaultError> {
        let request = post(Some(token), "sys/capabilities-self", Body::new().with("paths", paths));
        let (data, _) = self.data(&request).await?;
        let found: Map<String, Value> = data.read().map_err(|why| malformed(&request, why))?;
        let at = |path: &&str| found.get(*path).cloned().and_then(|list| serde_json::from_value(list).ok());
        let listed =
            paths.iter().map(|path| at(path).ok_or_else(|| malformed(&request, "a path is missing in it")));
        listed.collect()
    }

    /// The health of the node, also if it is sealed or a standby. Needs no token.
    pub async fn health(&self) -> Result<Health, VaultError> {
        let request =
            Request { method: Method::GET, path: HEALTH.into(), token: None, body: None, wrap_ttl: None };
        let response = self.transport.send(&request).await?;
        match response.status {
            200 | 429 | 472 | 473 | 501 | 503 => {
                let health: Health = serde_json::from_slice(&response.body)
                    .map_err(|_| malformed(&request, "it is not the JSON of `sys/health`"))?;
                Ok(Health { status: response.status, date: response.date, ..health })
            }
            _ => Err(refusal(&request, &response)),
        }
    }

    /// Sends a request and reads the envelope of its response.
    pub(crate) async fn call(&self, request: &Request<'_>) -> Result<Envelope, VaultError> {
        let requested_at = Instant::now();
        let result = self.transport.send(request).await.and_then(|response| match response.status {
            200..=299 => {
                let envelope =
                    Envelope::read(&response.body, requested_at).map_err(|why| malformed(request, why))?;
                Ok(Envelope { date: response.date, ..envelope })
            }
            _ => Err(refusal(request, &response)),
        });
        if let Err(error) = &result {
            metrics::vault().count_failure(error.kind().into());
        }
        result
    }

    /// For requests that return a token.
    pub(crate) async fn auth(&self, request: &Request<'_>) -> Result<Auth, VaultError> {
        self.call(request).await?.auth.ok_or_else(|| malformed(request, "it has no token"))
    }

    /// For requests that return data: the data, and Vault's id of the request.
    pub(crate) async fn data(&self, request: &Request<'_>) -> Result<(Data, String), VaultError> {
        let envelope = self.call(request).await?;
        let data = envelope.data.ok_or_else(|| malformed(request, "it has no data"))?;
        Ok((data, envelope.request_id))
    }

    /// Presents this client certificate from now on.
    pub(crate) fn present(&self, identity: Identity) -> Result<(), TrustError> {
        self.transport.present(identity)
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vault({})", self.transport.address())
    }
}

pub(crate) fn get<'a>(token: &'a Token, path: &str) -> Request<'a> {
    Request { method: Method::GET, path: path.to_owned(), token: Some(token), body: None, wrap_ttl: None }
}

pub(crate) fn post<'a>(token: Option<&'a Token>, path: &str, body: Body) -> Request<'a> {
    Request { method: Method::POST, path: path.to_owned(), token, body: Some(body), wrap_ttl: None }
}

pub(crate) fn malformed(request: &Request<'_>, why: &'static str) -> VaultError {
    VaultError { request: request.line(), problem: Problem::Malformed { why } }
}

/// The error for a response that is not a success.
pub(crate) fn refusal(request: &Request<'_>, response: &VaultResponse) -> VaultError {
    let status = response.status;
    let problem = match status {
        300..=399 => Problem::Redirect { status, host: response.redirect_host.clone() },
        _ => {
            let messages = VaultMessages::read(&response.body, request.secrets());
            Problem::Status { status, messages, retry_after: response.retry_after }
        }
    };
    VaultError { request: request.line(), problem }
}
