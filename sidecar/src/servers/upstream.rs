//! A started server, whichever way it is reached: what goes in, what comes out, how it ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use relay_proto::memory::{Question, Saying};
use relay_proto::{json, mcp};

use super::event::{Event, Passed, Unavailable};
use super::gate::Place;
use super::keyring::Keyring;
#[cfg(test)]
use super::scripted::ScriptedUpstream;
use crate::inject::Secrets;
use crate::inject::files::FileSet;
use crate::process::{Ended, Exit};
use crate::upstream::http::{Event as HttpEvent, Failure, HttpUpstream};
use crate::upstream::outbound::{Outbound, QUEUE_BYTES, REFUSED_BYTES};
use crate::upstream::stdio::{StdioEvent, StdioUpstream};

pub(crate) enum Upstream {
    Http(Box<HttpConnection>),
    Stdio(Box<StdioProcess>),
}

pub(crate) struct HttpConnection {
    pub(super) upstream: HttpUpstream,
    keyring: Arc<Keyring>,
}

pub(crate) struct StdioProcess {
    pub(super) upstream: ProcessPipes,
    pub(super) belongings: Belongings,
}

/// A process's stdin and stdout, or a test that plays the process.
#[cfg_attr(test, expect(clippy::large_enum_variant, reason = "outside of tests there is one variant"))]
pub(super) enum ProcessPipes {
    Real(StdioUpstream),
    #[cfg(test)]
    Scripted(ScriptedUpstream),
}

/// What is kept as long as the process lives: its injected files, its place in the grant, the credentials it has.
pub(crate) struct Belongings {
    pub(super) files: FileSet,
    /// The session's token that they hang from is not revoked while they are in use.
    pub(super) secrets: Arc<Secrets>,
    pub(super) _place: Place,
}

/// What comes from a server.
pub(super) enum Said {
    Event(Event),
    /// The server has forgotten the MCP session.
    Forgotten,
    /// It did not run, and can be sent again once the session is open again.
    Returned(Outbound),
}

/// What a server is told although it does not read: as much again as makes it full, then nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Telling {
    bytes_while_full: usize,
    dropped: u64,
}

impl Upstream {
    pub(super) fn send(&mut self, message: Outbound) {
        match self {
            Self::Http(http) => {
                let keyring = match &message.scope {
                    Some(scope) => Arc::new(http.keyring.in_scope(scope)),
                    None => Arc::clone(&http.keyring),
                };
                http.upstream.send(message, keyring);
            }
            Self::Stdio(stdio) => stdio.send(&message.bytes),
        }
    }

    /// What the link hears if this is sent to a process that has its secrets from other reads than were decided with; an
    /// HTTP request finds out by itself.
    pub(super) fn sent_with(&self, message: &Outbound) -> Option<Event> {
        let Self::Stdio(stdio) = self else { return None };
        let reads = message.decided.as_ref()?.others(&stdio.belongings.secrets)?;
        Some(Event::SentWith { id: message.request_id()?.clone(), reads })
    }

    /// Sends a request that no other process could take, and says what the link should hear of it.
    pub(super) fn send_alone(&mut self, message: Outbound) -> Result<Option<Event>, Unavailable> {
        if self.is_crowded() {
            return Err(Unavailable::because("the server does not read what it is sent"));
        }
        let sent_with = self.sent_with(&message);
        self.send(message);
        Ok(sent_with)
    }

    pub(super) fn tell(&mut self, sayings: Vec<Saying>) {
        for saying in sayings {
            self.send(match saying {
                Saying::Notification { method, message } => Outbound::notification(message, method),
                Saying::Request(Question { id, method, message }) => {
                    Outbound::request(message, id, method, None)
                }
            });
        }
    }

    pub(super) async fn next(&mut self) -> Said {
        match self {
            Self::Http(http) => match http.upstream.next().await {
                HttpEvent::Message(message) => {
                    Said::Event(Event::Message(BytesMut::from(message.as_slice())))
                }
                HttpEvent::SentWith { id, reads } => Said::Event(Event::SentWith { id, reads }),
                HttpEvent::SessionLost => Said::Forgotten,
                HttpEvent::Returned(message) => Said::Returned(message),
                HttpEvent::Failed { id, failure } => Said::Event(failed(id, failure)),
            },
            Self::Stdio(stdio) => Said::Event(match stdio.upstream.next().await {
                StdioEvent::Closed => Event::Gone { why: stdio.end_in_words() },
                StdioEvent::Line(line) => Event::Message(line),
                StdioEvent::Oversize { id } => Event::Oversize { id },
                StdioEvent::Unsent { id } => Event::did_not_run(id, "the server takes no more requests"),
            }),
        }
    }

    /// Whether this may be sent now. Nothing but a handshake may before a lost session is open again.
    pub(super) fn is_ready_for(&self, message: &Outbound) -> bool {
        match self {
            Self::Http(http) => {
                !http.upstream.has_lost_its_session() || message.request_method() == Some(mcp::INITIALIZE)
            }
            Self::Stdio(_) => true,
        }
    }

