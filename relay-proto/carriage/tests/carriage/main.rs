//! Every transport of a link over real sockets, with correct and with misbehaving peers.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod handshake;
mod inbound;
mod port;
mod proxy;
mod support;
mod websocket;
