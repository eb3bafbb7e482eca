//! The legacy handshake, remembered so that a new server process can be told what the old one knew.
//!
//! Servers of 2025-11-25 and before answer nothing until `initialize`; the harness says it once in its life. The modern
//! era has nothing to replay.

use relay_proto::envelope::{Id, IdValue};
use relay_proto::json;

/// What the harness said, and whether a server agreed.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    said: Option<Said>,
    /// How often it was replayed: each replay has an id of its own.
    replays: u64,
}

#[derive(Debug)]
struct Said {
    /// The request up to its id, and after it.
    before_id: Box<[u8]>,
    after_id: Box<[u8]>,
    id: IdValue,
    agreed: bool,
    /// `notifications/initialized`, once it was said.
    initialized: Option<Box<[u8]>>,
}

impl Handshake {
    /// The harness sends `initialize`. A later one replaces an earlier one.
    pub(crate) fn initialize(&mut self, line: &[u8], id: &Id<'_>) {
        self.said = (line.len() <= MAX_RECORDED).then(|| Said {
            before_id: line[..id.span.start].into(),
            after_id: line[id.span.end..].into(),
            id: id.value(),
            agreed: false,
            initialized: None,
        });
    }

    /// A server answered this request with a result.
    pub(crate) fn answered(&mut self, id: &IdValue) {
        if let Some(said) = self.said.as_mut().filter(|said| said.id == *id) {
            said.agreed = true;
        }
    }

    pub(crate) fn initialized(&mut self, line: &[u8]) {
        if let Some(said) = self.said.as_mut().filter(|said| said.agreed && line.len() <= MAX_RECORDED) {
            said.initialized = Some(line.into());
        }
    }

    /// What a new server must be told before anything else: nothing, where no handshake was completed.
    pub(crate) fn replay(&mut self) -> Vec<Vec<u8>> {
        let Some(said) = self.said.as_ref().filter(|said| said.agreed) else { return Vec::new() };
        self.replays += 1;
        let id = serde_json::Value::from(replay_id(self.replays)).to_string();
        let request = [&said.before_id, id.as_bytes(), &said.after_id].concat();
        [Some(request), said.initialized.as_ref().map(|line| line.to_vec())].into_iter().flatten().collect()
    }

    /// Whether this id is one of ours, whose answer is for nobody.
    pub(crate) fn is_replay(&self, id: &IdValue) -> bool {
        match id {
            IdValue::Text(text) => text.strip_prefix(REPLAY).is_some_and(|number| {
                number.parse::<u64>().is_ok_and(|number| (1..=self.replays).contains(&number))
            }),
            IdValue::Integer(_) => false,
        }
    }
}

/// The id of the harness's `params.requestId` in a `notifications/cancelled`.
pub(crate) fn cancelled_id(line: &[u8], params: std::ops::Range<usize>) -> Option<IdValue> {
    let span = json::member(line, params, "requestId")?;
    Some(Id { raw: &line[span.clone()], span }.value())
}

const REPLAY: &str = "cofferdam-shim:replay:";
/// A larger handshake is relayed, but not remembered.
const MAX_RECORDED: usize = 256 * 1024;

fn replay_id(number: u64) -> String {
    format!("{REPLAY}{number}")
}

#[cfg(test)]
mod tests {
    use relay_proto::envelope::{Kind, Strictness, read};

    use super::*;

    const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id": 0 ,"method":"initialize","params":{"x":[1, 2]}}"#;
    const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

    fn said(handshake: &mut Handshake) -> IdValue {
        let Ok(Kind::Request { id, .. }) =
            read(INITIALIZE, Strictness::Envelope).map(|envelope| envelope.kind)
        else {
            panic!("a request")
        };
        handshake.initialize(INITIALIZE, &id);
        id.value()
    }

    #[test]
    fn a_completed_handshake_is_replayed_under_our_own_id() {
        let mut handshake = Handshake::default();
        let id = said(&mut handshake);
        assert!(handshake.replay().is_empty(), "nobody agreed yet");
        handshake.answered(&id);
        handshake.initialized(INITIALIZED);
        let expected = br#"{"jsonrpc":"2.0","id": "cofferdam-shim:replay:1" ,"method":"initialize","params":{"x":[1, 2]}}"#;
        assert_eq!(handshake.replay(), [expected.to_vec(), INITIALIZED.to_vec()]);
        assert!(handshake.is_replay(&IdValue::Text("cofferdam-shim:replay:1".into())));
        assert!(!handshake.is_replay(&IdValue::Text("cofferdam-shim:replay:2".into())));
        assert!(!handshake.is_replay(&id));
    }

    #[test]
    fn another_answer_is_no_agreement() {
        let mut handshake = Handshake::default();
        said(&mut handshake);
        handshake.answered(&IdValue::Integer("7".into()));
        assert!(handshake.replay().is_empty());
    }

    #[test]
    fn the_cancelled_request_is_found_by_value() {
        let line = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061"}}"#;
        let params = read(line, Strictness::Envelope).unwrap().body.unwrap();
        assert_eq!(cancelled_id(line, params), Some(IdValue::Text("a".into())));
    }
}
