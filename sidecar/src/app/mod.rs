//! Where the parts meet: the daemon, from its configuration to its orderly end.
//!
//! | module | what it holds |
//! |---|---|
//! | [`admission`] | who may come in by which door |
//! | [`apart`] | what must not lie in the relay's directory |
//! | [`enrolling`] | making and ending enrolments |
//! | [`greeting`] | a new connection's first frame, and where it leads |
//! | [`keep`] | a task that must not end |
//! | [`leaving`] | those who show what was good before, and leave by themselves |
//! | [`logging`] | the log, scrubbed on its way out |
//! | [`own`] | sockets that were made for one sandbox each |
//! | [`places`] | places for connections that have not been led anywhere yet |
//! | [`port`] | where sandboxes arrive that dial out |
//! | [`refusals`] | refused connections in the log, paced |
//! | [`restart`] | what a reload cannot change |
//! | [`status`] | how things stand for a sandbox that asks |
//! | [`socket`] | Unix sockets: stale or live, mode, removal |
//! | [`unix_stream`] | a Unix socket that does not wake us in vain |

pub(crate) mod admission;
mod apart;
pub(crate) mod enrolling;
pub(crate) mod greeting;
mod keep;
mod leaving;
pub(crate) mod logging;
mod own;
pub(crate) mod places;
mod port;
mod refusals;
mod restart;
mod socket;
mod status;
mod unix_stream;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use relay_carriage::identity::Identity;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin;
use crate::admin::http::{AdminPort, AdminPortError};
use crate::attach::Attaches;
use crate::audit::{self, Audit, AuditError, Event, EventRecord};
use crate::config::{self, Config, Problems};
use crate::enrolment::key::{self, KeyError};
use crate::enrolment::{ALERTS_PER_MINUTE, Enrolments, StoreError};
use crate::inject::files::{FileError, FileStore};
use crate::inject::log_scrubber::LogScrubber;
use crate::session::Context;
use crate::session::command::EndReason;
use crate::session::registry::Registry;
use crate::session::visitor::Visitor;
use crate::vault::access::AccessError;
use admission::Door;
use apart::ApartError;
use greeting::Arrival;
use leaving::Leaving;
use own::OwnSockets;
use places::Places;
use port::{Port, PortError};
use refusals::Refusals;
use socket::{Mode, Socket, SocketError};
use unix_stream::QuietStream;

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
    enrolled: Notify,
    own: OwnSockets,
    pub(crate) attaches: Attaches,
    /// The configuration of the start, which some keys keep until a restart.
    started: Arc<Config>,
    refusals: Arc<Refusals>,
    /// Alerts about those who come by the shared socket.
    shared_alerts: Mutex<RateLimiter>,
    /// Lines in the log about enrolments that were not written down.
    unwritten: Mutex<RateLimiter>,
    leaving: Leaving,
}

