//! Sandboxes that cannot connect out: the host connects to them, through a pipe from `cofferdam attach` or from an
//! attachment of the sidecar.
//!
//! `cofferdam attach` keeps one connection to the admin socket open for as long as the sandbox is to be attached: the
//! hold. Each pipe is a further connection to the admin socket, which carries the pipe after its request was accepted.
//! So a pipe may break and be replaced, and when `attach` ends, for whatever reason, its pipe ends too.
//!
//! | module | what it holds |
//! |---|---|
//! | [`hold`] | the hold of a sandbox |
//! | [`pipe`] | one pipe, from its handshake to its end |
//! | [`shut_on_drop`] | the stream of a pipe with a single link |

pub(super) mod hold;
pub(super) mod pipe;
mod shut_on_drop;
