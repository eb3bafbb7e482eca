//! What is said again, and in which words: to a new process what the old one accepted, to the harness that its tools are
//! others now.

use super::{Memory, Offer, Question, Saying, own_id};
use crate::mcp::{INITIALIZE, INITIALIZED, SET_LEVEL, SUBSCRIBE, TOOLS_LIST};
use crate::notice;

impl Memory {
    /// The handshake for a new process. Everything else waits for its answer: [`Heard::Handshake`].
    pub fn handshake(&mut self) -> Option<Question> {
        self.handshake.as_ref()?;
        let id = self.next_id();
        let request = &self.handshake.as_ref()?.request;
        self.asked_handshake = Some(id.clone());
        Some(Question { message: request.with_id(&id), id, method: INITIALIZE })
    }

    /// What a new process is told after the handshake, or at once where there is none.
    pub fn settings(&mut self) -> Vec<Saying> {
        let mut sayings: Vec<Saying> = self.initialized().into_iter().collect();
        sayings.extend(self.preferences());
        sayings.extend(self.ask_for_tools().map(Saying::Request));
        sayings
    }

    /// That the handshake is over, once the harness said so: some servers do nothing before they hear it.
    pub fn initialized(&self) -> Option<Saying> {
        let message = self.handshake.as_ref()?.initialized.as_ref()?;
        Some(Saying::Notification { method: INITIALIZED, message: message.to_vec() })
    }

    /// The level of the log and what is watched; also what the harness asks for now and has no answer to yet, for
    /// whoever answers that may not be whom it counts for.
    pub fn preferences(&mut self) -> Vec<Saying> {
        let leaving = |uri: &str| {
            self.under_way
                .iter()
                .any(|(_, offer)| matches!(offer, Offer::Unsubscribe(other) if **other == *uri))
        };
        let accepted = self.level.iter().map(|request| (SET_LEVEL, request));
        let watched = self.subscriptions.iter().filter(|(uri, _)| !leaving(uri));
        let accepted = accepted.chain(watched.map(|(_, request)| (SUBSCRIBE, request)));
        let asked = self.under_way.iter().filter_map(|(_, offer)| match offer {
            Offer::Level(request) => Some((SET_LEVEL, request)),
            Offer::Subscribe(_, request) => Some((SUBSCRIBE, request)),
            _ => None,
        });
        let (prefix, own_ids) = (self.prefix, self.own_ids);
        let sayings: Vec<Saying> = accepted
            .chain(asked)
            .zip(own_ids + 1..)
            .map(|((method, request), number)| {
                let id = own_id(prefix, number);
                Saying::Request(Question { message: request.with_id(&id), id, method })
            })
            .collect();
        self.own_ids += sayings.len() as u64;
        sayings
    }

    /// Asks for the tools in the harness's own words, or in plain ones where it never did. None in the stateless era
    /// before the harness asked: nobody knows what it would say of itself.
    pub fn list_tools(&mut self) -> Option<Question> {
        let id = self.next_id();
        let message = match (&self.tools, &self.handshake) {
            (Some(listed), _) => listed.request.with_id(&id),
            (None, Some(_)) => {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{TOOLS_LIST}"}}"#).into_bytes()
            }
            (None, None) => return None,
        };
        Some(Question { id, method: TOOLS_LIST, message })
    }

    /// What the harness is told when its tools changed: nothing, where it would not understand.
    pub fn tools_changed(&self) -> Vec<Vec<u8>> {
        if self.has_handshake() {
            return vec![notice::tools_changed()];
        }
        let listeners = self.under_way.iter().filter_map(|(_, offer)| match offer {
            Offer::Listen(id) => Some(notice::tools_changed_for(id)),
            _ => None,
        });
        listeners.collect()
    }

    /// Asks a process that took the place of another whether its tools are those that the harness was shown.
    pub fn ask_for_tools(&mut self) -> Option<Question> {
        self.tools.as_ref()?;
        let id = self.next_id();
        let request = &self.tools.as_ref()?.request;
        self.asked_tools = Some(id.clone());
        Some(Question { message: request.with_id(&id), id, method: TOOLS_LIST })
    }
}
