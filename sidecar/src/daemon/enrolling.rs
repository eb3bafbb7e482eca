//! Creates and ends enrolments for clients of the admin API and for attachments, and ends enrolments that expire.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_audit::Event;
use cofferdam_base::{clock, duration};
use relay_proto::address::Address;
use relay_proto::name::Name;
use tokio::time::sleep;

use super::path_isolation::{self, PathIsolationError};
use super::state::Daemon;
use super::supervise::supervise;
use super::unix_socket::SocketError;
use crate::config::suggest;
use crate::enrolment::{Enrolment, NewEnrolment, NotCreated, StoreError, Swept};
use crate::link::command::EndReason;
use crate::link::registry::Ending;
use crate::session::changes::{Change, ChangeKind};

/// A client's request for an enrolment.
#[derive(Clone, Debug)]
pub(crate) struct EnrollRequest {
    pub(crate) grant: Name,
    pub(crate) name: Option<String>,
    /// `None`: the grant's `ttl`.
    pub(crate) ttl: Option<Duration>,
    pub(crate) via: EnrollVia,
}

/// How the sandbox will connect.
#[derive(Clone, Debug)]
pub(crate) enum EnrollVia {
    /// Through pipes that the host opens into it.
    Attached,
    /// Through its own socket in this directory.
    Socket { directory: PathBuf },
    /// Over TLS, first with a ticket that expires after this time.
    Ticket { ttl: Duration },
}

/// A new enrolment.
#[derive(Clone, Debug)]
pub(crate) struct Enrolled {
    pub(crate) enrolment: Enrolment,
    /// What the shim needs to connect: an enrolment string (ticket), an address (socket), or the sidecar's public key
    /// (attached).
    pub(crate) connect_string: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrollError {
    #[error(transparent)]
    PathIsolation(#[from] PathIsolationError),
    #[error("the sidecar failed; see its log")]
    Failed,
    #[error("there is no grant `{0}`; {1}")]
    UnknownGrant(Name, String),
    #[error(transparent)]
    NotCreated(#[from] NotCreated),
    #[error(
        "sandboxes cannot connect: `relay.tls` is not configured; set it and `relay.advertise`, or use `--socket DIR`"
    )]
    TlsNotConfigured,
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("`--ttl` is longer than the grant `{grant}` allows ({}); use a shorter one, or raise `grants.{grant}.ttl`", duration::rounded(*.max))]
    TtlTooLong { grant: Name, max: Duration },
    #[error("`--ttl` and `--ticket-ttl` must be at least a second")]
    TtlTooShort,
}

/// The result of a kill.
#[derive(Debug)]
pub(crate) struct Killed {
    pub(crate) ending: Ending,
    pub(crate) enrolment: Option<Arc<str>>,
    /// The enrolment has ended, but its end could not be saved: it would be valid again after a restart.
    pub(crate) save_error: Option<StoreError>,
}

/// The wall clock may jump, so it is read at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// The shortest lifetime of an enrolment or a ticket.
const MIN_TTL: Duration = Duration::from_secs(1);

impl Daemon {
    pub(crate) async fn enroll(self: &Arc<Self>, request: EnrollRequest) -> Result<Enrolled, EnrollError> {
        let terms = self.enrolment_terms(&request)?;
        // First ends expired enrolments, which still occupy names, directories and the limit of enrolments.
        self.end_expired().await;
        let enrolled = match request.via {
            EnrollVia::Ticket { ttl } if ttl < MIN_TTL => return Err(EnrollError::TtlTooShort),
            EnrollVia::Ticket { ttl } => self.issue_ticket(terms, ttl).await?,
            EnrollVia::Socket { directory } => self.create_socket(terms, directory).await?,
            EnrollVia::Attached => {
                let store = Arc::clone(&self.enrolments);
                let created =
                    self.context.tasks.spawn_blocking(move || store.create_attached(terms, clock::now()));
                let enrolment = created.await.map_err(|_| EnrollError::Failed)??;
                Enrolled { enrolment, connect_string: self.identity.public().to_string() }
            }
        };
        self.enrolment_created.notify_one();
        tracing::info!(enrolment = %enrolled.enrolment.id, grant = %enrolled.enrolment.grant, "enrolled");
        publish(self, ChangeKind::EnrolmentCreated, &enrolled.enrolment, None);
        Ok(enrolled)
    }

