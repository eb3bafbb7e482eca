//! The running daemon's state, shared by all of its parts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cofferdam_base::RateLimiter;
use relay_carriage::identity::Identity;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::attach_table::Attaches;
use super::disconnect_watch::Leaving;
use super::own_sockets::OwnSockets;
use super::refusal_log::Refusals;
use crate::audit::{Event, EventRecord};
use crate::config::Config;
use crate::enrolment::Enrolments;
use crate::session::Context;
use crate::session::registry::Registry;

/// The running daemon, as its parts see it.
pub(crate) struct App {
    pub(crate) config_file: PathBuf,
    pub(crate) context: Arc<Context>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stop: CancellationToken,
    pub(crate) enrolments: Arc<Enrolments>,
    /// What sandboxes pin.
    pub(crate) identity: Identity,
    /// An enrolment was made: it has an end to watch for.
    pub(crate) enrolled: Notify,
    pub(super) own: OwnSockets,
    pub(crate) attaches: Attaches,
    /// The configuration of the start, which some keys keep until a restart.
    pub(crate) started: Arc<Config>,
    pub(super) refusals: Arc<Refusals>,
    /// Alerts about those who come by the shared socket.
    pub(crate) shared_alerts: Mutex<RateLimiter>,
    /// Lines in the log about enrolments that were not written down.
    pub(crate) unwritten: Mutex<RateLimiter>,
    pub(super) leaving: Leaving,
}

impl App {
    pub(crate) fn record(&self, event: Event, detail: Option<&str>) {
        let record = EventRecord { detail, ..EventRecord::new(event) };
        if let Err(error) = self.context.audit.event(&record) {
            tracing::error!(%error, ?event, "event not recorded");
        }
    }
}
