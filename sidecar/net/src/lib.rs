//! Outgoing HTTP of the sidecar: one way to resolve, dial and verify, for MCP servers and for Vault.
//!
//! What must stay true: every connection resolves and checks its addresses again; certificates are always verified; no
//! redirect is followed and no proxy is used; an error distinguishes whether the request may have been sent. Nothing here
//! depends on the configuration, MCP or Vault.
//!
//! | module | what it holds |
//! |---|---|
//! | `address` | which addresses may be dialled; the resolver |
//! | `dial` | one connection: TCP, TLS, HTTP/1.1 |
//! | `tls` | certificate authorities, client certificates, the rustls configuration |
//! | `pool` | the connections to one server |
//! | `one_shot` | one request on a connection of its own |
//! | `streaming` | one request with bodies that are sent and read piece by piece |
//! | `headers` | request headers that the configuration cannot set |

#![forbid(unsafe_code)]

mod address;
mod dial;
mod headers;
mod one_shot;
mod pool;
mod streaming;
mod tls;

pub use address::{AddressError, AddressPolicy, Host, Resolve, Resolving, SystemResolver};
pub use dial::{
    ConnectError, Connection, Dialer, Duplex, Endpoint, RequestBody, Scheme, Sender, connect_to_first,
};
pub use headers::{RESERVED_HEADER_PREFIXES, RESERVED_HEADERS, is_reserved_header};
pub use one_shot::{OneShotError, OneShotLimits, send_once};
pub use pool::{Pool, PooledResponse, SendError};
pub use streaming::{BodyEnded, BodySender, ChannelBody, StreamedResponse, channel_body, open_stream};
pub use tls::{Identity, PemError, Trust, client_config, distribution_roots, roots_from_pem};
