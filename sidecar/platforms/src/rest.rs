//! Requests to an HTTP service of a platform, and the errors for refused requests.
//!
//! What must stay true: `http://` is used for loopback only; no redirect is followed; the size of a response is limited before
//! memory is allocated; the redactor knows a service's secret headers before any text of the platform is shown.

use std::time::Duration;

use bytes::Bytes;
use cofferdam_base::text::{error_chain, percent_encoded_text};
use cofferdam_net::{
    AddressError, AddressPolicy, BodySender, ConnectError, Dialer, Duplex, Endpoint, OneShotError,
    OneShotLimits, StreamedResponse, channel_body, open_stream, send_once,
};
use http::header::{CONTENT_TYPE, HOST, LOCATION, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, request};
use http_body_util::Full;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::redactor::Redactor;
use crate::{PlatformError, SandboxId};

/// For name resolution, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The control APIs' responses have a few kilobytes.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Pieces of a streamed request that wait to be sent.
const QUEUED_PIECES: usize = 2;
/// A longer `Retry-After` is shortened to this: an attachment would wait for longer than an outage usually lasts.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// One HTTP service, with the headers of every request to it.
pub(crate) struct Service {
    dialer: Dialer,
    endpoint: Endpoint,
    authority: String,
    /// The path of the service's address, without a slash at its end.
    prefix: String,
    headers: HeaderMap,
    redactor: Redactor,
}

/// One request without a body, or with a small one.
pub(crate) struct Call<'a> {
    /// What the request is for, as errors name it: "find the sandbox".
    pub(crate) action: &'static str,
    pub(crate) method: Method,
    /// The path, and the query with its values encoded.
    pub(crate) path: &'a str,
    pub(crate) body: Option<Bytes>,
    pub(crate) timeout: Duration,
}

/// A complete response.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// How platforms describe an error. They also send a `code`, which is a number or a text and is not used.
#[derive(Deserialize)]
struct Refusal {
    message: Option<String>,
}

impl Service {
    /// Fails for plain HTTP to another host. Adds the secret headers to the redactor.
    pub(crate) fn new(
        dialer: &Dialer,
        address: &Uri,
        policy: AddressPolicy,
        headers: HeaderMap,
        redactor: &Redactor,
    ) -> Result<Self, PlatformError> {
        for secret in headers.values().filter(|value| value.is_sensitive()) {
            let secret = secret.as_bytes();
            redactor.add("token", secret.strip_prefix(b"Bearer ").unwrap_or(secret));
        }
        let action = "read the platform's address";
        let endpoint = Endpoint::new(address, policy);
        if endpoint.is_plain_text_to_another_host() {
            let why = "`http://` is allowed to this machine only, because a key or token would cross the network unencrypted; use `https://`";
            return Err(PlatformError::Protocol { action, why: why.to_owned() });
        }
        let Some(authority) = address.authority().filter(|authority| !authority.as_str().contains('@'))
        else {
            let why = "it must have a host, and no user name".to_owned();
            return Err(PlatformError::Protocol { action, why });
        };
        let authority = authority.to_string();
        let prefix = address.path().trim_end_matches('/').to_owned();
        let (dialer, redactor) = (dialer.clone(), redactor.clone());
        Ok(Self { dialer, endpoint, authority, prefix, headers, redactor })
    }

    /// The same service, but connected to at the address of `other`: requests still have this service's host and path.
    pub(crate) fn dialled_at(self, other: Self) -> Self {
        let prefix = format!("{}{}", other.prefix, self.prefix);
        Self { endpoint: other.endpoint, prefix, ..self }
    }

    /// Opens a stream to the service, for a protocol to which HTTP is upgraded.
    pub(crate) async fn connect(&self, action: &'static str) -> Result<Box<dyn Duplex>, PlatformError> {
        let opened = self.dialer.open(&self.endpoint, CONNECT_TIMEOUT).await;
        opened.map_err(|error| request_failed(action, &OneShotError::Connect(error), &self.redactor))
    }

