//! The server of a link: started when first needed, restarted with backoff, sent the handshake again, and replaced when its
//! credential changes.
//!
//! Each link owns one [`ServerSet`]. It holds [`slot`]s, one for the server and one for each scope of its tools; a slot
//! holds [`generation`]s, each one process or connection; a generation holds an [`upstream`], which moves messages.
//! There is no queue here: a message for a process that is not ready returns to the pipeline.
//!
//! | module | what it holds |
//! |---|---|
//! | `confined` | the start of a confined server |
//! | [`confined_view`] | what such a start would give the server |
//! | `event` | what a link's servers report to its pipeline |
//! | `generation` | one process, from its start to its end |
//! | [`grant_limits`] | how many processes, starts and links a grant may have, shared fairly among its sandboxes |
//! | `launcher` | all that a link needs to start its server at any time |
//! | `terminating` | processes that are being ended and may not have exited yet |
//! | `outbound` | one message on its way to a server |
//! | `processes` | the processes of a slot by their role |
//! | `read_memory` | memory for messages that are being received, charged before it is taken |
//! | `reload` | rewriting the credential files of a running process |
//! | `replacement` | the state of replacing a process because a credential changed |
//! | `server_secrets` | the secrets of a server or scope, and how a session gets them |
//! | `set` | the slots of one link |
//! | `slot` | one server or scope: when processes start, open, take over and end |
//! | [`spec`] | the checked configuration of a server |
//! | `start_backoff` | when a server that failed may be started again |
//! | `start_error` | why a server did not start |
//! | `stderr` | a server's stderr: bounded, scrubbed, into the log and a file |
//! | [`stderr_files`] | the files with the stderr of each server |
//! | `tool_fingerprint` | whether two processes offer the same tools and capabilities |
//! | `tool_list` | `tools/list` requests of the sidecar itself |
//! | [`trial`] | a trial of one server: start, handshake, list of tools, end |
//! | [`upstream`] | a started server as a stream of messages: stdio or HTTP; `upstream::start` makes one |
//! | `working_directory` | the directories in which stdio servers start |

#![forbid(unsafe_code)]

mod confined;
pub mod confined_view;
mod event;
mod generation;
pub mod grant_limits;
mod launcher;
mod network_events;
mod outbound;
mod processes;
mod read_memory;
mod reload;
mod replacement;
mod server_secrets;
mod set;
mod slot;
pub mod spec;
mod start_backoff;
mod start_error;
mod stderr;
pub mod stderr_files;
mod terminating;
#[cfg(test)]
mod tests;
mod tool_fingerprint;
mod tool_list;
pub mod trial;
pub mod upstream;
mod working_directory;

pub use event::{DID_NOT_RUN, Event, ProcessId, Role, SlotKey};
pub use launcher::Launcher;
pub use network_events::{NetworkEvent, NetworkEventKind, NetworkEvents};
pub use outbound::{Outbound, OutboundCow, OutboundKind, QUEUE_BYTES, REFUSED_BYTES};
pub use read_memory::NO_MEMORY;
pub use replacement::{Notice, ReplacementOutcome};
pub use set::{Recipients, ScopeProcess, ServerSet, Target};
pub use slot::{HandshakeStart, SendResult, WhenNotReady};
pub use start_error::StartError;
pub use tool_list::{NextPage, ToolList};
#[cfg(any(test, feature = "scripted"))]
pub use upstream::scripted;
pub use upstream::start::HostResources;
pub use working_directory::WorkingDirectories;
