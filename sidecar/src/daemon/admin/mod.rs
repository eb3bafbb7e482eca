//! The admin API, by which the command line and orchestrators control the daemon: HTTP and JSON on the admin socket, and on
//! the port of `admin.tls`.
//!
//! | module | what it holds |
//! |---|---|
//! | `routes` | the table of routes, and how a request is written to and read from HTTP |
//! | `connection` | one HTTP connection: limits, authentication, the response or the upgrade |
//! | `respond`, `ending`, `token_requests` | carry the requests out |
//! | `actions` | audit records of what callers do |
//! | `listing` | the enrolments and attached sandboxes that a caller may see, by name or id |
//! | `caller` | the authenticated sender of a request, and which grants it may use |
//! | [`tokens`] | bearer tokens, stored as hashes |
//! | `failures` | addresses that sent unknown tokens |
//! | `watch` | the stream of changes |
//! | `error` | refusals, as HTTP responses |
//! | [`server`], [`tls_port`] | accept connections on the socket and on the port |
//! | [`client`], [`event_stream`] | the command line's side |
//! | [`openapi`] | the description of this API for its clients |
//! | [`health_port`] | another port, for health checks and metrics |
//! | `http_server` | limits and headers that both HTTP servers have in common |
//!
//! What must stay true: each kind of request is one row in `routes`, for client and server; a caller with a token sees and
//! changes nothing that belongs to other grants.

mod actions;
mod caller;
pub(crate) mod client;
mod connection;
mod ending;
mod error;
pub(crate) mod event_stream;
mod failures;
pub(crate) mod health_port;
mod http_server;
mod listing;
mod openapi;
mod respond;
mod routes;
pub(crate) mod server;
pub(crate) mod tls_port;
mod token_requests;
pub(crate) mod tokens;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use cofferdam_base::random;
use rustls::ServerConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::attachments::request::AttachmentRequest;
use super::attachments::status::{AttachmentStatus, Lifetime};
use crate::enrolment::EnrolmentKind;
use crate::link::command::Description;
use crate::link::registry::EndedLink;
use crate::session::changes::Change;
use failures::AuthenticationFailures;
use tokens::Tokens;

/// The state of the admin API in the daemon.
pub(crate) struct AdminState {
    tokens: Arc<Tokens>,
    failures: AuthenticationFailures,
    watchers: Arc<Semaphore>,
    /// The certificate of `admin.tls`, while that port is open; a reload reads it again.
    certificate: ArcSwapOption<ServerConfig>,
}

impl AdminState {
    pub(crate) fn new(tokens: Tokens) -> Self {
        Self {
            tokens: Arc::new(tokens),
            failures: AuthenticationFailures::default(),
            watchers: Arc::new(Semaphore::new(watch::MAX_WATCHERS)),
            certificate: ArcSwapOption::empty(),
        }
    }
}

/// A request. Over HTTP `do` is the route, and the fields are the body and the variable part of the path.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub(crate) enum AdminRequest {
    /// Keeps the sandbox attached for as long as this connection is open; events about it are sent on the connection.
    Attach {
        /// The name of the grant, which determines what the sandbox may use.
        #[schemars(regex(pattern = GRANT_PATTERN))]
        grant: String,
        /// The sandbox's name, by which it is recognised when it is attached again.
        #[schemars(length(min = 1, max = 64), regex(pattern = NAME_PATTERN))]
        name: String,
        /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`.
        #[schemars(range(min = 1000, max = MAX_MILLISECONDS))]
        ttl_ms: Option<u64>,
    },
    /// Lists the attachments of sandboxes on platforms.
    Attachments,
    /// Attaches a sandbox of a platform. Each new status of the attachment is sent on this connection as a JSON line; a
    /// disconnect ends the attachment, unless it was detached.
    AttachPlatform {
        attachment: AttachmentRequest,
        /// Detach once the sandbox is attached: the attachment then lasts until it is ended.
        #[serde(default)]
        detach: bool,
    },
    CreateToken {
        /// The grants that the token may be used for.
        #[schemars(length(min = 1, max = 64), inner(regex(pattern = GRANT_PATTERN)))]
        grants: Vec<String>,
        /// A description, shown in lists of tokens.
        #[schemars(length(min = 1, max = 64), regex(pattern = NAME_PATTERN))]
        name: Option<String>,
        /// Default: 30 days. Maximum: 366 days.
        #[schemars(range(min = 1000, max = MAX_TOKEN_TTL_MS))]
        ttl_ms: Option<u64>,
    },
    EndAttachment {
        /// The sandbox's name.
        name: String,
    },
    EndEnrolment {
        /// The id of an enrolment, or the name of its sandbox.
        enrolment: String,
    },
    Enroll {
        /// The name of the grant, which determines what the sandbox may use.
        #[schemars(regex(pattern = GRANT_PATTERN))]
        grant: String,
        /// The sandbox's name.
        #[schemars(length(min = 1, max = 64), regex(pattern = NAME_PATTERN))]
        name: Option<String>,
        /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`.
        #[schemars(range(min = 1000, max = MAX_MILLISECONDS))]
        ttl_ms: Option<u64>,
        /// How soon the sandbox must connect for the first time.
        #[serde(default = "default_ticket_ttl_ms")]
        #[schemars(range(min = 1000, max = MAX_MILLISECONDS))]
        ticket_ttl_ms: u64,
        /// Create a socket in this directory of the host instead of a ticket.
        socket: Option<PathBuf>,
    },
    Enrolments,
    Kill {
        /// The id of a session or an enrolment, or the name of a sandbox.
        session: String,
    },
    /// Turns this connection into a pipe into a sandbox that an `Attach` holds.
    Pipe {
        enrolment: String,
        #[serde(default)]
        via: PipeVia,
    },
    Reload,
    RevokeToken {
        token: String,
    },
    Sessions,
    Tokens,
    Watch,
}