    /// The path of the service's address, without a slash at its end.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Sends a small request and reads the whole response, whatever its status.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Reply, PlatformError> {
        let Call { action, method, path, body, timeout } = call;
        let mut builder = self.request(method, path);
        if body.is_some() {
            builder = builder.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let request = builder
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| invalid_request(action, &error))?;
        let limits = OneShotLimits {
            connect: CONNECT_TIMEOUT,
            deadline: Instant::now() + timeout,
            body_bytes: MAX_RESPONSE_BYTES,
        };
        let response = send_once(&self.dialer, &self.endpoint, request, limits).await;
        let (head, body) =
            response.map_err(|error| request_failed(action, &error, &self.redactor))?.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body })
    }

    /// A request to this service, without a body yet.
    pub(crate) fn request(&self, method: Method, path: &str) -> request::Builder {
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, self.authority.as_str())
            .header(USER_AGENT, concat!("cofferdam/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        builder
    }

    /// A request whose body is what the returned sender is given. The returned future sends it and resolves to the head of the
    /// response.
    pub(crate) fn stream(
        &self,
        action: &'static str,
        builder: request::Builder,
    ) -> (BodySender, impl Future<Output = Result<StreamedResponse, PlatformError>> + Send + use<>) {
        let (sender, body) = channel_body(QUEUED_PIECES);
        let request = builder.body(body).map_err(|error| invalid_request(action, &error));
        let (dialer, endpoint) = (self.dialer.clone(), self.endpoint.clone());
        let redactor = self.redactor.clone();
        let response = async move {
            let opened = open_stream(&dialer, &endpoint, request?, CONNECT_TIMEOUT).await;
            opened.map_err(|error| request_failed(action, &error, &redactor))
        };
        (sender, response)
    }

    /// Sends a request with a complete body, and waits for the head of the response.
    pub(crate) async fn open(
        &self,
        action: &'static str,
        builder: request::Builder,
        body: Bytes,
    ) -> Result<StreamedResponse, PlatformError> {
        let request = builder.body(Full::new(body)).map_err(|error| invalid_request(action, &error))?;
        let opened = open_stream(&self.dialer, &self.endpoint, request, CONNECT_TIMEOUT).await;
        opened.map_err(|error| request_failed(action, &error, &self.redactor))
    }

    /// Reads the rest of a response; fails if it is larger than the limit.
    pub(crate) async fn read_reply(
        &self,
        action: &'static str,
        response: StreamedResponse,
    ) -> Result<Reply, PlatformError> {
        let (status, headers) = (response.head.status, response.head.headers.clone());
        let body = response
            .collect(MAX_RESPONSE_BYTES)
            .await
            .map_err(|error| request_failed(action, &error, &self.redactor))?;
        Ok(Reply { status, headers, body })
    }

    /// The status and the platform's error message.
    pub(crate) fn message(&self, reply: &Reply) -> String {
        let status = reply.status.as_u16();
        match serde_json::from_slice(&reply.body) {
            Ok(Refusal { message: Some(message) }) => format!("HTTP {status}: {}", self.printable(&message)),
            Ok(Refusal { message: None }) | Err(_) => format!("HTTP {status}"),
        }
    }

    /// See [`Redactor::printable`].
    pub(crate) fn printable(&self, text: &str) -> String {
        self.redactor.printable(text)
    }

    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The error for an unsuccessful response of the control API.
    pub(crate) fn refusal(&self, action: &'static str, sandbox: &SandboxId, reply: &Reply) -> PlatformError {
        let status = reply.status.as_u16();
        match status {
            300..=399 => self.redirected(action, reply),
            401 | 403 => PlatformError::Unauthorized { action, status },
            404 | 410 => PlatformError::NoSandbox { action, sandbox: sandbox.to_string() },
            // A limit on the rate of requests has the time after which the next one is accepted; a quota has not.
            429 if reply.retry_after().is_none() => self.quota(action, reply),
            402 => self.quota(action, reply),
            408 | 409 | 425 | 429 | 500..=599 => PlatformError::Unavailable {
                action,
                why: self.message(reply),
                retry_after: reply.retry_after(),
            },
            _ => PlatformError::Protocol { action, why: self.message(reply) },
        }
    }

    fn quota(&self, action: &'static str, reply: &Reply) -> PlatformError {
        PlatformError::Quota { action, why: self.message(reply) }
    }

    /// The error for a redirect.
    pub(crate) fn redirected(&self, action: &'static str, reply: &Reply) -> PlatformError {
        let location = reply.headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let target = location.and_then(|location| location.parse::<Uri>().ok());
        let host = target
            .as_ref()
            .and_then(Uri::host)
            .map_or_else(String::new, |host| format!(" to `{}`", self.printable(host)));
        let why = format!("the response is a redirect{host}, which is not followed");
        PlatformError::Protocol { action, why }
    }
}

impl Reply {
    pub(crate) fn json<T: DeserializeOwned>(&self, action: &'static str) -> Result<T, PlatformError> {
        // Without serde's message: it may quote the response, which can contain tokens.
        serde_json::from_slice(&self.body).map_err(|error| PlatformError::Protocol {
            action,
            why: format!(
                "the response is not the expected JSON (line {}, column {})",
                error.line(),
                error.column()
            ),
        })
    }

    /// The `Retry-After` header. Only the form in seconds is parsed, which both platforms use.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
    }
}

/// Marks the header's value as sensitive, so that it is not shown, not even by `Debug`.
pub(crate) fn secret_header(name: HeaderName, mut value: HeaderValue) -> (HeaderName, HeaderValue) {
    value.set_sensitive(true);
    (name, value)
}

/// Percent-encodes a value for a URL's query; slashes stay.
pub(crate) fn encode_query_value(value: &str) -> String {
    percent_encoded_text(value, b"/")
}

