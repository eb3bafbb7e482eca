//! Outgoing HTTP of the sidecar.
//!
//! | module | what it holds |
//! |---|---|
//! | `headers` | request headers that the configuration cannot set |

#![forbid(unsafe_code)]

mod headers;

pub use headers::{RESERVED_HEADER_PREFIXES, RESERVED_HEADERS, is_reserved_header};
