//! Who comes: what they are granted, and what holds their links together.

use std::sync::Arc;

use relay_proto::name::Name;
use tokio::time::Instant;

/// A peer that was let in.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
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
}

impl Visitor {
    /// Whoever can open the shared socket.
    pub(crate) fn anonymous(grant: Name) -> Self {
        Self { grant, enrolment: None }
    }

    pub(super) fn enrolment_id(&self) -> Option<&Arc<str>> {
        self.enrolment.as_ref().map(|enrolled| &enrolled.id)
    }
}
