//! The messages that a replacement server process must be sent, because the harness sent them to the previous one.
//!
//! A harness makes its handshake once, and sets its log level and its resource subscriptions once. When a new process
//! replaces the one that received them, they are replayed: by the sidecar after a crash, by the shim on a fresh link.
//! Both record them with this module. The stateless era has no handshake and no settings to replay. In either era the
//! tools may have changed: they are listed again, and the harness is notified if they differ.
//!
//! What must stay true: only what a server *accepted* is replayed, with the harness's bytes and an id of our own;
//! responses under our own ids are never forwarded; nothing here grows beyond [`MAX_BYTES`], [`MAX_SUBSCRIPTIONS`] and
//! [`MAX_PENDING`], whatever a harness sends. What does not fit is relayed but not recorded; for a handshake there is
//! always room.

mod kept_request;
mod messages;
#[cfg(test)]
mod tests;
mod tool_page;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::envelope::{self, Id, IdValue, Kind, Outcome, Strictness};
use crate::mcp::{self, ReplayRole, Setting};
use crate::{json, notice};

use kept_request::KeptRequest;
use tool_page::ToolPage;

/// All recorded bytes together. A handshake takes some hundred, a list of subscriptions some thousand.
pub const MAX_BYTES: usize = 512 * 1024;
/// Resources subscribed to at the same time.
pub const MAX_SUBSCRIPTIONS: usize = 256;
/// Requests without a response that may have to be recorded. One place is reserved for a handshake: without it nothing
/// could be replayed at all.
pub const MAX_PENDING: usize = 64;
/// Bytes reserved for a handshake.
const HANDSHAKE_BYTES: usize = 64 * 1024;

/// The requests of one harness that one server accepted and that change its state.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The prefix of our own ids.
    prefix: &'static str,
    /// How many of our own ids were used. Siblings share it: a process can be sent requests of its own replay and of
    /// a sibling's, and their ids must differ.
    own_ids: Arc<AtomicU64>,
    /// Requests of the harness without a response, and what each changes if it is accepted.
    pending: Vec<(IdValue, PendingChange)>,
    handshake: Option<Handshake>,
    level: Option<KeptRequest>,
    subscriptions: Vec<(Box<str>, KeptRequest)>,
    tools: Option<ToolPage>,
    /// Our own requests whose response matters.
    own_handshake: Option<IdValue>,
    own_tool_list: Option<IdValue>,
}

/// A request under an id of our own.
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
    /// Nothing follows from it.
    Nothing,
    /// The tools differ from those that the harness was shown: send [`Replay::tools_changed`].
    ToolsChanged,
}

/// What a server accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Accepted {
    Handshake,
    Other,
    /// The response has the first page of its tools.
    Tools,
}

#[derive(Clone, Debug)]
struct Handshake {
    request: KeptRequest,
    /// `notifications/initialized`, once the harness sent it.
    initialized: Option<Box<[u8]>>,
}

/// What is recorded if the server accepts a request.
#[derive(Clone, Debug)]
enum PendingChange {
    /// `None` if it is too large: then no handshake is recorded.
    Initialize(Option<KeptRequest>),
    Level(KeptRequest),
    /// Open for as long as its request is. Holds the id as it was spelled.
    Listen(Box<[u8]>),
    Subscribe(Box<str>, KeptRequest),
    Tools(KeptRequest),
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

    /// The replay for a process that runs beside the present one: the handshake, even without a response yet, and the
    /// settings. Tools are listed on one process only. `notifications/initialized` is included, since calls follow.
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

    /// Whether processes beside the present one get a request with this method too.
    pub fn concerns_siblings(method: &str) -> bool {
        matches!(role_of(method), ReplayRole::Setting(_))
    }

    /// Whether a draining process gets it too: see [`Setting::reaches_draining_processes`].
    pub fn concerns_predecessors(method: &str) -> bool {
        matches!(role_of(method), ReplayRole::Setting(setting) if setting.reaches_draining_processes())
    }

    /// Whether a request with this method can change what is recorded. If so, its response must be passed to
    /// [`Self::answered`], or its end to [`Self::forget`].
    pub fn concerns(method: &str) -> bool {
        !matches!(role_of(method), ReplayRole::None | ReplayRole::Initialized)
    }

