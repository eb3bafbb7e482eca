//! A network that does its worst: cuts, delays, tiny pieces, half-closed ends, and bytes that arrive after their time.
//!
//! A [`proxy::Proxy`] stands between a shim and a sidecar and knows nothing of either but a stream of bytes, so every
//! kind of link is tried in the same way: a [`kind::LinkKind`] says where the proxy listens and where it leads.
//! What happens to the n-th connection is its [`plan::Plan`], drawn from a seed that is printed: a failure can be
//! had again with `COFFERDAM_CHAOS_SEED`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`conversation`] | many calls over one link, each accounted for at both ends and in the audit |
//! | [`frames`] | where the frames of a stream begin |
//! | [`kind`] | the kinds of link, one constructor each |
//! | [`place`] | byte streams and where they are found |
//! | [`plan`] | what happens to a connection |
//! | [`proxy`] | the proxy |
//! | [`random`] | numbers from a seed |

pub mod conversation;
pub mod frames;
pub mod kind;
pub mod place;
pub mod plan;
pub mod proxy;
mod pump;
pub mod random;
