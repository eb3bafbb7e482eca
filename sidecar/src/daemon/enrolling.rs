//! Making and ending enrolments, for whoever has the admin socket; and seeing to it that they end in time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relay_proto::address::Address;
use relay_proto::name::Name;
use tokio::time::sleep;

use super::path_isolation::{self, ApartError};
use super::state::App;
use super::supervise::keep;
use super::unix_socket::SocketError;
use crate::audit::Event;
use crate::clock;
use crate::enrolment::{Enrolment, NotMade, StoreError, Swept, Terms};
use crate::session::command::EndReason;
use crate::session::registry::Ending;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Enrolling {
    pub(crate) grant: Name,
    pub(crate) name: Option<String>,
    /// None: as long as the grant lasts.
    pub(crate) ttl: Option<Duration>,
    pub(crate) way: Way,
}

/// How the sandbox will come.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// The host reaches into it.
    Attached,
    Socket {
        directory: PathBuf,
    },
    Ticket {
        ttl: Duration,
    },
}

/// What the shim needs: an enrolment string, or a link.
#[derive(Clone, Debug)]
pub(crate) struct Enrolled {
    pub(crate) enrolment: Enrolment,
    pub(crate) text: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrollError {
    #[error(transparent)]
    Apart(#[from] ApartError),
    #[error("the sidecar failed; look at its log")]
    Failed,
    #[error("there is no grant `{0}`; there are: {1}")]
    Grant(Name, String),
    #[error(transparent)]
    NotMade(#[from] NotMade),
    #[error(
        "sandboxes cannot dial in: `relay.tls` is not configured; set it and `relay.advertise`, or use `--socket DIR`"
    )]
    NoAddress,
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the grant `{grant}` lasts {} s, less than `--ttl`; ask for less, or raise `grants.{grant}.ttl`", .most.as_secs())]
    TooLong { grant: Name, most: Duration },
    #[error("`--ttl` and `--ticket-ttl` are at least a second; ask for more")]
    TooShort,
}

/// What ending took.
#[derive(Debug)]
pub(crate) struct Killed {
    pub(crate) ending: Ending,
    pub(crate) enrolment: Option<Arc<str>>,
    /// The enrolment is over, and would be back after a restart.
    pub(crate) unwritten: Option<StoreError>,
}

/// The wall clock may jump: it is looked at this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(1);

impl App {
    pub(crate) async fn enroll(self: &Arc<Self>, asked: Enrolling) -> Result<Enrolled, EnrollError> {
        let terms = self.terms(&asked)?;
        // What is over makes room, and its socket's directory is free.
        self.end_what_is_over().await;
        let enrolled = match asked.way {
            Way::Ticket { ttl } if ttl < SHORTEST => return Err(EnrollError::TooShort),
            Way::Ticket { ttl } => self.issue(terms, ttl).await?,
            Way::Socket { directory } => self.make_socket(terms, directory).await?,
            Way::Attached => {
                let store = Arc::clone(&self.enrolments);
                let made = self.context.tasks.spawn_blocking(move || store.attach(terms, clock::now()));
                let enrolment = made.await.map_err(|_| EnrollError::Failed)??;
                Enrolled { enrolment, text: self.identity.public().to_string() }
            }
        };
        self.enrolled.notify_one();
        tracing::info!(enrolment = %enrolled.enrolment.id, grant = %enrolled.enrolment.grant, "enrolled");
        Ok(enrolled)
    }

    /// Ends a session and its enrolment, or an enrolment by its own name. Nothing where there is neither.
    pub(crate) async fn kill(self: &Arc<Self>, name: &str) -> Option<Killed> {
        let session = self.registry.enrolment_of(name);
        let enrolment = match &session {
            Some(enrolment) => enrolment.clone(),
            None => Some(self.enrolments.find(name, clock::now()).ok()?.id),
        };
        let mut unwritten = None;
        if let Some(id) = &enrolment {
            // First of all: nobody comes back.
            let (store, id) = (Arc::clone(&self.enrolments), Arc::clone(id));
            let ended = self.context.tasks.spawn_blocking(move || store.end(&id, clock::now()));
            unwritten = ended.await.ok().and_then(Result::err);
        }
        let ending = match &enrolment {
            Some(id) => {
                self.own.close(id);
                let ending = self.registry.end_enrolment(id, EndReason::Killed).await;
                // Whoever kills does not wait for a pipe.
                let (app, id) = (Arc::clone(self), Arc::clone(id));
                self.context
                    .tasks
                    .spawn(async move { app.attaches.end_after_goodbyes(&id, &app.stop).await });
                ending
            }
            None => self.registry.end(name, EndReason::Killed).await,
        };
        Some(Killed { ending, enrolment, unwritten })
    }

