//! A started server, over stdio or HTTP: messages are sent to it, its events are received, and it is ended.
//!
//! Nothing here depends on policy rules or on the audit.

pub mod http;
pub(crate) mod http_credentials;
#[cfg(any(test, feature = "scripted"))]
pub mod scripted;
pub(crate) mod start;
pub(crate) mod stdio;
mod stdio_process;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use cofferdam_confine::Standing;
use cofferdam_egress::Egress;
use cofferdam_process::{Ended, Exit};
use cofferdam_secrets::files::FileSet;
use cofferdam_secrets::{SecretReads, Secrets};
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use relay_proto::mcp;
use relay_proto::replay::{OwnRequest, ReplayMessage};

use self::http::{Event as HttpEvent, Failure, HttpUpstream};
use self::http_credentials::HeaderCredentials;
#[cfg(any(test, feature = "scripted"))]
use self::scripted::ScriptedUpstream;
use self::start::{Admit, StartContext};
use self::stdio::{StdioEvent, StdioUpstream};
use crate::event::Event;
use crate::grant_limits::ProcessPermit;
use crate::outbound::{Outbound, QUEUE_BYTES, REFUSED_BYTES};
use crate::read_memory::NO_MEMORY;
use crate::spec::ServerKind;
use crate::start_error::StartError;

pub(crate) use self::stdio_process::StdioProcess;

pub(crate) enum Upstream {
    Http(Box<HttpConnection>),
    Stdio(Box<StdioProcess>),
}

pub(crate) struct HttpConnection {
    upstream: HttpUpstream,
    credentials: Arc<HeaderCredentials>,
}

/// A process's stdin and stdout, or a simulated process.
#[cfg_attr(
    any(test, feature = "scripted"),
    expect(clippy::large_enum_variant, reason = "outside of tests there is one variant")
)]
pub(crate) enum ProcessPipes {
    Real(StdioUpstream),
    #[cfg(any(test, feature = "scripted"))]
    Scripted(ScriptedUpstream),
}

/// Kept for as long as the process lives: its injected files, its permit in the grant, its credentials.
pub(crate) struct ProcessResources {
    pub(crate) files: FileSet,
    /// While these are in use, the session's Vault token that they derive from is not revoked.
    pub(crate) secrets: Arc<Secrets>,
    /// Serves the network of a confined server; its connections end with it.
    pub(crate) network: Option<Egress>,
    /// The walls around a confined server.
    pub(crate) standing: Option<Arc<Standing>>,
    pub(crate) _permit: ProcessPermit,
}

/// Bounds the notifications to a server that does not read: [`QUEUE_BYTES`] more once its queue is full, then none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotificationBudget {
    bytes_while_full: usize,
    dropped: u64,
}

impl Upstream {
    pub(crate) async fn start(context: StartContext<'_>, admit: Admit) -> Result<Self, StartError> {
        match &context.secrets.server.kind {
            ServerKind::Http(http) => context.prepare_http(http).await,
            ServerKind::Stdio(stdio) => context.launch(stdio, admit).await,
        }
    }

    pub(crate) fn send(&mut self, message: Outbound) {
        match self {
            Self::Http(http) => {
                let credentials = match &message.scope {
                    Some(scope) => Arc::new(http.credentials.in_scope(scope)),
                    None => Arc::clone(&http.credentials),
                };
                http.upstream.send(message, credentials);
            }
            Self::Stdio(stdio) => stdio.send(&message.bytes),
        }
    }

    /// The Vault reads of those secrets of the process that were read after the decision on this message was written to the
    /// audit. An HTTP upstream reports such reads with [`Event::SentWith`] instead.
    pub(crate) fn reads_after_decision(&self, message: &Outbound) -> Option<Arc<SecretReads>> {
        let Self::Stdio(stdio) = self else { return None };
        message.decision_reads.as_ref()?.reads_beyond(&stdio.resources.secrets)
    }

    pub(crate) fn send_all(&mut self, messages: Vec<ReplayMessage>) {
        for message in messages {
            self.send(match message {
                ReplayMessage::Notification { method, message } => Outbound::notification(message, method),
                ReplayMessage::Request(OwnRequest { id, method, message }) => {
                    Outbound::request(message, id, method, None)
                }
            });
        }
    }