/// What provides a pipe; used in messages about its failure.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PipeVia {
    /// A command's stdin and stdout.
    #[default]
    Command,
    /// A connection to an address.
    Dial,
    /// The sidecar's own client of a platform.
    Platform,
}

/// A response. Over HTTP the tag `answer` is omitted, because the route determines it; `Refused` is an error response.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum AdminResponse {
    /// The sandbox is held, so that `Pipe` can be requested.
    Attaching {
        enrolment: String,
        /// The sidecar's public key.
        pin: String,
    },
    /// The attachment was started; from now on its status is sent on the connection.
    Attachment(AttachmentStatus),
    Attachments {
        attachments: Vec<AttachmentStatus>,
    },
    Enrolled {
        enrolment: String,
        expires_in_seconds: u64,
        /// The enrolment string, or the address that the shim connects to.
        text: String,
    },
    Enrolments {
        enrolments: Vec<EnrolmentEntry>,
    },
    Killed {
        links: Vec<EndedLink>,
        /// The enrolment that ended too.
        #[serde(default)]
        enrolment: Option<String>,
        /// The attachment that ended too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attachment: Option<EndedAttachment>,
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
        /// Attached sandboxes that have no link at the moment.
        #[serde(default)]
        attached: Vec<AttachedSandbox>,
        /// Attachments of sandboxes on platforms, with or without links.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<AttachmentStatus>,
    },
    TokenCreated {
        id: String,
        /// The token, which is shown only here: the sidecar stores only its hash.
        token: BearerToken,
        expires_in_seconds: u64,
    },
    TokenRevoked {
        id: String,
    },
    Tokens {
        tokens: Vec<TokenEntry>,
    },
    Watching(Change),
}

/// An attachment that has ended.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct EndedAttachment {
    pub(crate) name: String,
    /// An attachment of the configuration is started again at the next reload or restart.
    pub(crate) lifetime: Lifetime,
}

/// One enrolment in a list.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct EnrolmentEntry {
    pub(crate) enrolment: String,
    pub(crate) name: Option<String>,
    pub(crate) grant: String,
    pub(crate) kind: EnrolmentKind,
    pub(crate) expires_in_seconds: u64,
    /// The session of the enrolment, while it has links.
    pub(crate) session: Option<String>,
    pub(crate) links: u64,
}

/// A sandbox to which the host opens pipes.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct AttachedSandbox {
    pub(crate) enrolment: String,
    pub(crate) name: String,
    pub(crate) grant: String,
    pub(crate) state: AttachState,
    /// Why the sandbox is not attached.
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AttachState {
    /// The pipe is open.
    Attached,
    /// `cofferdam attach` runs, but no pipe is open.
    Connecting,
    /// `cofferdam attach` has ended; the enrolment ends soon, unless the sandbox is attached again.
    Detached,
}

/// One bearer token in a list, without its secret part.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TokenEntry {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) grants: Vec<String>,
    /// 0 if the token has expired.
    pub(crate) expires_in_seconds: u64,
}

/// The text of a bearer token, wiped from memory on drop.
#[derive(Clone, Deserialize, JsonSchema, Serialize)]
#[serde(transparent)]
pub(crate) struct BearerToken(String);

impl BearerToken {
    /// The text, for `cofferdam token create`, which prints it once, and for hashing.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A new token with this id and 256 random bits.
    fn generate(id: &str) -> Self {
        Self(format!("{TOKEN_PREFIX}{id}_{}", random::hex::<32>()))
    }
}

impl Drop for BearerToken {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// A fixed prefix, by which scanners for leaked credentials recognise a token.
const TOKEN_PREFIX: &str = "cofferdam_";

/// The pattern of grants' names, for the OpenAPI document.
const GRANT_PATTERN: &str = "^[a-z0-9][a-z0-9_-]{0,63}$";
/// The pattern of texts without control characters, for the OpenAPI document.
const NAME_PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
/// The longest lifetime of a token.
const MAX_TOKEN_TTL_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// The largest integer that every JSON parser represents exactly.
const MAX_MILLISECONDS: u64 = (1 << 53) - 1;

/// The default of `cofferdam enroll --ticket-ttl` too.
fn default_ticket_ttl_ms() -> u64 {
    2 * 60 * 1000
}
