//! The host side of Cofferdam: the daemon and its command line.
//!
//! The path of a call: [`link`] receives a message from a connection; in [`call`], `policy` decides, `audit` records
//! the decision, `servers` sends the call to the server and receives the response, `scrub` removes credentials from it.
//! The parts that are crates of their own are beside `src`; ARCHITECTURE.md lists them.
//!
//! | module | what it is for |
//! |---|---|
//! | [`call`] | the pipeline of messages: decode, decide, record, forward, reply |
//! | [`check`] | what a configuration refers to, on this host and in Vault |
//! | [`cli`] | the command line |
//! | [`config`] | the configuration: raw, checked, immutable |
//! | [`daemon`] | listeners, handshakes, the admin API, attached sandboxes, reload, the orderly stop |
//! | [`demo`] | `cofferdam demo` |
//! | [`doctor`] | `cofferdam doctor`: looks for what is wrong, and names the next step |
//! | [`enrolment`] | which sandboxes may connect: tickets, keys and their epochs, sockets |
//! | [`harness`] | harnesses that Cofferdam knows, and their settings files |
//! | [`link`] | one sandbox's connection to one server: frames, resume, timers, the end |
//! | [`run`] | `cofferdam run`: a local sandbox with the shim inside and a command running |
//! | [`session`] | the secrets and the audit budget that the links of a session share |
//! | [`shims`] | the static shims, which are in this program or beside it |
//! | [`terminal`] | what commands print, and their exit codes |
//! | [`trials`] | servers that are started to see whether they work |

#![forbid(unsafe_code)]

mod call;
pub(crate) mod check;
pub mod cli;
pub mod config;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod enrolment;
pub(crate) mod harness;
pub(crate) mod link;
pub(crate) mod run;
pub(crate) mod session;
mod shims;
mod terminal;
pub(crate) mod trials;
#[cfg(test)]
mod turn_counter;
