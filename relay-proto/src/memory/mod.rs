//! What a new server process must be told, because the harness said it to the old one.
//!
//! A harness makes its handshake once, and says once at which level it wants the log and which resources it watches.
//! When another process takes the place of the one that heard it, whoever noticed says it again: the sidecar after a
//! crash, the shim on a fresh link. Both remember with this. The stateless era has nothing to repeat. In either era
//! the tools may be others now: the list is asked for again, and where it differs the harness is told.
//!
//! What must stay true: only what a server *accepted* is repeated, with the bytes of the harness and an id of our own;
//! the answers to our own ids are for nobody else; nothing here grows beyond [`MAX_BYTES`], [`MAX_SUBSCRIPTIONS`] and
//! [`MAX_UNDER_WAY`], whatever a harness says. What does not fit is relayed all the same, and not remembered; for a
//! handshake there is always room.

mod kept;
mod sayings;
#[cfg(test)]
mod tests;
mod tools;

use std::ops::Range;

use crate::envelope::{self, Id, IdValue, Kind, Outcome, Strictness};
use crate::mcp::{self, ReplayRole, Setting};
use crate::{json, notice};

use kept::Kept;
use tools::Listed;

/// All bytes that are remembered together: a handshake has some hundred, a list of watched files some thousand.
pub const MAX_BYTES: usize = 512 * 1024;
/// Resources that are watched at the same time.
pub const MAX_SUBSCRIPTIONS: usize = 256;
/// Requests without an answer that may be worth remembering. One of them is kept for a handshake: without it, a new
/// process could be told nothing at all.
pub const MAX_UNDER_WAY: usize = 64;
/// Bytes that nothing but a handshake may take.
const HANDSHAKE_BYTES: usize = 64 * 1024;

/// What one harness said to one server.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Our own ids begin with this.
    prefix: &'static str,
    own_ids: u64,
    under_way: Vec<(IdValue, Offer)>,
    handshake: Option<Handshake>,
    level: Option<Kept>,
    subscriptions: Vec<(Box<str>, Kept)>,
    tools: Option<Listed>,
    /// Our own questions whose answers matter.
    asked_handshake: Option<IdValue>,
    asked_tools: Option<IdValue>,
}

/// A request under an id of our own.
#[derive(Debug, Eq, PartialEq)]
pub struct Question {
    pub id: IdValue,
    pub method: &'static str,
    pub message: Vec<u8>,
}

/// One thing to say to a new process.
#[derive(Debug, Eq, PartialEq)]
pub enum Saying {
    Notification { method: &'static str, message: Vec<u8> },
    Request(Question),
}

/// What an answer to a question of ours means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// The repeated handshake was answered.
    Handshake(Outcome),
    Nothing,
    /// The tools are not those that the harness was shown: say [`Memory::tools_changed`].
    ToolsChanged,
}

/// What a server accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Accepted {
    Handshake,
    Other,
    /// The first page of its tools is in the answer.
    Tools,
}

#[derive(Clone, Debug)]
struct Handshake {
    request: Kept,
    /// `notifications/initialized`, once it was said.
    initialized: Option<Box<[u8]>>,
}

/// What becomes of the memory if the server accepts a request.
#[derive(Clone, Debug)]
enum Offer {
    /// None where it is too large to remember: then none is.
    Initialize(Option<Kept>),
    Level(Kept),
    /// Open for as long as its request is; holds its id as it was spelled.
    Listen(Box<[u8]>),
    Subscribe(Box<str>, Kept),
    Tools(Kept),
    Unsubscribe(Box<str>),
}

