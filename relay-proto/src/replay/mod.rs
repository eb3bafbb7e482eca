//! Records the messages of a harness that a replacement server process must be sent again.
//!
//! A harness makes its handshake once, and sets its log level and its resource subscriptions (the *settings*) once.
//! When a new process replaces the one that received them, they are replayed: by the sidecar when it replaces a
//! process, by the shim on a fresh link. Both record them with this module. The stateless era ([`crate::mcp`]) has no
//! handshake and no settings to replay. In either era the tools may have changed: they are listed again, and the
//! harness is notified if they differ.
//!
//! *Our own* requests and ids are those of the shim or sidecar that holds the record, not the harness's. What must stay
//! true: requests are replayed with the harness's bytes and an id of our own; a replacement is sent no handshake that a
//! server did not accept, and no setting that a server refused; responses with our own ids are never forwarded; the record
//! does not grow beyond [`MAX_BYTES`], [`MAX_SUBSCRIPTIONS`] and [`MAX_PENDING`], whatever a harness sends. A message that
//! does not fit is relayed but not recorded; for a handshake there is always space.

mod messages;
mod recorded_request;
#[cfg(test)]
mod tests;
mod tool_page;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::envelope::{self, Id, IdValue, Kind, Outcome, Strictness};
use crate::mcp::{self, ReplayRole, Setting};
use crate::{json, notice};

use recorded_request::RecordedRequest;
use tool_page::ToolPage;

/// All recorded bytes together. A handshake has some hundred bytes, a list of subscriptions some thousand.
pub const MAX_BYTES: usize = 512 * 1024;
/// Resources subscribed to at the same time.
pub const MAX_SUBSCRIPTIONS: usize = 256;
/// Requests without a response that may have to be recorded. One of them is reserved for a handshake: without it nothing
/// could be replayed at all.
pub const MAX_PENDING: usize = 64;
/// Bytes reserved for a handshake.
const HANDSHAKE_BYTES: usize = 64 * 1024;

/// The requests of one harness that changed, or may change, the state of one server.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The prefix of our own ids.
    prefix: &'static str,
    /// How many of our own ids were used. Siblings share the counter: a process can be sent requests of its replay and of
    /// a sibling's, and their ids must differ.
    own_ids: Arc<AtomicU64>,
    /// Requests of the harness without a response, and what each changes if it is accepted.
    pending: Vec<(IdValue, PendingChange)>,
    handshake: Option<Handshake>,
    level: Option<RecordedRequest>,
    subscriptions: Vec<(Box<str>, RecordedRequest)>,
    tools: Option<ToolPage>,
    /// The ids of our own requests whose response has an effect.
    own_handshake: Option<IdValue>,
    own_tool_list: Option<IdValue>,
}

/// A request with an id of our own.
#[derive(Debug, Eq, PartialEq)]
pub struct OwnRequest {
    pub id: IdValue,
    pub method: &'static str,
    pub message: Vec<u8>,
}

/// One message for a replacement process.
#[derive(Debug, Eq, PartialEq)]
pub enum ReplayMessage {
    Notification { method: &'static str, message: Vec<u8> },
    Request(OwnRequest),
}

/// What the response to one of our own requests means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnResponse {
    /// The response to the replayed handshake.
    Handshake(Outcome),
    /// It has no effect.
    Nothing,
    /// The tools differ from those that the harness received: send [`Replay::tools_changed`].
    ToolsChanged,
}

/// What kind of request a server accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Accepted {
    Handshake,
    Other,
    /// The response has the first page of its tools.
    Tools,
}

#[derive(Clone, Debug)]
struct Handshake {
    request: RecordedRequest,
    /// `notifications/initialized`, once the harness sent it.
    initialized: Option<Box<[u8]>>,
}

/// What is recorded if the server accepts a request.
#[derive(Clone, Debug)]
enum PendingChange {
    /// `None` if the request is too large: then no handshake is recorded.
    Initialize(Option<RecordedRequest>),
    Level(RecordedRequest),
    /// An open stream of notifications that includes changed tools; holds the id of its request as raw JSON.
    Listen(Box<[u8]>),
    Subscribe(Box<str>, RecordedRequest),
    Tools(RecordedRequest),
    Unsubscribe(Box<str>),
}

