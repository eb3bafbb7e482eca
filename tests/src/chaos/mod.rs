//! A bad network: cuts, delays, tiny pieces, half-closed connections, and bytes that arrive late.
//!
//! A [`proxy::Proxy`] between a shim and a sidecar copies bytes without reading more than frame headers, so every kind
//! of link is tested in the same way: a [`kind::LinkKind`] says where the proxy listens and connects to. The
//! [`plan::Plan`] of the n-th connection is drawn from a seed that is printed; `COFFERDAM_CHAOS_SEED` repeats a run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`conversation`] | many calls over one link, each checked at both ends and in the audit |
//! | [`endpoint`] | byte streams and their addresses |
//! | [`frames`] | where the frames of a stream begin |
//! | [`kind`] | the kinds of link, one constructor each |
//! | [`plan`] | what happens to a connection |
//! | [`proxy`] | the proxy |
//! | [`random`] | numbers from a seed |

pub mod conversation;
pub mod endpoint;
pub mod frames;
pub mod kind;
pub mod plan;
pub mod proxy;
mod pump;
pub mod random;
