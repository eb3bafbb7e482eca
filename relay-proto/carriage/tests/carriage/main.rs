//! Every way of carriage over real sockets, honest peers first, then all the others.

#![expect(clippy::unwrap_used, reason = "tests: a panic is a failure")]
mod entrance;
mod handshake;
mod port;
mod proxy;
mod support;
mod websocket;
