//! Sandboxes that cannot reach out: the host reaches in, by a pipe that `cofferdam attach` holds.
//!
//! `cofferdam attach` keeps one connection to the admin socket open for as long as it wants the sandbox attached: the
//! hold. Each pipe is another, which turns into the pipe once it has been asked for. So a pipe may die and come again, and
//! whoever ends `attach`, however it ends, ends its pipe too.
//!
//! | module | what it holds |
//! |---|---|
//! | [`hold`] | one `cofferdam attach`, for as long as it is there |
//! | [`last_user`] | the stream of a pipe that one link has |
//! | [`pipe`] | one pipe, from its handshake to its end |

pub(super) mod hold;
mod last_user;
pub(super) mod pipe;