    /// The harness sends a request; `params` is the span of its parameters.
    pub fn request(&mut self, message: &[u8], id: &Id<'_>, method: &str, params: Option<Range<usize>>) {
        if !Self::concerns(method) {
            return;
        }
        let value = id.value();
        self.forget(&value);
        let role = role_of(method);
        let (places, room) = match role {
            ReplayRole::Handshake => (MAX_PENDING, MAX_BYTES),
            _ => (MAX_PENDING - usize::from(!self.has_open_handshake()), MAX_BYTES - HANDSHAKE_BYTES),
        };
        if self.pending.len() >= places {
            return;
        }
        let fits = self.bytes() + message.len() <= room;
        let keep = || KeptRequest::new(message, id);
        let uri = || {
            let span = json::member(message, params.clone()?, "uri")?;
            json::text(message, span).map(Box::<str>::from)
        };
        let change = match role {
            ReplayRole::Handshake => Some(PendingChange::Initialize(fits.then(keep))),
            ReplayRole::Setting(Setting::Unsubscribe) if fits => uri().map(PendingChange::Unsubscribe),
            ReplayRole::Setting(Setting::Unsubscribe) => {
                // There is no room to keep it until the response: the subscription is dropped at once.
                if let Some(uri) = uri() {
                    self.unsubscribe(&uri);
                }
                None
            }
            ReplayRole::Listen if tool_page::includes_tool_changes(message, params.clone()) => {
                Some(PendingChange::Listen(id.raw.into()))
            }
            _ if !fits => None,
            ReplayRole::Setting(Setting::LogLevel) => Some(PendingChange::Level(keep())),
            ReplayRole::Setting(Setting::Subscribe) => uri().map(|uri| PendingChange::Subscribe(uri, keep())),
            ReplayRole::ToolList if tool_page::is_first_page(message, params.clone()) => {
                Some(PendingChange::Tools(keep()))
            }
            ReplayRole::Initialized | ReplayRole::Listen | ReplayRole::None | ReplayRole::ToolList => None,
        };
        self.pending.extend(change.map(|change| (value, change)));
    }

    /// The harness sends a notification.
    pub fn notification(&mut self, message: &[u8], method: &str) {
        if role_of(method) == ReplayRole::Initialized
            && self.bytes() + message.len() <= MAX_BYTES
            && let Some(handshake) = &mut self.handshake
        {
            handshake.initialized = Some(message.into());
        }
    }

    /// A request of the harness gets no response from the server: it was cancelled, or we answered it.
    pub fn forget(&mut self, id: &IdValue) {
        self.pending.retain(|(other, _)| other != id);
    }

    /// The server answered a request of the harness. Returns what it accepted, if that is recorded.
    pub fn answered(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> Option<Accepted> {
        let place = self.pending.iter().position(|(other, _)| other == id)?;
        let (_, change) = self.pending.swap_remove(place);
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

    /// Whether there is a handshake that a replacement must get before anything else.
    pub fn has_handshake(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether the harness's own handshake has no response yet.
    pub fn has_open_handshake(&self) -> bool {
        self.pending.iter().any(|(_, change)| matches!(change, PendingChange::Initialize(_)))
    }

    /// Whether an id is one of ours. Responses under it are not forwarded.
    pub fn is_own(&self, id: &IdValue) -> bool {
        matches!(id, IdValue::Text(text) if text.as_bytes().starts_with(self.prefix.as_bytes()))
    }

    /// A fresh id of our own.
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
                self.is_own(&id).then(|| self.own_response(&id, outcome, message, envelope.body))
            }
            _ => None,
        }
    }

    /// A response under one of our own ids.
    pub fn own_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> OwnResponse {
        if self.own_handshake.take_if(|asked| asked == id).is_some() {
            return OwnResponse::Handshake(outcome);
        }
        if self.own_tool_list.take_if(|asked| asked == id).is_none() || outcome == Outcome::Error {
            return OwnResponse::Nothing;
        }
        match self.tools.as_mut().is_some_and(|listed| listed.renew(message, body)) {
            true => OwnResponse::ToolsChanged,
            false => OwnResponse::Nothing,
        }
    }

    fn unsubscribe(&mut self, uri: &str) {
        self.subscriptions.retain(|(other, _)| **other != *uri);
        self.pending
            .retain(|(_, change)| !matches!(change, PendingChange::Subscribe(other, _) if **other == *uri));
    }

    fn bytes(&self) -> usize {
        let handshake = self.handshake.iter().map(|handshake| {
            handshake.request.len() + handshake.initialized.as_ref().map_or(0, |message| message.len())
        });
        let subscriptions = self.subscriptions.iter().map(|(uri, request)| uri.len() + request.len());
        let settings = self.level.iter().chain(self.tools.iter().map(|listed| &listed.request));
        let changes = self.pending.iter().map(|(_, change)| change.bytes());
        handshake.chain(subscriptions).chain(settings.map(KeptRequest::len)).chain(changes).sum()
    }
}

fn role_of(method: &str) -> ReplayRole {
    mcp::lookup(method).map_or(ReplayRole::None, |method| method.replay)
}

impl PendingChange {
    fn bytes(&self) -> usize {
        match self {
            Self::Initialize(request) => request.as_ref().map_or(0, KeptRequest::len),
            Self::Level(request) | Self::Tools(request) => request.len(),
            Self::Listen(id) => id.len(),
            Self::Subscribe(uri, request) => uri.len() + request.len(),
            Self::Unsubscribe(uri) => uri.len(),
        }
    }
}
