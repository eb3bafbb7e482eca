//! The entry of a link in the registry: reserved first, then used by the link, and removed with its task.
//!
//! What must stay true: an unused reservation leaves no record in the audit; the space of every record about the start and the
//! end of a link and its session is reserved before the link is opened, so that these records are written whatever the
//! budget of the sandbox has left then.

use std::sync::Arc;

use cofferdam_audit::{Event, EventRecord, EventReservation};
use cofferdam_vault::RemainingLinks;
use relay_proto::name::Name;
use tokio::sync::mpsc;

use super::{Begun, Registry};
use crate::link::command::{Command, EndReason};
use crate::link::connection::Connection;
use crate::link::not_revocable::NotRevocable;
use crate::link::{FirstConnection, Link, LinkResources};
use crate::session::Session;
use crate::session::changes::ChangeKind;
use crate::session::principal::EpochOffer;

/// A reserved entry for a link; removed when this is dropped.
pub(crate) struct Reserved {
    pub(super) registered: Registered,
    pub(super) receiver: mpsc::Receiver<Command>,
    pub(super) resources: LinkResources,
}

/// The entry of a link in the registry. It is removed with the link's task, also when the task panics.
pub(super) struct Registered {
    pub(super) registry: Arc<Registry>,
    pub(super) session: Arc<Session>,
    pub(super) link: Arc<str>,
    pub(super) state: TaskState,
    /// The space for the records below.
    pub(super) records: EventReservation,
}

/// Start of the session and of the link, an alert and the end of the link if its task fails, end of the session: a link may be
/// the first and the last of its session.
pub(super) const RECORDS_OF_AN_ENTRY: u32 = 5;
/// The end of a link, which the link itself records.
pub(super) const RECORDS_OF_A_LINK: u32 = 1;

/// The state of the task of a registered link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TaskState {
    /// The task returned, after it recorded the end of the link.
    Ended(EndReason),
    Running,
    /// The link was not opened yet.
    NotStarted,
}

impl Reserved {
    /// Opens a new link on this connection.
    pub(crate) fn open(self, server: Name, connection: Connection, offer: Option<EpochOffer>) {
        let Self { mut registered, receiver, resources } = self;
        registered.begin();
        let (id, session) = (Arc::clone(&registered.link), Arc::clone(&registered.session));
        let (context, grant) = (Arc::clone(&session.context), session.grant.clone());
        tracing::info!(link = %id, session = %session.id, %grant, %server, "link opened");
        registered.record(Event::LinkStart, &format!("server {server}"));
        let link = Link::new(session, id, server, FirstConnection { connection, offer }, receiver, resources);
        context.tasks.spawn(registered.run_link(link.run()));
    }
}

impl Registered {
    /// The link begins, and with the first link its session.
    pub(super) fn begin(&mut self) {
        self.state = TaskState::Running;
        self.session.enter();
        if self.registry.lock().begin(&self.session) == Begun::No {
            let name = self.session.enrolment.as_ref().map(|enrolled| format!(", sandbox {}", enrolled.name));
            let detail = format!("grant {}{}", self.session.grant, name.unwrap_or_default());
            self.record(Event::SessionStart, &detail);
            self.session.publish(ChangeKind::SessionBegan, None, None);
        }
        self.session.publish(ChangeKind::LinkOpened, Some(&self.link), None);
    }

    /// Runs the link, and keeps its entry until the link has ended.
    pub(super) async fn run_link(mut self, link: impl Future<Output = EndReason>) {
        self.state = TaskState::Ended(link.await);
    }

    fn record(&mut self, event: Event, detail: &str) {
        let record = EventRecord {
            session: Some(&self.session.id),
            link: Some(&self.link),
            detail: Some(detail),
            ..EventRecord::new(event)
        };
        self.session.record_reserved_event(&mut self.records, &record);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let ended = self.registry.lock().remove(&self.link, &self.session);
        let why = match self.state {
            TaskState::Ended(reason) => reason.as_str(),
            TaskState::NotStarted => "its last link was not opened",
            TaskState::Running => {
                let failed = "link task failed";
                tracing::error!(link = %self.link, session = %self.session.id, failed);
                self.record(Event::Alert, failed);
                let outliving = match self.session.abandon() {
                    RemainingLinks::None => NotRevocable::of_session(&self.session),
                    RemainingLinks::Some => Vec::new(),
                };
                self.record(Event::LinkEnd, &format!("{failed}{}", NotRevocable::audit_suffix(&outliving)));
                failed
            }
        };
        if self.state != TaskState::NotStarted {
            self.session.publish(ChangeKind::LinkEnded, Some(&self.link), Some(why));
        }
        if ended.is_some_and(|session| session.begun == Begun::Yes) {
            self.record(Event::SessionEnd, why);
            self.session.publish(ChangeKind::SessionEnded, None, Some(why));
        }
    }
}
