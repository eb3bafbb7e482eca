//! Sandboxes that cannot connect out: the host connects in, by a pipe that `cofferdam attach` provides.
//!
//! `cofferdam attach` keeps one connection to the admin socket open for as long as the sandbox is to be attached: the
//! hold. Each pipe is another connection, which becomes the pipe once it was requested. So a pipe may break and be
//! replaced, and the end of `attach`, for whatever reason, ends its pipe too.
//!
//! | module | what it holds |
//! |---|---|
//! | [`hold`] | one `cofferdam attach`, for as long as it runs |
//! | [`shut_on_drop`] | the stream of a pipe with a single link |
//! | [`pipe`] | one pipe, from its handshake to its end |

pub(super) mod hold;
pub(super) mod pipe;
mod shut_on_drop;
