//! Records in the audit what confined servers do in their networks.
//!
//! What must stay true: the details are scrubbed, because a server chooses the names that it looks up; records are charged to the
//! budget of the sandbox, and left out and counted if that is used up.

use std::sync::Arc;

use cofferdam_audit::{Event, EventRecord};
use cofferdam_servers::{NetworkEvent, NetworkEventKind, NetworkEvents};

use super::Session;

/// The networks of the servers of one link.
pub(crate) struct NetworkAudit {
    pub(crate) session: Arc<Session>,
    pub(crate) link: Arc<str>,
}

impl NetworkEvents for NetworkAudit {
    fn record(&self, event: &NetworkEvent<'_>) {
        let Self { session, link } = self;
        let scrubber = session.credentials.scrubber();
        let detail = scrubber.name(event.detail);
        session.record_event(&EventRecord {
            session: Some(&session.id),
            link: Some(link),
            server: Some(event.server.as_str()),
            detail: Some(&detail),
            ..EventRecord::new(match event.kind {
                NetworkEventKind::Closed => Event::ConnectionClosed,
                NetworkEventKind::Failed => Event::ConnectionFailed,
                NetworkEventKind::Refused => Event::ConnectionRefused,
                NetworkEventKind::Unreported => Event::ConnectionsUnrecorded,
            })
        });
    }
}