    /// Ends what is over, until the stop. Without this nothing would ever be over: if it fails, it is told and begun anew.
    pub(super) async fn keep_watching_enrolments(self: Arc<Self>) {
        let app = Arc::clone(&self);
        let watch = || Arc::clone(&app).watch_enrolments();
        keep(&self.context.tasks, &self.stop, watch, || {
            let failed = "the watch over the ends of enrolments failed, and begins anew";
            tracing::error!("{failed}; please report what was printed before this");
            self.record(Event::Alert, Some(failed));
        })
        .await;
    }

    async fn watch_enrolments(self: Arc<Self>) {
        loop {
            let next = self.end_what_is_over().await;
            let left = next.map(|next| next.duration_since(clock::now()).unwrap_or_default());
            let pause =
                left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP)).max(Duration::from_millis(100));
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.enrolled.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Ends what is over by now: its socket, its links, its pipe. The next time at which something will be.
    async fn end_what_is_over(self: &Arc<Self>) -> Option<SystemTime> {
        let store = Arc::clone(&self.enrolments);
        let sweep = self.context.tasks.spawn_blocking(move || store.sweep(clock::now()));
        let swept = sweep.await.unwrap_or_else(|failed| match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being taken down.
            Err(_) => Swept::default(),
        });
        for id in swept.over {
            tracing::info!(enrolment = %id, "enrolment over");
            self.own.close(&id);
            let app = Arc::clone(self);
            self.context.tasks.spawn(async move {
                // Who is late has been named in the log.
                drop(app.registry.end_enrolment(&id, EndReason::Expired).await);
                app.attaches.end_after_goodbyes(&id, &app.stop).await;
            });
        }
        swept.next
    }

    fn terms(&self, asked: &Enrolling) -> Result<Terms, EnrollError> {
        let config = self.context.config.load();
        let grant = config.grants.get(&asked.grant).ok_or_else(|| {
            let names = config.grants.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            EnrollError::Grant(asked.grant.clone(), names)
        })?;
        let ttl = asked.ttl.unwrap_or(grant.ttl);
        if ttl > grant.ttl {
            return Err(EnrollError::TooLong { grant: asked.grant.clone(), most: grant.ttl });
        }
        if ttl < SHORTEST {
            return Err(EnrollError::TooShort);
        }
        let most = config.limits.enrolments;
        Ok(Terms { grant: asked.grant.clone(), name: asked.name.clone(), ttl, most })
    }

    /// Where a sandbox that dials in finds this sidecar.
    fn dialled_address(&self) -> Option<Address> {
        // The port of the start is the one that is listened on; what it is called may have changed since.
        self.started.relay.tls.as_ref()?;
        self.context.config.load().relay.tls.as_ref().map(|tls| tls.advertise.clone())
    }

    async fn issue(&self, terms: Terms, ttl: Duration) -> Result<Enrolled, EnrollError> {
        let relay = self.dialled_address().ok_or(EnrollError::NoAddress)?;
        let store = Arc::clone(&self.enrolments);
        let issued = self.context.tasks.spawn_blocking(move || store.issue(terms, ttl, clock::now()));
        let (enrolment, ticket) = issued.await.map_err(|_| EnrollError::Failed)??;
        let string = relay_proto::enrolment::Enrolment { pin: self.identity.public(), ticket, relay };
        Ok(Enrolled { enrolment, text: string.to_string() })
    }

    async fn make_socket(
        self: &Arc<Self>,
        terms: Terms,
        directory: PathBuf,
    ) -> Result<Enrolled, EnrollError> {
        let others = self.enrolments.sockets(clock::now());
        let others: Vec<PathBuf> = others.into_iter().map(|(_, directory)| directory).collect();
        let directory = path_isolation::fit_for_a_sandbox(
            &self.context.config.load(),
            &self.config_file,
            &directory,
            &others,
        )?;
        let (store, place) = (Arc::clone(&self.enrolments), directory.clone());
        let made = self.context.tasks.spawn_blocking(move || store.socket(terms, place, clock::now()));
        let enrolment = made.await.map_err(|_| EnrollError::Failed)??;
        if let Err(error) = self.open_own_socket(&enrolment.id, &directory) {
            let (store, id) = (Arc::clone(&self.enrolments), Arc::clone(&enrolment.id));
            // Nobody can have come by it.
            let _ = self.context.tasks.spawn_blocking(move || store.end(&id, clock::now())).await;
            return Err(error.into());
        }
        let text = self.own_link(&directory).to_string();
        Ok(Enrolled { enrolment, text })
    }
}
