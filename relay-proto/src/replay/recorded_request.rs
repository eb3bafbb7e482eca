//! A request that can be sent again under another id: its bytes before and after the id.

use crate::envelope::{Id, IdValue};

#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    before_id: Box<[u8]>,
    after_id: Box<[u8]>,
}

impl RecordedRequest {
    pub(super) fn new(message: &[u8], id: &Id<'_>) -> Self {
        Self { before_id: message[..id.span.start].into(), after_id: message[id.span.end..].into() }
    }

    pub(super) fn len(&self) -> usize {
        self.before_id.len() + self.after_id.len()
    }

    /// The same request under another id.
    pub(super) fn with_id(&self, id: &IdValue) -> Vec<u8> {
        [&*self.before_id, id.to_string().as_bytes(), &*self.after_id].concat()
    }
}
