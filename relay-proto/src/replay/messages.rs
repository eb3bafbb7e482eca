//! The messages of a replay: those for a replacement process, and the notification of the harness that its tools changed.

use super::recorded_request::RecordedRequest;
use super::{OwnRequest, PendingChange, Replay, ReplayMessage};
use crate::mcp::{INITIALIZE, INITIALIZED, SET_LEVEL, SUBSCRIBE, TOOLS_LIST};
use crate::notice;

impl Replay {
    /// The handshake for a replacement. All other messages must wait for its response: [`super::OwnResponse::Handshake`].
    pub fn handshake(&mut self) -> Option<OwnRequest> {
        self.handshake.as_ref()?;
        let id = self.next_id();
        let request = &self.handshake.as_ref()?.request;
        self.own_handshake = Some(id.clone());
        Some(OwnRequest { message: request.with_id(&id), id, method: INITIALIZE })
    }

    /// The messages for a replacement after the handshake, or at once if there is none.
    pub fn after_handshake(&mut self) -> Vec<ReplayMessage> {
        let mut messages: Vec<ReplayMessage> = self.initialized().into_iter().collect();
        messages.extend(self.settings());
        messages.extend(self.list_tools_to_compare().map(ReplayMessage::Request));
        messages
    }

    /// `notifications/initialized`, once the harness sent it: some servers do nothing before they get it.
    pub fn initialized(&self) -> Option<ReplayMessage> {
        let message = self.handshake.as_ref()?.initialized.as_ref()?;
        Some(ReplayMessage::Notification { method: INITIALIZED, message: message.to_vec() })
    }

    /// Requests for the log level and the subscriptions, including those that have no response yet: the process that is
    /// being replaced may still accept them, and its replacement must then have the same settings.
    pub fn settings(&self) -> Vec<ReplayMessage> {
        let is_unsubscribing = |uri: &str| {
            self.pending
                .iter()
                .any(|(_, change)| matches!(change, PendingChange::Unsubscribe(other) if **other == *uri))
        };
        let accepted = self.level.iter().map(|request| (SET_LEVEL, request));
        let subscribed = self.subscriptions.iter().filter(|(uri, _)| !is_unsubscribing(uri));
        let accepted = accepted.chain(subscribed.map(|(_, request)| (SUBSCRIBE, request)));
        let requested = self.pending.iter().filter_map(|(_, change)| match change {
            PendingChange::Level(request) => Some((SET_LEVEL, request)),
            PendingChange::Subscribe(_, request) => Some((SUBSCRIBE, request)),
            _ => None,
        });
        let message = |(method, request): (&'static str, &RecordedRequest)| {
            let id = self.next_id();
            ReplayMessage::Request(OwnRequest { message: request.with_id(&id), id, method })
        };
        accepted.chain(requested).map(message).collect()
    }

    /// Lists the tools with the recorded request of the harness, or a plain request if there is none. `None` in the
    /// stateless era before the harness listed them: such a request must carry the harness's metadata, which is unknown.
    pub fn list_tools(&mut self) -> Option<OwnRequest> {
        let id = self.next_id();
        let message = match (&self.tools, &self.handshake) {
            (Some(listed), _) => listed.request.with_id(&id),
            (None, Some(_)) => {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{TOOLS_LIST}"}}"#).into_bytes()
            }
            (None, None) => return None,
        };
        Some(OwnRequest { id, method: TOOLS_LIST, message })
    }

    /// The notifications of changed tools for the harness; empty for a stateless harness without a listener for them.
    pub fn tools_changed(&self) -> Vec<Vec<u8>> {
        if self.has_handshake() {
            return vec![notice::tools_changed()];
        }
        let listeners = self.pending.iter().filter_map(|(_, change)| match change {
            PendingChange::Listen(id) => Some(notice::tools_changed_for(id)),
            _ => None,
        });
        listeners.collect()
    }

    /// Lists the tools of a replacement, to compare them with the tools that the harness received.
    pub fn list_tools_to_compare(&mut self) -> Option<OwnRequest> {
        self.tools.as_ref()?;
        let id = self.next_id();
        let request = &self.tools.as_ref()?.request;
        self.own_tool_list = Some(id.clone());
        Some(OwnRequest { message: request.with_id(&id), id, method: TOOLS_LIST })
    }
}
