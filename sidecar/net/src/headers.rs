//! Request headers that the configuration cannot set.
//!
//! What must stay true: this is the only list of them. `cofferdam check` refuses these names and the HTTP client drops
//! them, so that no header passes the check and is then missing from the request.

use http::HeaderName;

/// Headers that frame the request, name its host or belong to MCP. Lower case, sorted.
pub const RESERVED_HEADERS: [&str; 14] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "via",
];

/// Every header whose name starts with one of these is reserved too.
pub const RESERVED_HEADER_PREFIXES: [&str; 3] = ["mcp-", "proxy-", "upgrade"];

/// Whether the sidecar sets this header itself or never sends it.
pub fn is_reserved_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    RESERVED_HEADERS.binary_search(&name).is_ok()
        || RESERVED_HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_and_prefix_is_reserved() {
        for name in RESERVED_HEADERS {
            assert!(is_reserved_header(&HeaderName::from_static(name)), "{name}");
        }
        for prefix in RESERVED_HEADER_PREFIXES {
            assert!(is_reserved_header(&HeaderName::try_from(format!("{prefix}x")).unwrap()), "{prefix}");
        }
        for allowed in ["authorization", "cookie", "user-agent", "x-mcp-key"] {
            assert!(!is_reserved_header(&HeaderName::from_static(allowed)), "{allowed}");
        }
    }
}
