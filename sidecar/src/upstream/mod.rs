//! The MCP servers behind the sidecar, as streams of messages: a child's stdio, or streamable HTTP.
//!
//! Nothing here knows rules, grants or the audit.

pub mod http;
pub(crate) mod outbound;
pub(crate) mod stdio;
