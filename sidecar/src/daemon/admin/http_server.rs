//! What both HTTP servers of the sidecar have in common, the admin API and the port for health checks: one request per
//! connection, limits on its head, and headers that keep responses out of caches.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;

/// Limits on the head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    /// From the first byte of the connection to the end of the head.
    pub(super) timeout: Duration,
    /// With the request line; hyper's minimum is 8 KiB.
    pub(super) bytes: usize,
    pub(super) headers: usize,
}

/// A server of connections with one request each. hyper itself answers or closes what is not HTTP or exceeds the limits.
pub(super) fn builder(limits: HeadLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.timeout)
        .keep_alive(false)
        .max_headers(limits.headers)
        .max_buf_size(limits.bytes);
    builder
}

/// Responses are not stored, and browsers do not guess their type.
pub(super) fn add_common_headers(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