    /// Ends the session with this id and its enrolment, or the enrolment with this id. `None` if there is neither. Runs in
    /// its own task: if the caller stops waiting, the enrolment and its links end all the same.
    pub(crate) async fn kill(self: &Arc<Self>, id: &str) -> Option<Killed> {
        let (daemon, id) = (Arc::clone(self), id.to_owned());
        let killed = self.context.tasks.spawn(async move { end_session_or_enrolment(&daemon, &id).await });
        killed.await.unwrap_or_else(|failed| match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime is shutting down.
            Err(_) => None,
        })
    }

    /// Ends enrolments that expire, until the daemon stops. A panic is reported and the task restarted: otherwise
    /// enrolments would no longer expire.
    pub(super) async fn supervise_enrolments(self: Arc<Self>) {
        let daemon = Arc::clone(&self);
        let watch = || Arc::clone(&daemon).end_enrolments_as_they_expire();
        supervise(&self.context.tasks, &self.stop, watch, || {
            let failed = "the task that ends expired enrolments failed and is restarted";
            tracing::error!("{failed}; please report the panic message before this line");
            self.record(Event::Alert, Some(failed));
        })
        .await;
    }

    async fn end_enrolments_as_they_expire(self: Arc<Self>) {
        loop {
            let next_expiry = self.end_expired().await;
            let time_left = next_expiry.map(|next| next.duration_since(clock::now()).unwrap_or_default());
            let pause = time_left
                .map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP))
                .max(Duration::from_millis(100));
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.enrolment_created.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Ends enrolments that have expired, with their sockets, links and pipes. Returns when the next one expires.
    async fn end_expired(self: &Arc<Self>) -> Option<SystemTime> {
        let store = Arc::clone(&self.enrolments);
        let sweep = self.context.tasks.spawn_blocking(move || store.sweep(clock::now()));
        let swept = sweep.await.unwrap_or_else(|failed| match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime is shutting down.
            Err(_) => Swept::default(),
        });
        for enrolment in swept.ended {
            publish(self, ChangeKind::EnrolmentEnded, &enrolment, Some("expired"));
            let id = enrolment.id;
            tracing::info!(enrolment = %id, "enrolment expired");
            self.own_sockets.close(&id);
            let daemon = Arc::clone(self);
            self.context.tasks.spawn(async move {
                // `end_enrolment` logs links that do not end in time.
                drop(daemon.registry.end_enrolment(&id, EndReason::Expired).await);
                daemon.attaches.end_after_goodbyes(&id, &daemon.stop).await;
            });
        }
        swept.next
    }

    fn enrolment_terms(&self, request: &EnrollRequest) -> Result<NewEnrolment, EnrollError> {
        let config = self.context.config.load();
        let grant = config.grants.get(&request.grant).ok_or_else(|| {
            let hint = suggest::hint(request.grant.as_str(), "grant", config.grants.keys().map(Name::as_str));
            EnrollError::UnknownGrant(request.grant.clone(), hint)
        })?;
        let ttl = request.ttl.unwrap_or(grant.ttl);
        if ttl > grant.ttl {
            return Err(EnrollError::TtlTooLong { grant: request.grant.clone(), max: grant.ttl });
        }
        if ttl < MIN_TTL {
            return Err(EnrollError::TtlTooShort);
        }
        let max = config.limits.enrolments;
        Ok(NewEnrolment {
            grant: request.grant.clone(),
            name: request.name.clone(),
            ttl,
            max_enrolments: max,
        })
    }

    /// The address by which sandboxes connect to this sidecar.
    pub(super) fn advertised_address(&self) -> Option<Address> {
        // A reload changes the advertised address, but does not open the port.
        self.config_at_start.relay.tls.as_ref()?;
        self.context.config.load().relay.tls.as_ref().map(|tls| tls.advertise.clone())
    }

    async fn issue_ticket(&self, terms: NewEnrolment, ttl: Duration) -> Result<Enrolled, EnrollError> {
        let relay = self.advertised_address().ok_or(EnrollError::TlsNotConfigured)?;
        let store = Arc::clone(&self.enrolments);
        let issued =
            self.context.tasks.spawn_blocking(move || store.create_with_ticket(terms, ttl, clock::now()));
        let (enrolment, ticket) = issued.await.map_err(|_| EnrollError::Failed)??;
        let string = relay_proto::enrolment::EnrolmentString { pin: self.identity.public(), ticket, relay };
        Ok(Enrolled { enrolment, connect_string: string.to_string() })
    }

    async fn create_socket(
        self: &Arc<Self>,
        terms: NewEnrolment,
        directory: PathBuf,
    ) -> Result<Enrolled, EnrollError> {
        let others = self.enrolments.sockets(clock::now());
        let others: Vec<PathBuf> = others.into_iter().map(|(_, directory)| directory).collect();
        let directory = path_isolation::check_sandbox_directory(
            &self.context.config.load(),
            &self.config_file,
            &directory,
            &others,
        )?;
        let (store, path) = (Arc::clone(&self.enrolments), directory.clone());
        let created =
            self.context.tasks.spawn_blocking(move || store.create_with_socket(terms, path, clock::now()));
        let enrolment = created.await.map_err(|_| EnrollError::Failed)??;
        if let Err(error) = self.open_own_socket(&enrolment.id, &directory) {
            let (store, id) = (Arc::clone(&self.enrolments), Arc::clone(&enrolment.id));
            // A failure is ignored: the socket was never opened, so no sandbox can use this enrolment.
            let _ = self.context.tasks.spawn_blocking(move || store.end(&id, clock::now())).await;
            return Err(error.into());
        }
        let connect_string = self.own_address(&directory).to_string();
        Ok(Enrolled { enrolment, connect_string })
    }
}