/// The error for a request without a complete response.
pub(crate) fn request_failed(
    action: &'static str,
    error: &OneShotError,
    redactor: &Redactor,
) -> PlatformError {
    let why = redactor.redact(&error_chain(error));
    match error {
        // The text of this error is about MCP servers, so another one is used.
        OneShotError::Connect(ConnectError::Address(AddressError::NotPermitted { name, .. })) => {
            let name = redactor.printable(name);
            let why = format!(
                "`{name}` has no public address; only a platform whose `api-url` is configured may be in a private network"
            );
            PlatformError::Unavailable { action, why, retry_after: None }
        }
        OneShotError::BadLength | OneShotError::TooLarge { .. } => PlatformError::Protocol { action, why },
        OneShotError::Broken(_) | OneShotError::Connect(_) | OneShotError::TimedOut => {
            PlatformError::Unavailable { action, why, retry_after: None }
        }
    }
}

fn invalid_request(action: &'static str, error: &http::Error) -> PlatformError {
    PlatformError::Protocol { action, why: format!("the request is invalid: {error}") }
}

#[cfg(test)]
mod tests {
    use cofferdam_net::Trust;

    use super::*;

    #[test]
    fn plain_http_is_allowed_to_this_machine_only() {
        for good in ["http://127.0.0.1:3000", "http://[::1]:1/x/", "http://localhost", "https://api.e2b.app"]
        {
            assert!(service(good).is_ok(), "{good}");
        }
        for bad in ["http://api.e2b.app", "http://10.0.0.1:3000", "https://key@api.e2b.app", "/only/a/path"] {
            assert!(service(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_has_the_path_prefix_and_the_host_of_the_address() {
        let request =
            service("https://host.example:8443/e2b/").unwrap().request(Method::GET, "/sandboxes/x").body(());
        let request = request.unwrap();
        assert_eq!(request.uri().path(), "/e2b/sandboxes/x");
        assert_eq!(request.headers()[HOST], "host.example:8443");
    }

    #[test]
    fn each_status_becomes_the_matching_error() {
        let service = service("https://api.e2b.app").unwrap();
        let id = "box1".parse().unwrap();
        let error_for = |status: u16, retry_after: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value))));
            service.refusal("find", &id, &reply(status, headers, r#"{"message":"no"}"#))
        };
        assert!(matches!(error_for(401, None), PlatformError::Unauthorized { status: 401, .. }));
        assert!(matches!(error_for(404, None), PlatformError::NoSandbox { .. }));
        assert!(matches!(error_for(429, None), PlatformError::Quota { .. }));
        assert!(matches!(error_for(307, None), PlatformError::Protocol { .. }));
        assert!(matches!(error_for(418, None), PlatformError::Protocol { .. }));
        let wait = |error| match error {
            PlatformError::Unavailable { retry_after, .. } => retry_after,
            other => panic!("{other}"),
        };
        assert_eq!(wait(error_for(503, Some("7"))), Some(Duration::from_secs(7)));
        assert_eq!(wait(error_for(429, Some("1"))), Some(Duration::from_secs(1)));
        assert_eq!(wait(error_for(503, Some("999999999"))), Some(MAX_RETRY_AFTER));
        assert_eq!(wait(error_for(500, Some("soon"))), None);
    }

    #[test]
    fn a_message_is_shortened_and_never_contains_the_key() {
        let service = service("https://api.e2b.app").unwrap();
        let shown = |body: &str| service.message(&reply(500, HeaderMap::new(), body));
        assert_eq!(shown(r#"{"message":"out of\u0007 luck"}"#), "HTTP 500: out of  luck");
        assert_eq!(
            shown(r#"{"message":"the key top-secret is bad"}"#),
            "HTTP 500: the key [redacted:token] is bad"
        );
        assert_eq!(shown("<html>"), "HTTP 500");
        assert!(shown(&format!(r#"{{"message":"{}"}}"#, "x".repeat(9999))).len() < 300);
    }

    #[test]
    fn query_values_are_percent_encoded() {
        assert_eq!(encode_query_value("/home/user/a b&c=d#ä"), "/home/user/a%20b%26c%3Dd%23%C3%A4");
    }

    fn service(address: &str) -> Result<Service, PlatformError> {
        let key = secret_header(HeaderName::from_static("x-api-key"), HeaderValue::from_static("top-secret"));
        let address = address.parse().unwrap();
        let dialer = Dialer::trusting(Trust::System);
        let headers = HeaderMap::from_iter([key]);
        Service::new(&dialer, &address, AddressPolicy::PublicOnly, headers, &Redactor::default())
    }

    fn reply(status: u16, headers: HeaderMap, body: &str) -> Reply {
        let status = StatusCode::from_u16(status).unwrap();
        Reply { status, headers, body: Zeroizing::new(body.as_bytes().to_vec()) }
    }
}
