//! The admin socket, by which the command line controls the daemon: one JSON line for the request, one for the
//! response. And `http`, the port for health checks and metrics.

pub(crate) mod client;
pub(crate) mod http;
pub(crate) mod server;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::attachments::request::AttachmentRequest;
use super::attachments::status::{AttachmentStatus, Lifetime, OverCause};
use crate::link::command::Description;
use crate::link::registry::EndedLink;

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum AdminRequest {
    /// Keeps the sandbox attached for as long as this connection is open; events are sent on it.
    Attach {
        grant: String,
        name: String,
        ttl_ms: Option<u64>,
    },
    /// Attaches a sandbox of a platform. Its status is sent on this connection, as JSON lines; a disconnect ends it, unless
    /// it is to be left in the sidecar and was attached.
    AttachPlatform {
        attachment: AttachmentRequest,
        #[serde(default)]
        detach: bool,
    },
    /// Lists attachments of sandboxes on platforms.
    Attachments,
    EndAttachment {
        name: String,
    },
    Enroll {
        grant: String,
        name: Option<String>,
        ttl_ms: Option<u64>,
        ticket_ttl_ms: u64,
        /// Instead of a ticket: a socket in this directory.
        socket: Option<PathBuf>,
    },
    Kill {
        /// A session, or an enrolment.
        session: String,
    },
    /// This connection becomes a pipe into a sandbox that is held by an `Attach`.
    Pipe {
        enrolment: String,
    },
    Reload,
    Sessions,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum AdminResponse {
    /// The sandbox is held: `Pipe` may be requested now.
    Attaching {
        enrolment: String,
        /// The sidecar's public key.
        pin: String,
    },
    /// The attachment was started; its status follows, line by line.
    AttachmentStarted {
        name: String,
    },
    AttachmentRefused {
        why: String,
        cause: OverCause,
    },
    Attachments {
        attachments: Vec<AttachmentStatus>,
    },
    Enrolled {
        enrolment: String,
        expires_in_seconds: u64,
        /// The enrolment string, or the address that the shim connects to.
        text: String,
    },
    Killed {
        links: Vec<EndedLink>,
        /// The enrolment that ended too.
        #[serde(default)]
        enrolment: Option<String>,
        /// The attachment that ended, and what it lived with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attachment: Option<(String, Lifetime)>,
        total_ms: u64,
    },
    /// All further bytes on this connection belong to the pipe.
    Piped,
    Refused {
        why: String,
    },
    Reloaded {
        policy: String,
        /// Keys that changed and take effect only after a restart.
        #[serde(default)]
        at_restart: Vec<String>,
    },
    Sessions {
        sessions: Vec<Description>,
        /// Attachments of sandboxes on platforms, with or without links.
        #[serde(default)]
        attachments: Vec<AttachmentStatus>,
    },
}

/// Upper bound of a request's length.
const MAX_REQUEST_BYTES: usize = 4 * 1024;