impl Replay {
    /// Our own ids are `prefix` and a number. A harness must not use them: see [`Self::is_own`].
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            own_ids: Arc::default(),
            pending: Vec::new(),
            handshake: None,
            level: None,
            subscriptions: Vec::new(),
            tools: None,
            own_handshake: None,
            own_tool_list: None,
        }
    }

    /// The replay for a process that runs beside the current one: the handshake, even if it has no response yet, and the
    /// accepted settings. Tools are listed on one process only. `notifications/initialized` is included even if the harness
    /// has not sent it, since calls follow.
    pub fn for_sibling(&self) -> Self {
        let pending = self.pending.iter().find_map(|(_, change)| match change {
            PendingChange::Initialize(request) => request.clone(),
            _ => None,
        });
        let accepted = || self.handshake.as_ref().map(|handshake| handshake.request.clone());
        let initialized = self.handshake.as_ref().and_then(|handshake| handshake.initialized.clone());
        let handshake = pending.or_else(accepted).map(|request| Handshake {
            request,
            initialized: Some(initialized.unwrap_or_else(|| notice::initialized().into())),
        });
        Self {
            own_ids: Arc::clone(&self.own_ids),
            handshake,
            level: self.level.clone(),
            subscriptions: self.subscriptions.clone(),
            ..Self::new(self.prefix)
        }
    }

    /// Copies the log level and the subscriptions, which may have changed since [`Self::for_sibling`].
    pub fn copy_settings(&mut self, from: &Self) {
        let is_setting = |change: &PendingChange| {
            matches!(
                change,
                PendingChange::Level(_) | PendingChange::Subscribe(..) | PendingChange::Unsubscribe(_)
            )
        };
        self.level.clone_from(&from.level);
        self.subscriptions.clone_from(&from.subscriptions);
        self.pending = from.pending.iter().filter(|(_, change)| is_setting(change)).cloned().collect();
    }

    /// Whether a request with this method is also sent to the processes beside the current one.
    pub fn is_sent_to_siblings(method: &str) -> bool {
        matches!(role_of(method), ReplayRole::Setting(_))
    }

    /// Whether a request with this method is also sent to draining processes: see [`Setting::reaches_draining_processes`].
    pub fn is_sent_to_draining(method: &str) -> bool {
        matches!(role_of(method), ReplayRole::Setting(setting) if setting.reaches_draining_processes())
    }

    /// Whether a request with this method can change what is recorded. If so, its response must be passed to
    /// [`Self::record_response`]; if there will be none, call [`Self::remove_pending`].
    pub fn is_recorded(method: &str) -> bool {
        !matches!(role_of(method), ReplayRole::None | ReplayRole::Initialized)
    }

    /// Records a request that the harness sends; `params` is the span of its parameters.
    pub fn record_request(
        &mut self,
        message: &[u8],
        id: &Id<'_>,
        method: &str,
        params: Option<Range<usize>>,
    ) {
        if !Self::is_recorded(method) {
            return;
        }
        let value = id.value();
        self.remove_pending(&value);
        let role = role_of(method);
        let (max_pending, max_bytes) = match role {
            ReplayRole::Handshake => (MAX_PENDING, MAX_BYTES),
            _ => (MAX_PENDING - usize::from(!self.has_open_handshake()), MAX_BYTES - HANDSHAKE_BYTES),
        };
        if self.pending.len() >= max_pending {
            return;
        }
        let fits = self.recorded_bytes() + message.len() <= max_bytes;
        let record = || RecordedRequest::new(message, id);
        let uri = || {
            let span = json::member(message, params.clone()?, "uri")?;
            json::text(message, span).map(Box::<str>::from)
        };
        let change = match role {
            ReplayRole::Handshake => Some(PendingChange::Initialize(fits.then(record))),
            ReplayRole::Setting(Setting::Unsubscribe) if fits => uri().map(PendingChange::Unsubscribe),
            ReplayRole::Setting(Setting::Unsubscribe) => {
                // There is no space to record the request until its response: the subscription is dropped at once.
                if let Some(uri) = uri() {
                    self.unsubscribe(&uri);
                }
                None
            }
            ReplayRole::Listen if tool_page::includes_tool_changes(message, params.clone()) => {
                Some(PendingChange::Listen(id.raw.into()))
            }
            _ if !fits => None,
            ReplayRole::Setting(Setting::LogLevel) => Some(PendingChange::Level(record())),
            ReplayRole::Setting(Setting::Subscribe) => {
                uri().map(|uri| PendingChange::Subscribe(uri, record()))
            }
            ReplayRole::ToolList if tool_page::is_first_page(message, params.clone()) => {
                Some(PendingChange::Tools(record()))
            }
            ReplayRole::Initialized | ReplayRole::Listen | ReplayRole::None | ReplayRole::ToolList => None,
        };
        self.pending.extend(change.map(|change| (value, change)));
    }

    /// Records a notification that the harness sends.
    pub fn record_notification(&mut self, message: &[u8], method: &str) {
        if role_of(method) == ReplayRole::Initialized
            && self.recorded_bytes() + message.len() <= MAX_BYTES
            && let Some(handshake) = &mut self.handshake
        {
            handshake.initialized = Some(message.into());
        }
    }

    /// Removes a request of the harness that gets no response from the server: it was cancelled, or the shim or sidecar
    /// responded to it.
    pub fn remove_pending(&mut self, id: &IdValue) {
        self.pending.retain(|(other, _)| other != id);
    }

    /// Records the server's response to a request of the harness. Returns what kind of request the server accepted, if the
    /// request was recorded.
    pub fn record_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> Option<Accepted> {
        let index = self.pending.iter().position(|(other, _)| other == id)?;
        let (_, change) = self.pending.swap_remove(index);
        if outcome == Outcome::Error {
            return None;
        }
        let accepted = match &change {
            PendingChange::Initialize(_) => Accepted::Handshake,
            PendingChange::Tools(_) => Accepted::Tools,
            _ => Accepted::Other,
        };
        match change {
            PendingChange::Initialize(request) => {
                // A new handshake resets all settings.
                self.handshake = request.map(|request| Handshake { request, initialized: None });
                (self.level, self.tools) = (None, None);
                self.subscriptions.clear();
            }
            PendingChange::Level(request) => self.level = Some(request),
            PendingChange::Listen(_) => {}
            PendingChange::Subscribe(uri, request) => {
                self.subscriptions.retain(|(other, _)| *other != uri);
                if self.subscriptions.len() < MAX_SUBSCRIPTIONS {
                    self.subscriptions.push((uri, request));
                }
            }
            PendingChange::Tools(request) => self.tools = ToolPage::new(request, message, body),
            PendingChange::Unsubscribe(uri) => self.subscriptions.retain(|(other, _)| *other != uri),
        }
        Some(accepted)
    }

    /// Whether there is an accepted handshake, which a replacement must be sent before anything else.
    pub fn has_handshake(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether the harness sent a handshake that has no response yet.
    pub fn has_open_handshake(&self) -> bool {
        self.pending.iter().any(|(_, change)| matches!(change, PendingChange::Initialize(_)))
    }

    /// Whether an id is one of our own. Responses with such an id are not forwarded.
    pub fn is_own(&self, id: &IdValue) -> bool {
        matches!(id, IdValue::Text(text) if text.as_bytes().starts_with(self.prefix.as_bytes()))
    }

    /// A new id of our own.
    pub fn next_id(&self) -> IdValue {
        let number = self.own_ids.fetch_add(1, Ordering::Relaxed) + 1;
        IdValue::Text(format!("{}{number}", self.prefix).into())
    }

    /// What this message means, if it is the response to one of our own requests.
    pub fn read_own_response(&mut self, message: &[u8]) -> Option<OwnResponse> {
        let envelope = envelope::read(message, Strictness::Envelope).ok()?;
        match envelope.kind {
            Kind::Response { id: Some(id), outcome } => {
                let id = id.value();
                self.is_own(&id).then(|| self.handle_own_response(&id, outcome, message, envelope.body))
            }
            _ => None,
        }
    }

    /// Handles a response with one of our own ids.
    pub fn handle_own_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> OwnResponse {
        if self.own_handshake.take_if(|sent| sent == id).is_some() {
            return OwnResponse::Handshake(outcome);
        }
        if self.own_tool_list.take_if(|sent| sent == id).is_none() || outcome == Outcome::Error {
            return OwnResponse::Nothing;
        }
        match self.tools.as_mut().is_some_and(|page| page.update(message, body)) {
            true => OwnResponse::ToolsChanged,
            false => OwnResponse::Nothing,
        }
    }

    fn unsubscribe(&mut self, uri: &str) {
        self.subscriptions.retain(|(other, _)| **other != *uri);
        self.pending
            .retain(|(_, change)| !matches!(change, PendingChange::Subscribe(other, _) if **other == *uri));
    }

    /// The bytes of all recorded messages.
    pub fn recorded_bytes(&self) -> usize {
        let handshake = self.handshake.iter().map(|handshake| {
            handshake.request.len() + handshake.initialized.as_ref().map_or(0, |message| message.len())
        });
        let subscriptions = self.subscriptions.iter().map(|(uri, request)| uri.len() + request.len());
        let settings = self.level.iter().chain(self.tools.iter().map(|page| &page.request));
        let changes = self.pending.iter().map(|(_, change)| change.bytes());
        handshake.chain(subscriptions).chain(settings.map(RecordedRequest::len)).chain(changes).sum()
    }
}

fn role_of(method: &str) -> ReplayRole {
    mcp::lookup(method).map_or(ReplayRole::None, |method| method.replay)
}

impl PendingChange {
    fn bytes(&self) -> usize {
        match self {
            Self::Initialize(request) => request.as_ref().map_or(0, RecordedRequest::len),
            Self::Level(request) | Self::Tools(request) => request.len(),
            Self::Listen(id) => id.len(),
            Self::Subscribe(uri, request) => uri.len() + request.len(),
            Self::Unsubscribe(uri) => uri.len(),
        }
    }
}
