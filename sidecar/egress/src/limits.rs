//! How much a server may use of the sidecar's network.

use std::time::Duration;

/// The limits of one server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections at once, those that are being made included.
    pub connections: usize,
    /// New connections in any second.
    pub connections_per_second: u32,
    /// Bytes in both directions, over the life of the server. `None`: without limit.
    pub bytes: Option<u64>,
    /// How long a connection may pass no byte.
    pub idle: Duration,
    /// The longest time for resolving a name and connecting to it.
    pub connect: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            connections_per_second: 100,
            bytes: None,
            // Connections to databases wait for long in their client's pool.
            idle: Duration::from_secs(60 * 60),
            connect: Duration::from_secs(10),
        }
    }
}