    /// The next thing that the server sends, or its end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Event {
        match self {
            Self::Http(http) => match http.upstream.next().await {
                HttpEvent::Message(message) => Event::Message(BytesMut::from(message.as_slice())),
                HttpEvent::SentWith { id, reads } => Event::SentWith { id, reads },
                HttpEvent::SessionLost => Event::SessionLost,
                HttpEvent::Returned(message) => Event::Returned(message),
                HttpEvent::Failed { id, failure } => failed(id, failure),
            },
            Self::Stdio(stdio) => stdio.next().await,
        }
    }

    /// The events that were returned have been handled: the memory of their messages is released.
    pub(crate) fn release_handled(&mut self) {
        match self {
            Self::Http(http) => http.upstream.release_handled(),
            Self::Stdio(stdio) => stdio.pipes.release_handled(),
        }
    }

    /// Whether a process has answered no request so far.
    pub(crate) fn is_unanswered_process(&self) -> bool {
        match self {
            Self::Http(_) => false,
            Self::Stdio(stdio) => stdio.is_unanswered(),
        }
    }

    /// Closes the stream of a cancelled HTTP request; does nothing to a process.
    pub(crate) fn cancel(&mut self, id: &IdValue) {
        if let Self::Http(http) = self {
            http.upstream.cancel(id);
        }
    }

    /// Whether this may be sent now. While a session is lost, only a handshake may.
    pub(crate) fn is_ready_for(&self, message: &Outbound) -> bool {
        match self {
            Self::Http(http) => {
                !http.upstream.has_lost_its_session() || message.request_method() == Some(mcp::INITIALIZE)
            }
            Self::Stdio(_) => true,
        }
    }

    pub(crate) fn has_lost_its_session(&self) -> bool {
        match self {
            Self::Http(http) => http.upstream.has_lost_its_session(),
            Self::Stdio(_) => false,
        }
    }

    /// Whether the server reads so slowly that the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.queued_bytes() > QUEUE_BYTES
    }

    /// Whether further requests are refused.
    pub(crate) fn refuses_requests(&self) -> bool {
        self.queued_bytes() > REFUSED_BYTES
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Http(_) => None,
            Self::Stdio(stdio) => Some(stdio.pipes.pid()),
        }
    }

    pub(crate) fn standing(&self) -> Option<Arc<Standing>> {
        match self {
            Self::Http(_) => None,
            Self::Stdio(stdio) => stdio.resources.standing.clone(),
        }
    }

    /// Ends the process and its descendants; returns whether all of them are dead.
    pub(crate) async fn end(self, grace: Duration) -> Ended {
        match self {
            Self::Http(http) => {
                http.upstream.close().await;
                Ended::All
            }
            Self::Stdio(stdio) => stdio.end(grace).await,
        }
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        match self {
            Self::Http(http) => http.upstream.queued_bytes(),
            Self::Stdio(stdio) => stdio.pipes.queued_bytes(),
        }
    }
}

impl HttpConnection {
    pub(crate) fn new(upstream: HttpUpstream, credentials: HeaderCredentials) -> Self {
        Self { upstream, credentials: Arc::new(credentials) }
    }
}

impl ProcessPipes {
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Real(process) => process.pid(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.pid(),
        }
    }

    /// Queues one message. It must contain no character that the line reader of any language takes for a line break.
    fn send(&mut self, line: &[u8]) {
        match self {
            Self::Real(process) => process.send(line),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.send(line),
        }
    }

    /// Writes as many queued bytes as the process accepts without waiting.
    pub(crate) fn write_now(&mut self) {
        match self {
            Self::Real(process) => process.write_now(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.flush(),
        }
    }

    fn queued_bytes(&self) -> usize {
        match self {
            Self::Real(process) => process.queued_bytes(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.queued_bytes(),
        }
    }

    fn release_handled(&mut self) {
        match self {
            Self::Real(process) => process.release_handled(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(_) => {}
        }
    }

    /// A message that has already arrived.
    pub(crate) fn buffered(&mut self) -> Option<StdioEvent> {
        match self {
            Self::Real(process) => process.buffered(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.buffered(),
        }
    }

    /// Writes queued messages and waits for the next event. Cancel-safe.
    async fn next(&mut self) -> StdioEvent {
        match self {
            Self::Real(process) => process.next().await,
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.next().await,
        }
    }

    /// How the process exited, if it has.
    fn exit(&mut self) -> Option<Exit> {
        match self {
            Self::Real(process) => process.exit(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(_) => None,
        }
    }

    /// Waits until the main process has exited. Cancel-safe.
    pub(crate) async fn exited(&mut self) -> Exit {
        match self {
            Self::Real(process) => process.exited().await,
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(_) => Exit::Code(0),
        }
    }

    /// Sends SIGHUP: the files of the process have changed.
    pub(crate) fn send_sighup(&self) {
        match self {
            Self::Real(process) => process.send_sighup(),
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.send_sighup(),
        }
    }

    async fn end(self, grace: Duration) -> Ended {
        match self {
            Self::Real(process) => process.end(grace).await,
            #[cfg(any(test, feature = "scripted"))]
            Self::Scripted(process) => process.end(grace).await,
        }
    }
}

impl NotificationBudget {
    /// Whether a notification of this size may be sent now. The first refusal of each process is logged.
    pub(crate) fn allows(&mut self, upstream: &Upstream, bytes: usize) -> bool {
        if !upstream.is_full() {
            self.bytes_while_full = 0;
            return true;
        }
        self.bytes_while_full += bytes;
        if self.bytes_while_full <= QUEUE_BYTES {
            return true;
        }
        if self.dropped == 0 {
            tracing::debug!(
                pid = upstream.pid(),
                "the server does not read: notifications for it are dropped"
            );
        }
        self.dropped += 1;
        false
    }
}

fn failed(id: IdValue, failure: Failure) -> Event {
    let (code, why) = match failure {
        Failure::MaybeRan { why } => (
            Code::OutcomeUnknown,
            format!("{why}; it may or may not have run, so check before you repeat it"),
        ),
        Failure::NoCredential { why } => return Event::did_not_run(id, Code::CredentialUnavailable, &why),
        Failure::DidNotRun { why } => return Event::did_not_run(id, Code::ServerUnavailable, &why),
        Failure::SessionLost => {
            let why = "the server had lost the session; repeat the request";
            return Event::did_not_run(id, Code::ServerUnavailable, why);
        }
        Failure::TooLarge => (
            Code::MessageTooLarge,
            "the call ran, but its response is too large and is not relayed; ask for less at a time".into(),
        ),
        Failure::NoMemory => (Code::MessageTooLarge, NO_MEMORY.into()),
        Failure::Forbidden => {
            let why = "the server did not accept the credential; ask the user to renew it";
            return Event::did_not_run(id, Code::CredentialUnavailable, why);
        }
    };
    Event::Failed { id, code, why }
}
