//! The principal of a connection: what it is granted, and which enrolment its links belong to.

use std::sync::Arc;

use relay_proto::control::Epoch;
use relay_proto::name::Name;
use tokio::time::Instant;

/// An accepted peer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) grant: Name,
    /// `None` on the shared socket, where each link has its own session.
    pub(crate) enrolment: Option<Enrolled>,
    /// The user of a peer on the shared socket, as the kernel reports it.
    pub(crate) uid: Option<u32>,
}

/// The enrolment of an accepted peer. Its links share one session.
#[derive(Clone, Debug)]
pub(crate) struct Enrolled {
    pub(crate) id: Arc<str>,
    /// The sandbox's name, for lists and logs.
    pub(crate) name: Arc<str>,
    pub(crate) expires: Instant,
    pub(crate) kind: EnrolledBy,
    /// What the user must do when the enrolment has ended, for messages.
    pub(crate) next_step: &'static str,
}

/// How an enrolled peer is recognised.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EnrolledBy {
    /// By a key. A second peer with the same key and resume token is a clone.
    Key,
    /// By its connection: a socket for this sandbox alone, or a pipe from the host.
    Connection,
}

/// The epoch that a key is offered with a new link. It takes effect with the shim's first frame.
pub(crate) struct EpochOffer {
    pub(crate) epoch: Epoch,
    /// Called at the shim's first frame.
    pub(crate) confirm: Box<dyn FnOnce() -> OfferOutcome + Send>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OfferOutcome {
    Accepted,
    /// Another copy of the key was offered a later epoch: this link belongs to a clone.
    Superseded,
}

impl Principal {
    /// A client of the shared socket.
    pub(crate) fn anonymous(grant: Name, uid: Option<u32>) -> Self {
        Self { grant, enrolment: None, uid }
    }

    pub(crate) fn enrolment_id(&self) -> Option<&Arc<str>> {
        self.enrolment.as_ref().map(|enrolled| &enrolled.id)
    }
}
