//! The principal of a connection: what it is granted, and which enrolment its links belong to.

use std::sync::Arc;

use relay_proto::control::Epoch;
use relay_proto::name::Name;
use tokio::time::Instant;

/// A peer that was let in.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) grant: Name,
    /// None on the shared socket: each link there is an enrolment and a session of its own.
    pub(crate) enrolment: Option<Enrolled>,
}

/// The enrolment by which a peer was let in. Its links share one session.
#[derive(Clone, Debug)]
pub(crate) struct Enrolled {
    pub(crate) id: Arc<str>,
    /// What people call this sandbox.
    pub(crate) name: Arc<str>,
    pub(crate) expires: Instant,
    pub(crate) kind: EnrolledBy,
    /// What to do when it is over.
    pub(crate) next_step: &'static str,
}

/// How such a peer is recognised.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EnrolledBy {
    /// A key: a peer with a copy of it and of a link's token is a clone.
    Key,
    /// Being where it is: a socket of its own, or a pipe that the host holds.
    Place,
}

/// The epoch that a key is offered with a new link. It counts from the shim's first frame.
pub(crate) struct EpochOffer {
    pub(crate) epoch: Epoch,
    /// Called at the shim's first frame.
    pub(crate) confirm: Box<dyn FnOnce() -> OfferOutcome + Send>,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OfferOutcome {
    Accepted,
    /// Another copy of the key was offered one after it: this link is a clone's.
    Superseded,
}

impl Principal {
    /// Any process that can open the shared socket.
    pub(crate) fn anonymous(grant: Name) -> Self {
        Self { grant, enrolment: None }
    }

    pub(crate) fn enrolment_id(&self) -> Option<&Arc<str>> {
        self.enrolment.as_ref().map(|enrolled| &enrolled.id)
    }
}
