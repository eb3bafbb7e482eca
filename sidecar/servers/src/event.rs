//! What a link's servers report to its pipeline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use cofferdam_secrets::SecretReads;
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;

use crate::outbound::Outbound;

/// The first words of the explanation for every request that did not run.
pub const DID_NOT_RUN: &str = "it did not run: ";

/// One process of a server, or one connection to it. Unique within the sidecar.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ProcessId(u64);

/// The place of one server, or of one of its scopes, in a link. Unique within the link.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlotKey(pub(crate) u32);

/// The role of a process in its slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Calls go to it.
    Current,
    /// It finishes its calls and gets no new ones.
    Draining,
    /// It will take over; no request of the harness has been sent to it yet.
    Successor,
}

/// What happened to a process.
#[derive(Debug)]
pub enum Event {
    /// A replacement may take its next step: call
    /// [`ServerSet::advance_replacements`](crate::ServerSet::advance_replacements).
    ReplacementDue,
    /// One request will get no response.
    Failed {
        id: IdValue,
        code: Code,
        why: String,
    },
    /// The process is gone, with the calls that it was working on. If it was the current one, the requests that wait
    /// for its slot did not run and are refused with this code; the next request starts another process.
    Gone {
        was: Role,
        code: Code,
        why: String,
    },
    Message(BytesMut),
    /// The start failed: no request that waited for it ran.
    NotStarted {
        code: Code,
        /// What the sandbox is told.
        why: String,
        /// The same for the log, with paths, programs and variables of the host.
        detail: String,
    },
    /// A message was too large to relay and was discarded; `id` is its id, if it is a response and one id was found.
    Oversize {
        id: Option<Box<[u8]>>,
    },
    /// The process serves: send the messages that wait for its slot.
    Ready,
    /// A request that did not run because the server has lost the MCP session; it can be sent again.
    Returned(Outbound),
    /// A request was sent with secrets that were read from Vault after the decision on the request was written to the audit.
    /// `reads` are these reads: they are written to the audit with the outcome of the request.
    SentWith {
        id: IdValue,
        reads: Arc<SecretReads>,
    },
    /// An HTTP server has lost the MCP session: call [`ServerSet::open`](crate::ServerSet::open).
    SessionLost,
    /// The process runs and has been sent nothing: call [`ServerSet::open`](crate::ServerSet::open).
    Started,
}

impl ProcessId {
    /// No process has this id.
    pub const NONE: Self = Self(u64::MAX);

    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// For tests: an id that no process has. It differs for each number.
    #[cfg(any(test, feature = "scripted"))]
    pub const fn unused(number: u64) -> Self {
        Self(u64::MAX - 1 - number)
    }
}

impl SlotKey {
    /// The server's own slot, for everything but the tools of a scope.
    pub const BASE: Self = Self(0);

    /// For tests: the slot of the scope with this number.
    #[cfg(any(test, feature = "scripted"))]
    pub const fn scope(number: u32) -> Self {
        Self(number)
    }
}

impl Event {
    /// The event for a request that did not run.
    pub(crate) fn did_not_run(id: IdValue, code: Code, why: &str) -> Self {
        Self::Failed { id, code, why: format!("{DID_NOT_RUN}{why}") }
    }
}
