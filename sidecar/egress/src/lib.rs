//! The sidecar's end of a confined server's network: connections by name, to what is listed and nothing else.
//!
//! A confined server has a network of its own with a loopback interface. Before its program runs, listeners are bound in
//! there, one for each listed host and port, at made-up addresses; and a socket for look-ups. The sockets are passed out
//! to the sidecar, which accepts from its own network. So the server's clients connect as always, and every byte they send
//! goes through here.
//!
//! ```text
//! client in the server's network ── listener of a name ── check, resolve, check, dial ── the real host
//!                └── look-up of a name ── answered from the list
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `host`, `name` | what is listed |
//! | `plan`, `pool` | the sockets and addresses inside, and what they stand for |
//! | `serve`, `tasks`, `shared`, `limits` | the tasks of one server's network, and their limits |
//! | `resolver`, `dns`, `names` | look-ups from inside |
//! | `connection`, `relay`, `hello` | one connection |
//! | `lookups` | look-ups of real addresses |
//! | `event` | reports of what happens |
//!
//! What must stay true:
//! - A connection is made only to a host that is listed with that port, at an address that was checked after the name was
//!   resolved. It is resolved once, and that address is dialled.
//! - TLS is not opened. A client that begins with TLS must name the host that it is connected to, or none.
//! - Everything that a server can make use of is bounded, and a refusal is quick.
//! - When an [`Egress`] ends, no socket of the server's network is left open: one would keep the network in existence.
//!
//! Not covered: what a client asks for inside TLS, or in the `Host` header without it (domain fronting: two hosts behind one
//! address); data in the names below a wildcard, which are looked up when the server connects to them.

#![forbid(unsafe_code)]

mod connection;
mod dns;
mod event;
mod hello;
mod host;
mod limits;
mod lookups;
mod name;
mod names;
mod plan;
mod pool;
mod relay;
mod resolver;
mod serve;
mod shared;
mod tasks;

pub use event::{Ending, Event, LimitReached, Observer, Peer, Refusal, ThroughPrivate, Traffic};
pub use host::{AllowedHost, InvalidHost, ReachedAddresses};
pub use limits::Limits;
pub use plan::{MAX_HOSTS, Plan, PlanError};
pub use pool::{AddressPool, InvalidPool};
pub use serve::{Egress, ServeError, serve};
pub use shared::Usage;
