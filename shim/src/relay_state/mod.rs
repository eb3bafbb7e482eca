//! Decides what to do with a line from the harness, a frame from the sidecar, or a deadline, without I/O and without a
//! clock.
//!
//! | module | what it holds |
//! |---|---|
//! | `harness_side`, `backlog` | lines to write, requests without a response, messages that wait for a link |
//! | `sidecar_side` | the connection and its link: phases, numbering, heartbeats, when to connect again |
//! | `from_harness`, `from_sidecar` | handling of a line, and of a frame |
//! | `link_end` | what happens to requests when a link ends, or connecting fails for good |
//! | `server_replay` | replaying handshake and settings to a new server process |
//! | `deadlines` | when the next action is due |
//!
//! Both sides leave bytes in their `output`, which the loop writes.
//!
//! What must stay true: a request that the shim answers with "did not run" is in no outbox, so that it cannot run later; a
//! call that was handed out is never answered with "did not run"; and each request has one response.

mod backlog;
mod deadlines;
mod from_harness;
mod from_sidecar;
mod harness_side;
mod link_end;
#[cfg(any(test, fuzzing))]
pub(crate) mod model;
mod server_replay;
mod sidecar_side;
#[cfg(test)]
mod tests;

use relay_proto::limits::MAX_MESSAGE;
use relay_proto::name::Name;
use tokio::time::Instant;

pub(crate) use harness_side::HarnessSide;
pub(crate) use sidecar_side::{ConnectionAction, SidecarSide};

use crate::timing::Timing;

/// The whole state of a shim.
#[derive(Debug)]
pub(crate) struct RelayState {
    pub(crate) harness: HarnessSide,
    pub(crate) sidecar: SidecarSide,
    server_replay: ServerReplay,
    /// The sidecar's limit for a message.
    max_message: usize,
    /// When the buffer that is retained for another long message is freed.
    free_spare_at: Option<Instant>,
}

/// Whether the link's server process was sent what the harness had sent to the previous one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ServerReplay {
    Done,
    /// The handshake was sent again and has no response yet: everything else waits.
    InProgress,
    /// To be done before the next request.
    Pending,
}

impl RelayState {
    pub(crate) fn new(server: Option<Name>, timing: Timing, now: Instant) -> Self {
        Self {
            harness: HarnessSide::new(),
            sidecar: SidecarSide::new(server, timing, now),
            server_replay: ServerReplay::Done,
            max_message: MAX_MESSAGE,
            free_spare_at: None,
        }
    }

    /// Whether it is time to connect.
    pub(crate) fn should_connect(&self, now: Instant) -> bool {
        self.sidecar.should_connect(now, self.harness.waiting())
    }
}
