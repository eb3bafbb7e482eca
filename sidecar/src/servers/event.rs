//! What a server gives its link, and what a link learns when it gives something to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;

use crate::inject::Reads;

/// What is said first of whatever never left.
pub(super) const DID_NOT_RUN: &str = "it did not run: ";

/// One process of a server, or one connection to it. No two of this sidecar have the same.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Incarnation(u64);

/// What a server gives its link.
#[derive(Debug)]
pub(crate) enum Event {
    /// Something is due that only the link can decide: [`attend`](super::instance::Instance::attend) to it.
    Due,
    /// One request got no answer.
    Failed {
        id: IdValue,
        code: Code,
        why: String,
    },
    /// The server has forgotten its session, and with it what it asked of the harness; a new one is being opened.
    Forgotten,
    /// The server is gone with all that it was working on; the next message starts it again.
    Gone {
        why: String,
    },
    Message(BytesMut),
    /// An answer too large to relay; its id where one was seen.
    Oversize {
        id: Option<Box<[u8]>>,
    },
    /// It did not start: what waited for it did not run.
    NotStarted {
        code: Code,
        why: String,
    },
    /// A request went out with secrets from other reads than its decision names.
    SentWith {
        id: IdValue,
        reads: Arc<Reads>,
    },
}

/// A message is not taken now: it did not run.
#[derive(Debug)]
pub(crate) struct Unavailable {
    pub(crate) code: Code,
    pub(crate) why: String,
}

/// Whether a message was handed to its server at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Passed {
    No,
    Yes,
}

/// Where a request was when it was cancelled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CancelledWhile {
    /// It had not left: it did not run, and will not.
    Queued,
    /// The server may have it.
    UnderWay,
}

impl Incarnation {
    /// No process is this one.
    pub(crate) const NONE: Self = Self(u64::MAX);
    #[cfg(test)]
    pub(crate) const ANOTHER: Self = Self(u64::MAX - 1);

    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Event {
    pub(super) fn did_not_run(id: IdValue, why: &str) -> Self {
        Self::refused(id, Code::ServerUnavailable, why)
    }

    /// The same, with a reason that has a name of its own.
    pub(super) fn refused(id: IdValue, code: Code, why: &str) -> Self {
        Self::Failed { id, code, why: format!("{DID_NOT_RUN}{why}") }
    }
}

impl Unavailable {
    pub(super) fn because(why: impl Into<String>) -> Self {
        Self { code: Code::ServerUnavailable, why: why.into() }
    }
}
