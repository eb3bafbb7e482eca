//! Settings that both HTTP servers of the sidecar share, the admin API and the port for health checks: one request per
//! connection, limits on its head, and headers that prevent caching.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;

/// Limits on the head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    /// How long reading the head may take.
    pub(super) timeout: Duration,
    /// The size of the head, the request line included; hyper's minimum is 8 KiB.
    pub(super) bytes: usize,
    pub(super) headers: usize,
}

/// Builds a server of connections with one request each. hyper itself refuses requests that are not HTTP or exceed the
/// limits.
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

/// Adds headers by which responses are not cached and browsers do not guess their type.
pub(super) fn add_common_headers(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