/// What a reload did.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub(crate) policy: String,
    /// Keys that differ from the start's and count only after a restart.
    pub(crate) at_restart: Vec<&'static str>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    AdminPort(#[from] AdminPortError),
    #[error(transparent)]
    Apart(#[from] ApartError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Files(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("watch for signals")]
    Signals(#[source] std::io::Error),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Vault(#[from] AccessError),
}

/// What is left of a stop when the sessions are over takes no longer than this.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Runs until it is told to stop.
pub(crate) async fn serve(
    config_file: PathBuf,
    config: Config,
    log: Arc<LogScrubber>,
) -> Result<(), ServeError> {
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    apart::keep_apart(&config)?;
    let files = FileStore::open()?;
    let audit = Audit::open(audit::Options {
        directory: config.state_dir.join("audit"),
        sync: config.audit_sync,
        file_bytes: config.limits.audit_file_bytes,
        field_bytes: config.limits.audit_field_bytes,
    })?;
    let identity = key::load_or_make(&config.state_dir)?;
    let enrolments = Arc::new(Enrolments::open(&config.state_dir)?);
    let relay = match &config.relay.unix {
        Some(unix) => Some(Socket::bind(&unix.path, Mode::of(&config.relay))?),
        None => None,
    };
    let port = match &config.relay.tls {
        Some(tls) => Some(Port::bind(&tls.listen, &identity).await?),
        None => None,
    };
    let admin = Socket::bind(&config.admin.socket, Mode::Owner)?;
    let watch = match &config.admin.http {
        Some(place) => Some(AdminPort::bind(place).await?),
        None => None,
    };
    let context = Arc::new(Context::new(config, audit, files, log)?);
    let app = Arc::new(App {
        config_file,
        registry: Arc::default(),
        stop: CancellationToken::new(),
        enrolments,
        identity,
        enrolled: Notify::new(),
        own: OwnSockets::default(),
        attaches: Attaches::default(),
        started: context.config.load_full(),
        refusals: Arc::default(),
        shared_alerts: Mutex::new(RateLimiter::per_minute(ALERTS_PER_MINUTE)),
        unwritten: Mutex::new(RateLimiter::per_minute(ALERTS_PER_MINUTE)),
        leaving: Leaving::new(),
        context,
    });
    app.record(Event::SidecarStart, Some(env!("CARGO_PKG_VERSION")));
    app.context.tasks.spawn(admin::server::run(Arc::clone(&app), admin.listener()));
    if let Some(relay) = &relay {
        let accepting = accept(Arc::clone(&app), relay.listener(), Listening::Shared, app.stop.clone());
        app.context.tasks.spawn(accepting);
    }
    if let Some(port) = port {
        app.context.tasks.spawn(port.run(Arc::clone(&app)));
    }
    if let Some(watch) = watch {
        app.context.tasks.spawn(watch.run(Arc::clone(&app)));
    }
    app.open_own_sockets();
    app.await_attaches();
    app.context.tasks.spawn(Arc::clone(&app).keep_watching_enrolments());
    tracing::info!(config = %app.config_file.display(), "ready");
    loop {
        tokio::select! {
            () = app.stop.cancelled() => break,
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => {
                // What is wrong with the new one is in the log; the old one goes on.
                let _ = app.reload();
            }
        }
    }
    app.shut_down().await;
    Ok(())
}

impl App {
    /// Reads the configuration again. What does not check changes nothing.
    pub(crate) fn reload(&self) -> Result<Reloaded, Problems> {
        match config::load(&self.config_file) {
            Ok(config) => {
                let policy = config.policy_digest.clone();
                let at_restart = restart::at_restart(&self.started, &config);
                self.context.config.store(Arc::new(config));
                tracing::info!(policy, "configuration reloaded");
                if !at_restart.is_empty() {
                    tracing::warn!(keys = at_restart.join(", "), "takes effect at restart");
                }
                self.record(Event::Reload, Some(&policy));
                Ok(Reloaded { policy, at_restart })
            }
            Err(problems) => {
                tracing::error!(%problems, "configuration not reloaded: the old one goes on");
                Err(problems)
            }
        }
    }

    async fn shut_down(&self) {
        tracing::info!("stopping");
        self.stop.cancel();
        self.close_own_sockets();
        // Who is late has been named in the log.
        let _ = self.registry.close(EndReason::Stopped).await;
        if let Some(vault) = &self.context.vault {
            vault.end().await;
        }
        self.context.tasks.close();
        if timeout(STOP_TIME, self.context.tasks.wait()).await.is_err() {
            tracing::error!(tasks = self.context.tasks.len(), "some tasks did not end in time");
        }
        self.record(Event::SidecarStop, None);
    }

    /// Whoever asks for others' links can ask as often as it likes.
    fn alert_of_a_foreign_link(&self, visitor: &Visitor) {
        let (who, may) = match &visitor.enrolment {
            Some(enrolled) => (
                format!("enrolment {} ({})", enrolled.id, enrolled.name),
                self.enrolments.may_alert(&enrolled.id),
            ),
            None => {
                let mut alerts = self.shared_alerts.lock().unwrap_or_else(PoisonError::into_inner);
                ("somebody on the shared socket".into(), alerts.allows(Instant::now()))
            }
        };
        if may {
            self.record(Event::Alert, Some(&format!("{who} asked for a link of another's")));
        }
    }

    fn record(&self, event: Event, detail: Option<&str>) {
        let record = EventRecord { detail, ..EventRecord::new(event) };
        if let Err(error) = self.context.audit.event(&record) {
            tracing::error!(%error, ?event, "event not recorded");
        }
    }
}

/// Whose socket it is.
enum Listening {
    Own(Arc<str>),
    Shared,
}

impl Listening {
    fn door(&self, uid: Option<u32>) -> Door {
        match self {
            Self::Own(enrolment) => Door::Own { enrolment: Arc::clone(enrolment), uid },
            Self::Shared => Door::Shared { uid },
        }
    }
}

/// Takes connections until the stop.
async fn accept(app: Arc<App>, listener: Arc<UnixListener>, listening: Listening, stop: CancellationToken) {
    let count = app.context.config.load().limits.greeting_connections;
    let places = Places::new(count, stop.clone());
    loop {
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { return };
        match accepted {
            Ok((stream, _)) => {
                let Some(place) = stop.run_until_cancelled(places.take()).await else { return };
                let door = listening.door(stream.peer_cred().ok().map(|peer| peer.uid()));
                let Ok(stream) = QuietStream::new(stream) else { continue };
                let arrival = Arrival { stream: Box::new(stream), door };
                let app = Arc::clone(&app);
                app.context.tasks.clone().spawn(async move { greeting::greet(&app, arrival, place).await });
            }
            Err(error) => {
                tracing::error!(%error, "accept on the relay socket");
                // Out of descriptors, most likely: some will be closed soon.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }
}
