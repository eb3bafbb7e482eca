//! Byte streams that carry a link, and the authentication of their peers.
//!
//! A link needs one ordered stream of bytes. This crate provides it for each kind of connection between a sandbox and
//! its host, for both sides: the shim and the sidecar use the same code, so that neither can misread the other.
//!
//! What must stay true: whichever side dialled, the sandbox is the TLS client and the sidecar the TLS server; both
//! prove an Ed25519 key in TLS 1.3, and nothing else is ever trusted. The layers around it (a WebSocket, another TLS, a
//! proxy) are transport only: an attacker who reads or changes them gains nothing. Every length is checked before
//! memory is allocated, and no error repeats a password.
//!
//! | module | what it holds |
//! |---|---|
//! | [`identity`] | a key pair, and the public key that identifies its holder |
//! | [`tls`] | TLS 1.3 with raw public keys, pinned |
//! | [`outer`] | the TLS around a WebSocket, which authenticates no peer |
//! | [`websocket`] | a byte stream in binary WebSocket messages |
//! | [`proxy`] | HTTP CONNECT, and the environment variables that select a proxy |
//! | [`dial`] | opens a stream to a relay's address, step by step |
//! | [`inbound`] | the sandbox's side of a connection that the host opens |
//! | [`reception`] | the sidecar's side of its one port |
//! | [`trunk`] | many links in one pipe |
//! | [`vsock`] | between a virtual machine and its host |
//! | [`hybrid_vsock`] | the same, through a Unix socket of the machine's monitor |

#![forbid(unsafe_code)]

#[cfg(feature = "tls")]
pub mod dial;
#[cfg(feature = "tls")]
mod head;
pub mod hybrid_vsock;
#[cfg(feature = "tls")]
pub mod identity;
#[cfg(feature = "tls")]
pub mod inbound;
#[cfg(feature = "tls")]
pub mod outer;
#[cfg(feature = "tls")]
pub mod proxy;
#[cfg(feature = "reception")]
pub mod reception;
#[cfg(feature = "tls")]
mod rewound;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "hub")]
pub mod trunk;
pub mod vsock;
#[cfg(feature = "tls")]
pub mod websocket;

use tokio::io::{AsyncRead, AsyncWrite};

/// Any ordered stream of bytes. Writers must flush before they wait for a response.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub type BoxedStream = Box<dyn Stream>;
