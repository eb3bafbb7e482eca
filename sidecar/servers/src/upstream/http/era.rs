//! Which era of MCP an upstream speaks (sessions up to 2025-11-25, stateless since 2026-07-28), and the session of the older one.
//!
//! What must stay true: a session is adopted when the server has *accepted* `initialize`, never before; its loss is reported
//! once, however many requests find it.

use http::{HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;

use super::headers::{PROTOCOL_VERSION, SESSION_ID};

/// In bytes. Every request carries the session id in its head, so it has to be short.
const MAX_SESSION_ID: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) enum Era {
    /// MCP revisions up to 2025-11-25: `initialize` was accepted.
    Legacy(Session),
    /// The server has lost the session; the next handshake opens another.
    Lost,
    /// 2026-07-28 and later: no sessions. Holds the revision of the latest request.
    Stateless(String),
    #[default]
    Undecided,
}

/// One accepted handshake.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    /// Servers without sessions give none.
    pub(super) id: Option<HeaderValue>,
    pub(super) version: Option<HeaderValue>,
    /// Cancelled when another handshake, or the loss of the session, ends it.
    pub(super) ended: CancellationToken,
}

impl Session {
    /// Reads the id from the head of the response to `initialize`.
    pub(super) fn from_head(head: &HeaderMap) -> Self {
        let visible = |id: &&HeaderValue| {
            let bytes = id.as_bytes();
            !bytes.is_empty() && bytes.len() <= MAX_SESSION_ID && bytes.iter().all(u8::is_ascii_graphic)
        };
        let mut id = head.get(SESSION_ID).filter(visible).cloned();
        if let Some(id) = &mut id {
            id.set_sensitive(true);
        }
        Self { id, ..Self::default() }
    }

    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.extend(self.id.clone().map(|id| (SESSION_ID, id)));
        headers.extend(self.version.clone().map(|version| (PROTOCOL_VERSION, version)));
        headers
    }
}

impl Era {
    pub(super) fn session(&self) -> Session {
        match self {
            Self::Legacy(session) => session.clone(),
            Self::Lost | Self::Stateless(_) | Self::Undecided => Session::default(),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost)
    }

    /// The server accepted a handshake: its session replaces the one before.
    pub(super) fn adopt(&mut self, session: Session) {
        self.end();
        *self = Self::Legacy(session);
    }

    /// Records that the server has lost `session`. Returns whether it was the current one.
    pub(super) fn lose(&mut self, session: &Session) -> bool {
        match self {
            Self::Legacy(current) if current.id == session.id => {
                self.end();
                *self = Self::Lost;
                true
            }
            _ => false,
        }
    }

    fn end(&self) {
        if let Self::Legacy(session) = self {
            session.ended.cancel();
        }
    }
}
