//! Admission: whether a message can be decided now, and which facts its decision needs.
//!
//! What must stay true: admission refuses only what cannot be decided (malformed, or under an id that is in use). How
//! full the link is and whether a request ran before are passed to the decision as [`DecisionFacts`], because rules win
//! over both.

use std::collections::VecDeque;
use std::ops::Range;

use cofferdam_servers::ProcessId;
use relay_proto::delivery::Received;
use relay_proto::envelope::{self, IdValue, InputRequest, Malformed, MalformedReason};
use relay_proto::frame::{MaybeRan, Origin};
use tokio::time::Instant;

use super::decode::Inbound;

/// A message that is queued to be decided, with what is known of earlier attempts.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) received: Received,
    pub(super) source: MessageSource,
    pub(super) prior: Prior,
    /// The deadline of the first attempt, for a retried request.
    pub(super) deadline: Option<Instant>,
    pub(super) tool_list_wait: ToolListWait,
}

#[derive(Debug)]
pub(super) enum MessageSource {
    Harness,
    /// A request of a server inside a message that waits in [`super::input_requests`].
    InsideMessage(InnerRequest),
    Server(ServerRequest),
}

/// The parts of a request of a server process to the harness.
#[derive(Debug)]
pub(super) struct ServerRequest {
    pub(super) process: ProcessId,
    /// The range of its id.
    pub(super) id: Range<usize>,
    pub(super) method: Box<str>,
    pub(super) params: Option<Range<usize>>,
}

/// The parts of a request of a server inside one of its messages.
#[derive(Debug)]
pub(super) struct InnerRequest {
    /// The number of the message.
    pub(super) message: u64,
    pub(super) method: Box<str>,
    pub(super) params: Option<Range<usize>>,
}

/// What is known of earlier attempts of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Prior {
    Known(PriorAttempts),
    /// The request was sent on an earlier link; the audit must be searched for whether that link forwarded it.
    NotLookedUp,
}

/// How often a request may have run already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PriorAttempts {
    /// It was never sent to a server.
    None,
    One,
    /// It was retried already, or that is not known: it is not retried again.
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
pub(crate) enum ToolListWait {
    Allowed,
    /// The request has waited long enough, or cannot be parked: it is decided without the list.
    Ended,
}

/// What a decision depends on besides the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionFacts {
    pub(super) prior: PriorAttempts,
    /// Whether the link has room for one more request in flight.
    pub(super) room: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) tool_list_wait: ToolListWait,
    pub(super) now: Instant,
}

pub(crate) enum Admitted<'a> {
    Pass(Inbound<'a>, PriorAttempts),
    /// The audit must be searched for earlier attempts first.
    LookUp(IdValue),
}

impl Incoming {
    pub(super) fn new(received: Received) -> Self {
        let prior = match received.maybe_ran {
            MaybeRan::No => Prior::Known(PriorAttempts::None),
            MaybeRan::Yes(_) => Prior::NotLookedUp,
        };
        let source = MessageSource::Harness;
        Self { received, source, prior, deadline: None, tool_list_wait: ToolListWait::Allowed }
    }

    /// A request of a server process; `number` counts those of the link.
    pub(super) fn of_server(number: u64, message: &[u8], request: ServerRequest) -> Self {
        let received = Received { seq: number, maybe_ran: MaybeRan::No, bytes: message.to_vec() };
        Self { source: MessageSource::Server(request), ..Self::new(received) }
    }

    /// A request inside a message of a server; `number` counts the requests of the link's servers.
    pub(super) fn inside(
        number: u64,
        message: u64,
        bytes: &[u8],
        InputRequest { method, span, params }: &InputRequest<'_>,
    ) -> Self {
        let params = params.as_ref().map(|params| params.start - span.start..params.end - span.start);
        let request = InnerRequest { message, method: method.as_ref().into(), params };
        let received = Received { seq: number, maybe_ran: MaybeRan::No, bytes: bytes[span.clone()].to_vec() };
        Self { source: MessageSource::InsideMessage(request), ..Self::new(received) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.received.bytes.len()
    }

    fn is_of_harness(&self) -> bool {
        matches!(self.source, MessageSource::Harness)
    }

    /// The process that sent this request to the harness as a message; none for all other messages.
    pub(super) fn sending_process(&self) -> Option<ProcessId> {
        match &self.source {
            MessageSource::Harness | MessageSource::InsideMessage(_) => None,
            MessageSource::Server(request) => Some(request.process),
        }
    }

    /// Whether this is the request that the process sent under this id.
    pub(super) fn is_server_request(&self, process: ProcessId, id: &[u8]) -> bool {
        match &self.source {
            MessageSource::Harness | MessageSource::InsideMessage(_) => false,
            MessageSource::Server(request) => {
                request.process == process && self.received.bytes[request.id.clone()] == *id
            }
        }
    }

    /// The link and sequence number under which this message was sent before.
    pub(super) fn origin(&self) -> Option<&Origin> {
        match &self.received.maybe_ran {
            MaybeRan::No => None,
            MaybeRan::Yes(origin) => Some(origin),
        }
    }
}

/// Requests of servers that wait for their decision while the audit's disk is slow: servers are not read beyond this.
const MAX_QUEUED_SERVER_REQUESTS: usize = 64;

/// Whether one more request of a server may wait to be decided.
pub(crate) fn has_room_for_server_requests(incoming: &VecDeque<Incoming>) -> bool {
    let of_servers = incoming.iter().filter(|message| !message.is_of_harness());
    of_servers.count() < MAX_QUEUED_SERVER_REQUESTS
}

/// Checks whether a message's id is in use, and whether the audit must be searched for earlier attempts first.
pub(crate) fn admit<'a>(
    mut inbound: Inbound<'a>,
    prior: Prior,
    room: ParkingRoom,
    is_in_use: impl Fn(&IdValue) -> bool,
) -> Admitted<'a> {
    match &mut inbound {
        Inbound::Malformed(malformed) => {
            // An error response with an id that is in use would answer another request.
            malformed.id.take_if(|id| envelope::id_value(id).is_none_or(|id| is_in_use(&id)));
        }
        Inbound::Request { value, .. } if is_in_use(value) => {
            inbound = Inbound::Malformed(Malformed { id: None, reason: MalformedReason::IdInUse });
        }
        Inbound::Request { value, .. } if prior == Prior::NotLookedUp && room == ParkingRoom::Free => {
            return Admitted::LookUp(value.clone());
        }
        Inbound::FromServer { .. }
        | Inbound::InsideMessage { .. }
        | Inbound::Notification(_)
        | Inbound::Request { .. }
        | Inbound::Response { .. } => {}
    }
    let prior = match prior {
        Prior::Known(prior) => prior,
        // Without a search of the audit, the request must be assumed to have run.
        Prior::NotLookedUp => PriorAttempts::Repeated,
    };
    Admitted::Pass(inbound, prior)
}
