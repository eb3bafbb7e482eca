//! One request, one response: all requests to Vault go through here.
//!
//! What must stay true: each request has its own connection, so that it is always known whether it was sent and nothing
//! is sent twice; no redirect is followed; connecting, the whole exchange, the size of the response and the number of
//! concurrent requests are bounded; tokens, bodies and responses are in memory that is wiped when dropped; a path
//! cannot be made to mean another path.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::http::header::{CONNECTION, DATE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use ::http::{Method, Uri};
use arc_swap::ArcSwap;
use bytes::Bytes;
use cofferdam_base::text::{error_chain, percent_encoded_text};
use cofferdam_net::{Dialer, Identity, OneShotError, OneShotLimits, Trust, client_config, send_once};
use http_body_util::Full;
use rustls::RootCertStore;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::address::Address;
use crate::body::{Body, seconds};
use crate::error::{Problem, RequestLine, VaultError};
use crate::token::Token;
use crate::trust::TrustError;

/// Resolving, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// From the call to the last byte of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A secret is a few KB; a response of a megabyte is a mistake.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Below Vault's default rate limit and our limit of sockets; enough for two hundred sessions that start at once.
const MAX_CONCURRENT: usize = 32;
/// Seconds. A longer `Retry-After` is cut to this.
const MAX_RETRY_AFTER: u64 = 3600;

pub(crate) struct Transport {
    address: Address,
    namespace: Option<HeaderValue>,
    roots: Arc<RootCertStore>,
    /// Replaced when another client certificate is presented.
    dialer: ArcSwap<Dialer>,
    concurrency: Semaphore,
    #[cfg(test)]
    fake: Option<Arc<crate::tests::FakeVault>>,
}

pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) token: Option<&'a Token>,
    pub(crate) body: Option<Body>,
    /// Asks Vault to wrap the response for this long.
    pub(crate) wrap_ttl: Option<Duration>,
}

/// The path of a node's health check.
pub(crate) const HEALTH: &str = "sys/health";

