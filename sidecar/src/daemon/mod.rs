//! The daemon: listeners, handshakes, the admin API, attached sandboxes, reload, and the orderly stop.
//!
//! | module | what it holds | uses |
//! |---|---|---|
//! | [`serve`] | starting the daemon, running it until a signal or the end of its lifetime, stopping it | all below |
//! | [`admin`] | the admin API on its socket and its port, and the port for health checks and metrics | attach, enrolling, reload |
//! | [`attach`] | pipes into sandboxes that cannot connect out | enrolling, handshake, attach_table |
//! | [`attachments`] | sandboxes on platforms that the sidecar itself keeps connected | attach, enrolling |
//! | [`enrolling`] | making and ending enrolments | listen, path_isolation, supervise |
//! | [`reload`] | reading the configuration again | state, service_manager, unix_socket |
//! | [`listen`] | the shared socket, sockets of single sandboxes, the TLS port | handshake, unix_socket |
//! | [`handshake`] | a new connection's Hello, and the link that it opens or resumes | admission, status, handshake_slots |
//! | [`admission`] | which peers are accepted, and for which server | state |
//! | [`status`] | the status of a sandbox, sent when its shim requests it | state |
//! | [`state`] | the running daemon's state | attach_table, own_sockets, refusal_log, disconnect_watch |
//! | [`attach_table`] | the sandboxes that are attached | |
//! | [`disconnect_watch`] | whether a peer with an outdated credential disconnects by itself | handshake_slots |
//! | [`handshake_slots`] | the slots for connections whose Hello is awaited | |
//! | [`left_out_lines`] | how many lines were left out of the log | |
//! | [`logging`] | the log, scrubbed before it is written | |
//! | [`own_sockets`] | the open sockets of single sandboxes | unix_socket |
//! | [`path_isolation`] | which paths must not be visible in a sandbox | |
//! | [`refusal_log`] | refused connections in the log, rate limited | |
//! | [`service_manager`] | the relay socket that systemd passes, and what systemd is told | |
//! | [`state_format`] | whether the state directory is of this version or an older one | |
//! | [`supervise`] | a task that is restarted when it panics | |
//! | [`unix_socket`] | binding Unix sockets: stale or in use, mode, removal | |
//! | [`while_held`] | a sidecar that ends with the last `cofferdam run` | |

pub(crate) mod admin;
mod admission;
pub(crate) mod attach;
pub(crate) mod attach_table;
pub(crate) mod attachments;
mod disconnect_watch;
mod enrolling;
mod handshake;
mod handshake_slots;
mod left_out_lines;
mod listen;
pub(crate) mod logging;
mod own_sockets;
pub(crate) mod path_isolation;
mod refusal_log;
mod reload;
mod serve;
pub(crate) mod service_manager;
mod state;
pub(crate) mod state_format;
mod status;
mod supervise;
mod unix_socket;
pub(crate) mod while_held;

pub(crate) use listen::own_socket_path;
pub(crate) use serve::{ServeError, serve};
pub(crate) use unix_socket::SocketError;