/// Does the work of [`Daemon::kill`].
async fn end_session_or_enrolment(daemon: &Arc<Daemon>, id: &str) -> Option<Killed> {
    let session_enrolment = daemon.registry.enrolment_of(id);
    let enrolment = match &session_enrolment {
        Some(enrolment) => enrolment.clone(),
        None => Some(daemon.enrolments.find(id, clock::now()).ok()?.id),
    };
    let mut save_error = None;
    if let Some(id) = &enrolment {
        // The enrolment ends before its links, so that the sandbox cannot reconnect.
        let live_enrolment = daemon.enrolments.find(id, clock::now()).ok();
        let (store, id) = (Arc::clone(&daemon.enrolments), Arc::clone(id));
        let ended = daemon.context.tasks.spawn_blocking(move || store.end(&id, clock::now()));
        save_error = ended.await.ok().and_then(Result::err);
        if let Some(enrolment) = live_enrolment {
            publish(daemon, ChangeKind::EnrolmentEnded, &enrolment, Some("ended with `cofferdam kill`"));
        }
    }
    let ending = match &enrolment {
        Some(id) => {
            daemon.own_sockets.close(id);
            let ending = daemon.registry.end_enrolment(id, EndReason::Killed).await;
            // The caller does not wait for the pipe to drain.
            let (closing_daemon, id) = (Arc::clone(daemon), Arc::clone(id));
            daemon.context.tasks.spawn(async move {
                closing_daemon.attaches.end_after_goodbyes(&id, &closing_daemon.stop).await;
            });
            ending
        }
        None => daemon.registry.end(id, EndReason::Killed).await,
    };
    Some(Killed { ending, enrolment, save_error })
}

fn publish(daemon: &Daemon, event: ChangeKind, enrolment: &Enrolment, reason: Option<&str>) {
    daemon.context.changes.publish(|| Change {
        enrolment: Some(enrolment.id.to_string()),
        name: enrolment.name.clone(),
        reason: reason.map(str::to_owned),
        ..Change::new(event, &enrolment.grant)
    });
}
