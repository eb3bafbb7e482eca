//! Admission: whether a message can be decided about now, and what its decision has to take into account.
//!
//! What must stay true: admission refuses only what cannot be decided (malformed, or under an id that is in use). How
//! full the link is and whether a request ran before travel as [`Facts`] to the decision, because rules win over both.

use relay_proto::delivery::Received;
use relay_proto::envelope::{self, IdValue, Malformed, MalformedReason};
use relay_proto::frame::{MaybeRan, Origin};
use tokio::time::Instant;

use super::decode::Inbound;

/// A message of the harness that waits to be decided, with what is known of its past.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) received: Received,
    pub(super) prior: Prior,
    /// The deadline of the first attempt, for a request that is repeated.
    pub(super) deadline: Option<Instant>,
    pub(super) waiting: Waiting,
}

/// What is known of earlier attempts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Prior {
    Known(PriorAttempts),
    /// It was sent on an earlier link; only the audit knows whether it left from there.
    NotLookedUp,
}

/// How often a request may have run before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PriorAttempts {
    /// It never left.
    None,
    One,
    /// It was repeated before, or that is not known: it is not repeated.
    Repeated,
}

/// Whether one more request can be parked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ParkingRoom {
    Free,
    Full,
}

/// Whether a request may still wait for the server's list of tools.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiting {
    Allowed,
    /// It has waited: it is decided by what is known.
    Over,
}

/// What a decision has to take into account beside the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(super) prior: PriorAttempts,
    /// Whether the link has room for one more request in flight.
    pub(super) room: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) waiting: Waiting,
    pub(super) now: Instant,
}

pub(crate) enum Admitted<'a> {
    Pass(Inbound<'a>, PriorAttempts),
    /// Its past must be looked up first.
    LookUp(IdValue),
}

impl Incoming {
    pub(super) fn new(received: Received) -> Self {
        let prior = match received.maybe_ran {
            MaybeRan::No => Prior::Known(PriorAttempts::None),
            MaybeRan::Yes(_) => Prior::NotLookedUp,
        };
        Self { received, prior, deadline: None, waiting: Waiting::Allowed }
    }

    /// The message that it was on an earlier link.
    pub(super) fn origin(&self) -> Option<&Origin> {
        match &self.received.maybe_ran {
            MaybeRan::No => None,
            MaybeRan::Yes(origin) => Some(origin),
        }
    }
}

/// Checks a message's id against those in use, and whether its past must be looked up first.
pub(crate) fn admit<'a>(
    mut inbound: Inbound<'a>,
    prior: Prior,
    room: ParkingRoom,
    is_in_use: impl Fn(&IdValue) -> bool,
) -> Admitted<'a> {
    match &mut inbound {
        Inbound::Malformed(malformed) => {
            // A response under an id that is in use would end another request.
            malformed.id.take_if(|id| envelope::id_value(id).is_none_or(|id| is_in_use(&id)));
        }
        Inbound::Request { value, .. } if is_in_use(value) => {
            inbound = Inbound::Malformed(Malformed { id: None, reason: MalformedReason::IdInUse });
        }
        Inbound::Request { value, .. } if prior == Prior::NotLookedUp && room == ParkingRoom::Free => {
            return Admitted::LookUp(value.clone());
        }
        Inbound::Request { .. } | Inbound::Notification(_) | Inbound::Response { .. } => {}
    }
    let prior = match prior {
        Prior::Known(prior) => prior,
        // What cannot wait for the audit may have run.
        Prior::NotLookedUp => PriorAttempts::Repeated,
    };
    Admitted::Pass(inbound, prior)
}
