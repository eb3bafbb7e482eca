//! Records that are written together, serialised by their caller before the log is locked.

use std::sync::Arc;

use super::admin_record::AdminRecord;
use super::record::{DecisionRecord, EventRecord, FollowedBy, OutcomeRecord};
use super::text::Members;

/// Records to be written together. A decision reserves space in the audit for its outcome, so outcomes and events are added
/// before decisions: writing an outcome frees the reserved space that the outcome did not need.
#[derive(Debug, Default)]
pub struct Batch {
    /// The JSON members of all records, one after the other.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Longer texts in a record are cut.
    max_field_bytes: usize,
    /// The session of the first decision, or of the first event that has one.
    pub(super) session: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: EntryKind,
    /// Where its JSON members end in `bytes`.
    end: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EntryKind {
    Admin,
    Decision(FollowedBy),
    Event(EventSpace),
    Outcome,
}

/// What the budget of a sandbox decides about an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EventSpace {
    /// It is written even if the budget is used up, a few times a minute.
    Alert,
    /// It is left out, and counted, if the budget is used up.
    IfLeft,
    /// Its bytes were reserved.
    Reserved,
}

impl Batch {
    pub(super) fn new(max_field_bytes: usize) -> Self {
        Self { max_field_bytes, ..Self::default() }
    }

    pub fn outcome(&mut self, record: &OutcomeRecord<'_>) {
        record.write(&mut Members::new(&mut self.bytes, self.max_field_bytes));
        self.finish_entry(EntryKind::Outcome);
    }

    pub fn decision(&mut self, record: &DecisionRecord<'_>) {
        record.write(&mut Members::new(&mut self.bytes, self.max_field_bytes));
        self.session.get_or_insert_with(|| Arc::clone(&record.call.caller.session));
        self.finish_entry(EntryKind::Decision(record.followed_by));
    }

    /// Without a budget it is written, whatever `space` is.
    pub(super) fn event(&mut self, record: &EventRecord<'_>, space: EventSpace) {
        record.write(&mut Members::new(&mut self.bytes, self.max_field_bytes));
        if let Some(session) = record.session {
            self.session.get_or_insert_with(|| session.into());
        }
        self.finish_entry(EntryKind::Event(space));
    }

    pub(super) fn admin(&mut self, record: &AdminRecord<'_>) {
        record.write(&mut Members::new(&mut self.bytes, self.max_field_bytes));
        self.finish_entry(EntryKind::Admin);
    }

    /// Each record's kind and JSON members.
    pub(super) fn records(&self) -> impl Iterator<Item = (EntryKind, &[u8])> {
        let starts = std::iter::once(0).chain(self.entries.iter().map(|entry| entry.end));
        self.entries.iter().zip(starts).map(|(entry, start)| (entry.kind, &self.bytes[start..entry.end]))
    }

    pub(super) fn max_field_bytes(&self) -> usize {
        self.max_field_bytes
    }

    /// The memory of its buffer for records.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Removes all records and keeps the buffers.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.session = None;
    }

    fn finish_entry(&mut self, kind: EntryKind) {
        self.entries.push(Entry { kind, end: self.bytes.len() });
    }
}

impl EntryKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Decision(_) => "decision",
            Self::Event(_) => "event",
            Self::Outcome => "outcome",
        }
    }

    /// Whether the caller learns if this record was written.
    pub(super) fn has_result(self) -> bool {
        matches!(self, Self::Admin | Self::Decision(_))
    }
}