impl Memory {
    /// Ids of our own are `prefix` and a number. No harness may use one: see [`Self::is_own`].
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            own_ids: 0,
            under_way: Vec::new(),
            handshake: None,
            level: None,
            subscriptions: Vec::new(),
            tools: None,
            asked_handshake: None,
            asked_tools: None,
        }
    }

    /// What a process beside the present one is told: the handshake, also one that has no answer yet, and what was
    /// set since. Tools are asked of one process only. To whoever may be called, the handshake is over.
    pub fn for_sibling(&self) -> Self {
        let under_way = self.under_way.iter().find_map(|(_, offer)| match offer {
            Offer::Initialize(request) => request.clone(),
            _ => None,
        });
        let accepted = || self.handshake.as_ref().map(|handshake| handshake.request.clone());
        let said = self.handshake.as_ref().and_then(|handshake| handshake.initialized.clone());
        let handshake = under_way.or_else(accepted).map(|request| Handshake {
            request,
            initialized: Some(said.unwrap_or_else(|| notice::initialized().into())),
        });
        Self {
            own_ids: self.own_ids,
            handshake,
            level: self.level.clone(),
            subscriptions: self.subscriptions.clone(),
            ..Self::new(self.prefix)
        }
    }

    /// Whether a process beside the present one is told of a request with this method too.
    pub fn concerns_siblings(method: &str) -> bool {
        matches!(role_of(method), ReplayRole::Setting(_))
    }

    /// Whether a process that only finishes what it has is told too: its words are in the harness's log still, but what is
    /// watched others watch by now.
    pub fn concerns_predecessors(method: &str) -> bool {
        matches!(role_of(method), ReplayRole::Setting(setting) if setting.reaches_draining_processes())
    }

    /// Whether a request with this method can leave something behind: then its answer, or that none will come, is told.
    pub fn concerns(method: &str) -> bool {
        !matches!(role_of(method), ReplayRole::None | ReplayRole::Initialized)
    }

    /// The harness asks; `params` is where its parameters stand.
    pub fn request(&mut self, message: &[u8], id: &Id<'_>, method: &str, params: Option<Range<usize>>) {
        if !Self::concerns(method) {
            return;
        }
        let value = id.value();
        self.forget(&value);
        let role = role_of(method);
        let (places, room) = match role {
            ReplayRole::Handshake => (MAX_UNDER_WAY, MAX_BYTES),
            _ => (MAX_UNDER_WAY - usize::from(!self.is_shaking_hands()), MAX_BYTES - HANDSHAKE_BYTES),
        };
        if self.under_way.len() >= places {
            return;
        }
        let fits = self.bytes() + message.len() <= room;
        let keep = || Kept::new(message, id);
        let uri = || {
            let span = json::member(message, params.clone()?, "uri")?;
            json::text(message, span).map(Box::<str>::from)
        };
        let offer = match role {
            ReplayRole::Handshake => Some(Offer::Initialize(fits.then(keep))),
            ReplayRole::Setting(Setting::Unsubscribe) if fits => uri().map(Offer::Unsubscribe),
            ReplayRole::Setting(Setting::Unsubscribe) => {
                // The answer cannot be waited for. Nobody watches it who wants to watch it no more.
                if let Some(uri) = uri() {
                    self.unsubscribe(&uri);
                }
                None
            }
            ReplayRole::Listen if tools::are_listened_for(message, params.clone()) => {
                Some(Offer::Listen(id.raw.into()))
            }
            _ if !fits => None,
            ReplayRole::Setting(Setting::LogLevel) => Some(Offer::Level(keep())),
            ReplayRole::Setting(Setting::Subscribe) => uri().map(|uri| Offer::Subscribe(uri, keep())),
            ReplayRole::ToolList if tools::is_first_page(message, params.clone()) => {
                Some(Offer::Tools(keep()))
            }
            ReplayRole::Initialized | ReplayRole::Listen | ReplayRole::None | ReplayRole::ToolList => None,
        };
        self.under_way.extend(offer.map(|offer| (value, offer)));
    }

    /// The harness says something that has no answer.
    pub fn notification(&mut self, message: &[u8], method: &str) {
        if role_of(method) == ReplayRole::Initialized
            && self.bytes() + message.len() <= MAX_BYTES
            && let Some(handshake) = &mut self.handshake
        {
            handshake.initialized = Some(message.into());
        }
    }

    /// A request of the harness's gets no answer of the server's: it was cancelled, or we answered it.
    pub fn forget(&mut self, id: &IdValue) {
        self.under_way.retain(|(other, _)| other != id);
    }

    /// The server answered a request of the harness's; what it accepted, if this left something behind.
    pub fn answered(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> Option<Accepted> {
        let place = self.under_way.iter().position(|(other, _)| other == id)?;
        let (_, offer) = self.under_way.swap_remove(place);
        if outcome == Outcome::Error {
            return None;
        }
        let accepted = match &offer {
            Offer::Initialize(_) => Accepted::Handshake,
            Offer::Tools(_) => Accepted::Tools,
            _ => Accepted::Other,
        };
        match offer {
            Offer::Initialize(request) => {
                // Whoever makes a handshake begins anew.
                self.handshake = request.map(|request| Handshake { request, initialized: None });
                (self.level, self.tools) = (None, None);
                self.subscriptions.clear();
            }
            Offer::Level(request) => self.level = Some(request),
            Offer::Listen(_) => {}
            Offer::Subscribe(uri, request) => {
                self.subscriptions.retain(|(other, _)| *other != uri);
                if self.subscriptions.len() < MAX_SUBSCRIPTIONS {
                    self.subscriptions.push((uri, request));
                }
            }
            Offer::Tools(request) => self.tools = Listed::new(request, message, body),
            Offer::Unsubscribe(uri) => self.subscriptions.retain(|(other, _)| *other != uri),
        }
        Some(accepted)
    }

    /// Whether a handshake was made that a new process must hear before anything else.
    pub fn has_handshake(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether the harness is making one now, and has no answer yet.
    pub fn is_shaking_hands(&self) -> bool {
        self.under_way.iter().any(|(_, offer)| matches!(offer, Offer::Initialize(_)))
    }

    /// Whether an id is of our own kind: what is answered under it is for nobody else.
    pub fn is_own(&self, id: &IdValue) -> bool {
        matches!(id, IdValue::Text(text) if text.as_bytes().starts_with(self.prefix.as_bytes()))
    }

    /// An id that was not used before.
    pub fn next_id(&mut self) -> IdValue {
        self.own_ids += 1;
        own_id(self.prefix, self.own_ids)
    }

    /// The answer to a question of ours, if this message is one.
    pub fn hear(&mut self, message: &[u8]) -> Option<Heard> {
        let envelope = envelope::read(message, Strictness::Envelope).ok()?;
        match envelope.kind {
            Kind::Response { id: Some(id), outcome } => {
                let id = id.value();
                self.is_own(&id).then(|| self.own_answer(&id, outcome, message, envelope.body))
            }
            _ => None,
        }
    }

    /// An answer under an id of our own.
    pub fn own_answer(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> Heard {
        if self.asked_handshake.take_if(|asked| asked == id).is_some() {
            return Heard::Handshake(outcome);
        }
        if self.asked_tools.take_if(|asked| asked == id).is_none() || outcome == Outcome::Error {
            return Heard::Nothing;
        }
        match self.tools.as_mut().is_some_and(|listed| listed.renew(message, body)) {
            true => Heard::ToolsChanged,
            false => Heard::Nothing,
        }
    }

    fn unsubscribe(&mut self, uri: &str) {
        self.subscriptions.retain(|(other, _)| **other != *uri);
        self.under_way.retain(|(_, offer)| !matches!(offer, Offer::Subscribe(other, _) if **other == *uri));
    }

    fn bytes(&self) -> usize {
        let handshake = self.handshake.iter().map(|handshake| {
            handshake.request.len() + handshake.initialized.as_ref().map_or(0, |message| message.len())
        });
        let subscriptions = self.subscriptions.iter().map(|(uri, request)| uri.len() + request.len());
        let settings = self.level.iter().chain(self.tools.iter().map(|listed| &listed.request));
        let offers = self.under_way.iter().map(|(_, offer)| offer.bytes());
        handshake.chain(subscriptions).chain(settings.map(Kept::len)).chain(offers).sum()
    }
}

fn role_of(method: &str) -> ReplayRole {
    mcp::lookup(method).map_or(ReplayRole::None, |method| method.replay)
}

fn own_id(prefix: &str, number: u64) -> IdValue {
    IdValue::Text(format!("{prefix}{number}").into())
}

impl Offer {
    fn bytes(&self) -> usize {
        match self {
            Self::Initialize(request) => request.as_ref().map_or(0, Kept::len),
            Self::Level(request) | Self::Tools(request) => request.len(),
            Self::Listen(id) => id.len(),
            Self::Subscribe(uri, request) => uri.len() + request.len(),
            Self::Unsubscribe(uri) => uri.len(),
        }
    }
}
