//! The running daemon's state, shared by all of its parts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cofferdam_audit::{Event, EventRecord};
use cofferdam_base::RateLimiter;
use relay_carriage::identity::Identity;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::admin::AdminState;
use super::attach_table::AttachTable;
use super::attachments::Attachments;
use super::disconnect_watch::DisconnectWatch;
use super::own_sockets::OwnSockets;
use super::refusal_log::RefusalLog;
use crate::config::Config;
use crate::enrolment::{ALERTS_PER_MINUTE, Enrolments};
use crate::link::registry::Registry;
use crate::session::Context;

/// The running daemon.
pub(crate) struct Daemon {
    pub(crate) config_file: PathBuf,
    pub(crate) context: Arc<Context>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stop: CancellationToken,
    pub(crate) enrolments: Arc<Enrolments>,
    /// The key pair whose public half sandboxes pin.
    pub(crate) identity: Identity,
    /// Signalled when an enrolment is created, because it may be the next to expire.
    pub(crate) enrolment_created: Notify,
    pub(super) own_sockets: OwnSockets,
    pub(crate) attaches: AttachTable,
    pub(crate) attachments: Attachments,
    /// Some keys keep these values until a restart.
    pub(crate) config_at_start: Arc<Config>,
    pub(super) refusal_log: Arc<RefusalLog>,
    pub(crate) report_limits: ReportLimits,
    pub(super) disconnect_watch: DisconnectWatch,
    pub(super) admin: AdminState,
}

/// Limits reports that a peer could otherwise cause without end.
pub(crate) struct ReportLimits {
    /// Limits alerts about peers on the shared socket.
    pub(crate) shared_socket_alerts: Mutex<RateLimiter>,
    /// Limits log lines about enrolments that could not be saved.
    pub(crate) save_errors: Mutex<RateLimiter>,
}

impl ReportLimits {
    pub(super) fn new() -> Self {
        let limiter = || Mutex::new(RateLimiter::per_minute(ALERTS_PER_MINUTE));
        Self { shared_socket_alerts: limiter(), save_errors: limiter() }
    }
}

impl Daemon {
    pub(crate) fn record(&self, event: Event, detail: Option<&str>) {
        let record = EventRecord { detail, ..EventRecord::new(event) };
        if let Err(error) = self.context.audit.event(&record) {
            tracing::error!(%error, ?event, "an audit event was not recorded");
        }
    }
}
