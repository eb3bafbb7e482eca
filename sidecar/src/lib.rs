//! The host side of Cofferdam: the daemon and its command line.
//!
//! A call walks straight through: [`link`] takes a message off a connection; in [`call`], [`policy`] decides, [`audit`]
//! writes the decision down, [`servers`] carries it to the server and back, [`scrub`] takes credentials out of what
//! returns.
//!
//! | module | what it is for | may know |
//! |---|---|---|
//! | [`cli`] | the command line | everything |
//! | [`demo`] | `cofferdam demo` | terminal, the audit's readers |
//! | [`terminal`] | what commands print, and their exit codes | nothing |
//! | [`daemon`] | listeners, handshakes, the admin socket, reload, the orderly stop | all below |
//! | [`link`] | one sandbox's connection to one server: frames, resume, timers, the end | call, session |
//! | [`call`] | every message's way in and out: decoded, decided, recorded, forwarded, answered | session, policy, servers, audit, scrub |
//! | [`session`] | sessions: the secrets and the audit budget that links share | secrets, vault, audit |
//! | [`servers`] | a link's server: start, restart, handshake; stdio or HTTP | secrets, process |
//! | [`enrolment`] | who may come: tickets, keys and their epochs, sockets | names |
//! | [`secrets`] | where credentials come from, the one type that holds them, and what is filled with them | process, scrub |
//! | [`cofferdam_vault`] | the client of Vault, the login that is kept alive, and the tokens and leases of a session | secrets, net, scrub |
//! | [`process`] | server processes and the keepers that end them; the only `unsafe` | nothing |
//! | [`policy`] | which requests may pass | names |
//! | [`audit`] | the chain of decisions and outcomes | policy, metrics |
//! | [`scrub`] | finds credentials in whatever form | bytes |
//! | [`metrics`] | counters and gauges: counted anywhere, rendered for [`daemon`] | nothing |
//! | [`config`] | the configuration: raw, checked, immutable | policy and template syntax |
//! | [`clock`], [`random`], [`atomic_file`] | wall-clock time; random bytes; files that are whole or not there | nothing |
//!
//! `audit`, `policy`, `process`, `scrub`, `secrets`, `servers`, `vault` and, in `cofferdam-base`, `clock`, `random`, `atomic_file` and `metrics` are crates
//! of their own beside `src`.

#![forbid(unsafe_code)]

pub use cofferdam_audit as audit;
pub use cofferdam_base::clock;
pub(crate) use cofferdam_base::{atomic_file, duration, metrics, random};
pub use cofferdam_policy as policy;
pub use cofferdam_process as process;
pub use cofferdam_scrub as scrub;
pub use cofferdam_secrets as secrets;
// Former names, until every import has the new one.
pub use cofferdam_secrets as inject;
pub use cofferdam_secrets as secret;

pub use cofferdam_net as net;
pub use cofferdam_servers as servers;

mod call;
pub mod cli;
pub mod config;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod enrolment;
pub(crate) mod link;
pub(crate) mod session;
mod terminal;
#[cfg(test)]
mod turn_counter;