pub(crate) struct VaultResponse {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// Vault's own clock.
    pub(crate) date: Option<SystemTime>,
    /// The host that a redirect points to.
    pub(crate) redirect_host: Option<String>,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

impl Transport {
    pub(crate) fn new(
        address: Address,
        namespace: Option<HeaderValue>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, TrustError> {
        let dialer = ArcSwap::from_pointee(dialer(roots.clone(), None)?);
        Ok(Self {
            address,
            namespace,
            roots,
            dialer,
            concurrency: Semaphore::new(MAX_CONCURRENT),
            #[cfg(test)]
            fake: None,
        })
    }

    /// Sends nothing over the network: responses come from the fake.
    #[cfg(test)]
    pub(crate) fn fake(fake: Arc<crate::tests::FakeVault>) -> Self {
        let address = "http://127.0.0.1:8200".parse().expect("a valid address");
        let transport = Self::new(address, None, Arc::new(RootCertStore::empty()));
        Self { fake: Some(fake), ..transport.expect("plain text needs no certificates") }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Presents this certificate on every later connection.
    pub(crate) fn present(&self, identity: Identity) -> Result<(), TrustError> {
        self.dialer.store(Arc::new(dialer(self.roots.clone(), Some(identity))?));
        Ok(())
    }

    pub(crate) async fn send(&self, request: &Request<'_>) -> Result<VaultResponse, VaultError> {
        let fail = |problem| VaultError { request: request.line(), problem };
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let message = self.http_request(request).ok_or_else(|| fail(Problem::InvalidPath))?;
        let _permit = match timeout_at(deadline, self.concurrency.acquire()).await {
            Ok(Ok(permit)) => permit,
            _ => {
                let why = format!("{MAX_CONCURRENT} requests are already waiting for it");
                return Err(fail(Problem::Unreachable { why }));
            }
        };
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            return fake.respond(request, deadline).await.map_err(fail);
        }
        let limits = OneShotLimits { connect: CONNECT_TIMEOUT, deadline, body_bytes: MAX_RESPONSE_BYTES };
        let dialer = self.dialer.load_full();
        let response = send_once(&dialer, &self.address.endpoint, message, limits).await;
        let (head, body) = response.map_err(|error| fail(problem(error)))?.into_parts();
        Ok(VaultResponse {
            status: head.status.as_u16(),
            retry_after: header(&head.headers, RETRY_AFTER)
                .and_then(|seconds| seconds.trim().parse().ok())
                .map(|seconds: u64| Duration::from_secs(seconds.min(MAX_RETRY_AFTER))),
            date: header(&head.headers, DATE).and_then(|date| httpdate::parse_http_date(date).ok()),
            redirect_host: header(&head.headers, LOCATION)
                .and_then(|location| location.parse::<Uri>().ok())
                .and_then(|location| location.host().map(str::to_owned)),
            body,
        })
    }

    fn http_request(&self, request: &Request<'_>) -> Option<::http::Request<Full<Bytes>>> {
        let uri: Uri = format!("{}/v1/{}", self.address.prefix, encoded_path(&request.path)?).parse().ok()?;
        let mut builder = ::http::Request::builder()
            .method(request.method.clone())
            .uri(uri)
            .header(HOST, self.address.authority.as_str())
            .header(CONNECTION, "close")
            // Vault's protection against server-side request forgery.
            .header("x-vault-request", "true");
        // The health of a node does not depend on a namespace, and Vault refuses the header there.
        if let Some(namespace) = self.namespace.as_ref().filter(|_| request.path != HEALTH) {
            builder = builder.header("x-vault-namespace", namespace);
        }
        if let Some(token) = request.token {
            let bytes = Bytes::from_owner(Zeroizing::new(token.expose().as_bytes().to_vec()));
            let mut value = HeaderValue::from_maybe_shared(bytes).ok()?;
            value.set_sensitive(true);
            builder = builder.header("x-vault-token", value);
        }
        if let Some(ttl) = request.wrap_ttl {
            builder = builder.header("x-vault-wrap-ttl", seconds(ttl));
        }
        let body = match &request.body {
            Some(body) => {
                builder = builder.header("content-type", "application/json");
                Bytes::from_owner(body.encode())
            }
            None => Bytes::new(),
        };
        builder.body(Full::new(body)).ok()
    }
}

impl Request<'_> {
    pub(crate) fn line(&self) -> RequestLine {
        RequestLine { method: self.method.clone(), path: self.path.clone() }
    }

    /// Values that no error may show.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let token = self.token.map(Token::expose);
        token.into_iter().chain(self.body.iter().flat_map(Body::secrets))
    }
}

fn dialer(roots: Arc<RootCertStore>, identity: Option<Identity>) -> Result<Dialer, TrustError> {
    let config = client_config(roots, identity).map_err(TrustError::Pair)?;
    Ok(Dialer::trusting(Trust::Given(config)))
}

fn problem(error: OneShotError) -> Problem {
    match error {
        OneShotError::BadLength => Problem::Malformed { why: "its length is not a number" },
        OneShotError::Broken(error) => Problem::NoAnswer { why: error_chain(&error) },
        OneShotError::Connect(error) => Problem::Unreachable { why: error_chain(&error) },
        OneShotError::TimedOut => {
            Problem::NoAnswer { why: format!("it took longer than {} s", REQUEST_TIMEOUT.as_secs()) }
        }
        OneShotError::TooLarge { limit } => Problem::TooLarge { limit },
    }
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The percent-encoded path; `None` if it could lead to another path than the one written.
fn encoded_path(path: &str) -> Option<String> {
    let is_ambiguous = |segment: &str| matches!(segment, "" | "." | "..");
    if path.split('/').any(is_ambiguous) || path.chars().any(char::is_control) {
        return None;
    }
    Some(percent_encoded_text(path, b"/:@+=,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_lead_to_another_path() {
        assert_eq!(
            encoded_path("secret/data/my app?x#y%2e").as_deref(),
            Some("secret/data/my%20app%3Fx%23y%252e")
        );
        assert_eq!(encoded_path("auth/userpass/login/ä").as_deref(), Some("auth/userpass/login/%C3%A4"));
        for bad in ["", "/", "/secret", "secret/", "secret//x", "secret/../sys/seal", "a/./b", "a\nb"] {
            assert_eq!(encoded_path(bad), None, "{bad:?}");
        }
    }
}
