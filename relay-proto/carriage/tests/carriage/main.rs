//! Every way of carriage over real sockets, honest peers first, then all the others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod entrance;
mod handshake;
mod port;
mod proxy;
mod support;
mod websocket;
