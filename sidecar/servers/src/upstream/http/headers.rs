//! The headers of a request: its credentials, and the parts of the message that MCP repeats in headers.
//!
//! What must stay true: an injected header never replaces one that frames the request or that MCP owns; no header value is
//! logged or put into an error; credentials are read in the request's own task, so that waiting for them delays no other
//! request; those that were sent are held until the request is over, because the server may use them that long.

use std::pin::Pin;
use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use cofferdam_net::is_reserved_header;
use cofferdam_secrets::SecretReads;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;

pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(super) const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Servers refuse heads above 8 to 16 KiB: values that the sandbox chose must not take all of that.
const MAX_MIRRORED_BYTES: usize = 6 * 1024;
const AGENT: &str = concat!("cofferdam/", env!("CARGO_PKG_VERSION"));

/// Boxed, so that the traits below can be used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The credentials of one request, or the reason why there are none.
pub type CredentialResult = Result<Arc<dyn RequestCredentials>, String>;

/// Where the credentials of a server's requests come from.
pub trait Credentials: Send + Sync {
    /// The newest credentials. Where the held ones have expired, waits for a new read, within a bound.
    fn current(&self) -> BoxFuture<'_, CredentialResult>;

    /// The newest credentials in memory; starts no read.
    fn held(&self) -> Option<Arc<dyn RequestCredentials>>;
}

/// The credentials that one request carries.
pub trait RequestCredentials: Send + Sync {
    fn headers(&self) -> &HeaderMap;

    /// The Vault reads behind them that the recorded decision does not name.
    fn reads_after_decision(&self, decided: &SecretReads) -> Option<Arc<SecretReads>>;

    /// The secrets that they are made of, for error messages that a sandbox sees.
    fn secret_names(&self) -> String;

    /// Newer credentials, after the server answered these with HTTP 401.
    fn newer(&self) -> BoxFuture<'_, CredentialResult>;
}

/// The path and `Host` header of every request to one server.
#[derive(Debug)]
pub(super) struct RequestTarget {
    path: PathAndQuery,
    /// The `Host` header; user information in the URL is not part of it.
    authority: Option<HeaderValue>,
}

impl RequestTarget {
    pub(super) fn new(url: &http::Uri) -> Self {
        let host = url.host().unwrap_or_default();
        let authority = match url.port_u16() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Self {
            path: url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
            authority: HeaderValue::from_str(&authority).ok(),
        }
    }
}

/// Builds a request. Credentials are inserted first, so that they cannot override the headers after them.
pub(super) fn request(
    target: &RequestTarget,
    method: Method,
    credentials: &HeaderMap,
    mcp_headers: HeaderMap,
    body: Bytes,
) -> Request<Full<Bytes>> {
    let accept = match method {
        Method::GET => Some("text/event-stream"),
        Method::POST => Some("application/json, text/event-stream"),
        _ => None,
    };
    let mut request = Request::new(Full::new(body));
    *request.uri_mut() = http::Uri::from(target.path.clone());
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    for (name, value) in credentials {
        if !is_reserved_header(name) {
            let mut value = value.clone();
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    headers.extend(mcp_headers);
    headers.extend(target.authority.clone().map(|authority| (HOST, authority)));
    headers.extend(accept.map(|accept| (ACCEPT, HeaderValue::from_static(accept))));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if method == Method::POST {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    *request.method_mut() = method;
    request
}

/// The headers in which a stateless request repeats parts of its message, so that proxies can route it.
pub(super) fn stateless_headers(
    version: &str,
    method: &str,
    name: Option<&str>,
    arguments: Vec<(HeaderName, String)>,
) -> Result<HeaderMap, &'static str> {
    let mut mirrored = vec![(PROTOCOL_VERSION, version.to_owned()), (METHOD, method.to_owned())];
    mirrored.extend(name.map(|name| (NAME, name.to_owned())));
    mirrored.extend(arguments);
    let mut headers = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in mirrored {
        bytes += name.as_str().len() + value.len();
        if bytes > MAX_MIRRORED_BYTES {
            return Err("the request's method, name and mirrored arguments are too long for HTTP headers");
        }
        headers.insert(name, encode(&value));
    }
    Ok(headers)
}

/// Encodes a value as `=?base64?…?=` where a header cannot carry it as it is.
fn encode(value: &str) -> HeaderValue {
    const OPEN: &str = "=?base64?";
    const CLOSE: &str = "?=";
    let plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && value.trim_matches(' ') == value
        && !(value.starts_with(OPEN) && value.ends_with(CLOSE));
    let text = match plain {
        true => value.to_owned(),
        false => format!("{OPEN}{}{CLOSE}", Base64::encode_string(value.as_bytes())),
    };
    HeaderValue::try_from(text).expect("both forms are printable ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_net::RESERVED_HEADERS;

    #[test]
    fn values_that_a_header_cannot_carry_are_encoded() {
        for (value, header) in [
            ("plain name", "plain name"),
            ("", ""),
            ("ü", "=?base64?w7w=?="),
            (" edge", "=?base64?IGVkZ2U=?="),
            ("a\nb", "=?base64?YQpi?="),
            ("tab\tb", "=?base64?dGFiCWI=?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ] {
            assert_eq!(encode(value), header, "{value:?}");
        }
    }

    #[test]
    fn a_name_too_long_for_a_header_is_refused() {
        assert!(stateless_headers("2026-07-28", "tools/call", Some(&"x".repeat(7000)), Vec::new()).is_err());
    }

    #[test]
    fn credentials_cannot_replace_reserved_headers() {
        let target = RequestTarget::new(&"https://user:word@h.example:8/p?q".parse().unwrap());
        let mut credentials = HeaderMap::new();
        for name in RESERVED_HEADERS.into_iter().chain(["mcp-session-id", "mcp-param-x", "proxy-connection"])
        {
            credentials.insert(HeaderName::from_static(name), HeaderValue::from_static("evil"));
        }
        credentials.insert("authorization", HeaderValue::from_static("Bearer t"));
        let request = request(&target, Method::POST, &credentials, HeaderMap::new(), Bytes::new());
        assert!(!request.headers().values().any(|value| value == "evil"));
        assert!(request.headers()["authorization"].is_sensitive());
        assert_eq!(request.headers()["host"], "h.example:8");
        assert_eq!(request.uri(), "/p?q");
    }
}