    pub(super) fn has_lost_its_session(&self) -> bool {
        match self {
            Self::Http(http) => http.upstream.has_lost_its_session(),
            Self::Stdio(_) => false,
        }
    }

    /// Whether the server takes so slowly that the link should stop reading.
    pub(super) fn is_full(&self) -> bool {
        self.queued_bytes() > QUEUE_BYTES
    }

    /// Whether no message is taken any more.
    pub(super) fn is_crowded(&self) -> bool {
        self.queued_bytes() > REFUSED_BYTES
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Http(_) => None,
            Self::Stdio(stdio) => Some(stdio.upstream.pid()),
        }
    }

    /// The server is over for good, its descendants included, or it is said that they are not dead yet.
    pub(super) async fn end(self, grace: Duration) -> Ended {
        match self {
            Self::Http(http) => {
                http.upstream.close().await;
                Ended::All
            }
            Self::Stdio(stdio) => {
                let StdioProcess { upstream, belongings } = *stdio;
                let ended = upstream.end(grace).await;
                drop(belongings);
                ended
            }
        }
    }

    pub(super) fn queued_bytes(&self) -> usize {
        match self {
            Self::Http(http) => http.upstream.queued_bytes(),
            Self::Stdio(stdio) => stdio.upstream.queued_bytes(),
        }
    }
}

impl HttpConnection {
    pub(super) fn new(upstream: HttpUpstream, keyring: Keyring) -> Self {
        Self { upstream, keyring: Arc::new(keyring) }
    }
}

impl StdioProcess {
    pub(super) fn pass(&mut self, message: &[u8]) -> Passed {
        if self.upstream.queued_bytes() > REFUSED_BYTES {
            return Passed::No;
        }
        self.send(message);
        Passed::Yes
    }

    fn send(&mut self, message: &[u8]) {
        self.upstream.send(&json::line_safe(message));
    }

    fn end_in_words(&mut self) -> String {
        match self.upstream.exit() {
            Some(exit) => format!("the server's process ended ({exit})"),
            None => "the server's process ended".into(),
        }
    }
}

impl ProcessPipes {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Real(process) => process.pid(),
            #[cfg(test)]
            Self::Scripted(process) => process.pid(),
        }
    }

    /// Puts one message on its way, which is one line to every runtime.
    fn send(&mut self, line: &[u8]) {
        match self {
            Self::Real(process) => process.send(line),
            #[cfg(test)]
            Self::Scripted(process) => process.send(line),
        }
    }

    /// Writes what the process takes without waiting.
    pub(super) fn write_now(&mut self) {
        match self {
            Self::Real(process) => process.write_now(),
            #[cfg(test)]
            Self::Scripted(process) => process.flush(),
        }
    }

    fn queued_bytes(&self) -> usize {
        match self {
            Self::Real(process) => process.queued_bytes(),
            #[cfg(test)]
            Self::Scripted(process) => process.queued_bytes(),
        }
    }

    /// What has arrived already.
    pub(super) fn buffered(&mut self) -> Option<StdioEvent> {
        match self {
            Self::Real(process) => process.buffered(),
            #[cfg(test)]
            Self::Scripted(process) => process.buffered(),
        }
    }

    /// Writes what waits and gives what comes. Cancel-safe.
    async fn next(&mut self) -> StdioEvent {
        match self {
            Self::Real(process) => process.next().await,
            #[cfg(test)]
            Self::Scripted(process) => process.next().await,
        }
    }

    /// How the process ended, where that is known by now.
    fn exit(&mut self) -> Option<Exit> {
        match self {
            Self::Real(process) => process.exit(),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// Waits until the main process is over. Cancel-safe.
    pub(super) async fn exited(&mut self) -> Exit {
        match self {
            Self::Real(process) => process.exited().await,
            #[cfg(test)]
            Self::Scripted(_) => Exit::Code(0),
        }
    }

    /// Tells the process that its files are others now.
    pub(super) fn hang_up(&self) {
        match self {
            Self::Real(process) => process.hang_up(),
            #[cfg(test)]
            Self::Scripted(process) => process.hang_up(),
        }
    }

    async fn end(self, grace: Duration) -> Ended {
        match self {
            Self::Real(process) => process.end(grace).await,
            #[cfg(test)]
            Self::Scripted(process) => process.end(grace).await,
        }
    }
}

impl Telling {
    /// Whether so much more may be said to a server that may be full. The first refusal is logged, per process.
    pub(super) fn allows(&mut self, upstream: &Upstream, bytes: usize) -> bool {
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
                "the server does not read: what it would be told is dropped"
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
        Failure::NoCredential { why } => return Event::refused(id, Code::CredentialUnavailable, &why),
        Failure::NotSent { why } => return Event::did_not_run(id, &why),
        Failure::SessionLost => {
            return Event::did_not_run(id, "the server had forgotten the session; send it again");
        }
        Failure::TooLarge => (
            Code::MessageTooLarge,
            "the call ran, but its answer is too large and is not relayed; ask for less at a time".into(),
        ),
        Failure::Unauthorized => {
            let why = "the server did not accept the credential; ask the user to renew it";
            return Event::refused(id, Code::CredentialUnavailable, why);
        }
    };
    Event::Failed { id, code, why }
}
