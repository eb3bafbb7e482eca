//! The legacy handshake as the harness made it, to be made again towards a new process.
//!
//! Only what the server accepted is recorded: a refused `server/discover` or `initialize` leaves nothing behind. A
//! server of the stateless era has no handshake, and nothing is replayed.

use relay_proto::envelope::{self, IdValue, Kind, Outcome, Strictness};
use relay_proto::json;

#[derive(Debug, Default)]
pub(crate) struct Handshake {
    /// The `initialize` request that is under way.
    offered: Option<Vec<u8>>,
    accepted: Option<Vec<u8>>,
    /// `notifications/initialized`, as the harness sent it.
    confirmed: Option<Vec<u8>>,
    replays: u64,
}

/// One replay under way: what was sent and which answer ends it.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) id: IdValue,
    pub(crate) request: Vec<u8>,
}

impl Handshake {
    pub(crate) fn offer(&mut self, initialize: &[u8]) {
        self.offered = Some(initialize.to_vec());
    }

    pub(crate) fn settle(&mut self, outcome: Outcome) {
        let offered = self.offered.take();
        if outcome == Outcome::Result {
            self.accepted = offered;
            self.confirmed = None;
        }
    }

    pub(crate) fn confirm(&mut self, initialized: &[u8]) {
        self.confirmed = Some(initialized.to_vec());
    }

    /// Whether there is one to make again.
    pub(crate) fn is_known(&self) -> bool {
        self.accepted.is_some()
    }

    /// What to send to a new process before anything else; none where no handshake was accepted.
    pub(crate) fn replay(&mut self) -> Option<Replay> {
        let accepted = self.accepted.as_ref()?;
        let Ok(envelope) = envelope::read(accepted, Strictness::Envelope) else { return None };
        let Kind::Request { id, .. } = envelope.kind else { return None };
        self.replays += 1;
        let own = format!("cofferdam-replay-{}", self.replays);
        let request = json::replace(accepted, id.span, format!("\"{own}\"").as_bytes());
        Some(Replay { id: IdValue::Text(own.into()), request })
    }

    pub(crate) fn confirmation(&self) -> Option<&[u8]> {
        self.confirmed.as_deref()
    }
}

impl Replay {
    /// How this message answers it; none for any other message.
    pub(crate) fn outcome(&self, message: &[u8]) -> Option<Outcome> {
        match envelope::read(message, Strictness::Envelope).ok()?.kind {
            Kind::Response { id: Some(id), outcome } if id.value() == self.id => Some(outcome),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"x":1}}"#;

    #[test]
    fn what_the_server_refused_is_not_replayed() {
        let mut handshake = Handshake::default();
        handshake.offer(INITIALIZE);
        handshake.settle(Outcome::Error);
        assert!(handshake.replay().is_none());
    }

    #[test]
    fn a_replay_has_an_id_of_ours_and_is_otherwise_the_same_bytes() {
        let mut handshake = Handshake::default();
        handshake.offer(INITIALIZE);
        handshake.settle(Outcome::Result);
        let replay = handshake.replay().unwrap();
        assert_eq!(
            String::from_utf8(replay.request).unwrap(),
            r#"{"jsonrpc":"2.0","id":"cofferdam-replay-1","method":"initialize","params":{"x":1}}"#
        );
    }
}
