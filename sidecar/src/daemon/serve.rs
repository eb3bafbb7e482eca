//! Starts the daemon, runs it, and stops it in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{self as audit, Audit, AuditError, Event};
use cofferdam_base::text::error_chain;
use cofferdam_scrub::OwnCredentials;
use cofferdam_scrub::shared::SharedValues;
use cofferdam_secrets::files::{FileError, FileStore};
use cofferdam_vault::AccessError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::admin::health_port::{HealthPort, HealthPortError};
use super::admin::tls_port::{AdminTlsError, AdminTlsPort};
use super::admin::tokens::{TokenStoreError, Tokens};
use super::admin::{AdminState, server};
use super::attach_table::AttachTable;
use super::attachments::{AttachmentKeeper, Attachments};
use super::disconnect_watch::DisconnectWatch;
use super::left_out_lines;
use super::listen::{RelayTlsError, RelayTlsPort, SocketKind, accept};
use super::own_sockets::OwnSockets;
use super::path_isolation::{self, PathIsolationError};
use super::refusal_log::RefusalLog;
use super::service_manager::{self, PassedSocketError, PassedSockets};
use super::state::{Daemon, ReportLimits};
use super::state_format::{self, StateFormatError};
use super::unix_socket::{Mode, Socket, SocketError};
use super::while_held::{Lifetime, LifetimeError};
use crate::config::Config;
use crate::enrolment::key::{self, KeyError};
use crate::enrolment::{Enrolments, StoreError};
use crate::link::command::EndReason;
use crate::session::Context;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    AdminTls(#[from] AdminTlsError),
    #[error(transparent)]
    PathIsolation(#[from] PathIsolationError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Files(#[from] FileError),
    #[error(transparent)]
    HealthPort(#[from] HealthPortError),
    #[error(transparent)]
    Lifetime(#[from] LifetimeError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    PassedSocket(#[from] PassedSocketError),
    #[error(transparent)]
    RelayTlsPort(#[from] RelayTlsError),
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    StateFormat(#[from] StateFormatError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Tokens(#[from] TokenStoreError),
    #[error(transparent)]
    Vault(#[from] AccessError),
}

/// How long the remaining tasks may take to end, after the sessions have ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// For the last lines of the servers' stderr: a disk that hangs must not keep the sidecar from stopping.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the daemon until SIGTERM or SIGINT, or until the end of its `lifetime`.
pub(crate) async fn serve(
    config_file: PathBuf,
    config: Config,
    log: Arc<SharedValues>,
    lifetime: Lifetime,
    passed: PassedSockets,
) -> Result<(), ServeError> {
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    let stop = CancellationToken::new();
    lifetime.watch(&stop)?;
    if let Err(error) = cofferdam_process::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open descriptors was not raised");
    }
    match cofferdam_process::take_delegated_group() {
        Ok(_) => tracing::info!("confined servers have control groups of their own"),
        Err(why) => tracing::info!(
            why = error_chain(why),
            "confined servers have no control groups: `memory` limits each process, and `cpu` cannot be used"
        ),
    }
    path_isolation::check_relay_directories(&config)?;
    state_format::check(&config.state_dir)?;
    let files = FileStore::open()?;
    let audit = Audit::open(config.audit_options(audit::WriteBy::Task(tokio::runtime::Handle::current())))?;
    state_format::mark(&config.state_dir)?;
    let own_credentials = Arc::new(OwnCredentials::new(log));
    own_credentials.hold("audit.key", &*audit::key_bytes(&config.state_dir.join("audit"))?);
    let identity = key::load_or_create(&config.state_dir)?;
    own_credentials.hold("relay.key", &identity.to_pkcs8());
    let enrolments = Arc::new(Enrolments::open(&config.state_dir)?);
    let tokens = Tokens::open(&config.state_dir)?;
    let relay = match (&config.relay.unix, passed.relay(&config)?) {
        (Some(unix), Some(socket)) => Some(Socket::passed(socket, &unix.path)?),
        (Some(unix), None) => Some(Socket::bind(&unix.path, Mode::of(&config.relay))?),
        (None, _) => None,
    };
    let port = match &config.relay.tls {
        Some(tls) => Some(RelayTlsPort::bind(&tls.listen, &identity).await?),
        None => None,
    };
    let admin = Socket::bind(&config.admin.socket, Mode::Owner)?;
    let health_port = match &config.admin.http {
        Some(address) => Some(HealthPort::bind(address).await?),
        None => None,
    };
    let admin_tls = match &config.admin.tls {
        Some(settings) => Some(AdminTlsPort::bind(settings, &own_credentials).await?),
        None => None,
    };
    let context = Arc::new(Context::new(config, audit, files, own_credentials)?);
    let daemon = Arc::new(Daemon {
        config_file,
        registry: Arc::default(),
        stop,
        enrolments,
        identity,
        enrolment_created: Notify::new(),
        own_sockets: OwnSockets::default(),
        attaches: AttachTable::default(),
        attachments: Attachments::new(&context),
        config_at_start: context.config.load_full(),
        refusal_log: Arc::new(RefusalLog::new(Arc::clone(context.values()))),
        report_limits: ReportLimits::new(),
        disconnect_watch: DisconnectWatch::new(),
        admin: AdminState::new(tokens),
        context,
    });
    daemon.record(Event::SidecarStart, Some(env!("CARGO_PKG_VERSION")));
    if let Some(relay) = &relay {
        let accepting =
            accept(Arc::clone(&daemon), relay.listener(), SocketKind::Shared, daemon.stop.clone());
        daemon.context.tasks.spawn(accepting);
    }
    if let Some(port) = port {
        daemon.context.tasks.spawn(port.run(Arc::clone(&daemon)));
    }
    if let Some(health_port) = health_port {
        daemon.context.tasks.spawn(health_port.run(Arc::clone(&daemon)));
    }
    daemon.open_own_sockets();
    daemon.restore_attached_sandboxes();
    daemon.context.tasks.spawn(AttachmentKeeper::of(&daemon).start_and_follow_configuration());
    // Started after `open_own_sockets`, so that no admin request creates a socket which that loop would open again.
    daemon.context.tasks.spawn(server::run(Arc::clone(&daemon), admin.listener()));
    if let Some(admin_tls) = admin_tls {
        daemon.context.tasks.spawn(admin_tls.run(Arc::clone(&daemon)));
    }
    daemon.context.tasks.spawn(Arc::clone(&daemon).supervise_enrolments());
    daemon.context.tasks.spawn(left_out_lines::log_counts(daemon.stop.clone()));
    log_ready(&daemon);
    service_manager::notify_ready();
    loop {
        tokio::select! {
            () = daemon.stop.cancelled() => break,
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => {
                // `reload` logs a failure; the previous configuration then stays in effect.
                let _ = daemon.reload();
            }
        }
    }
    daemon.shut_down().await;
    Ok(())
}

/// Logs that the sidecar accepts links, with every address at which it listens.
fn log_ready(daemon: &Daemon) {
    let config = &daemon.config_at_start;
    let mut addresses = Vec::new();
    addresses.extend(config.relay.unix.as_ref().map(|unix| format!("relay unix:{}", unix.path.display())));
    addresses.extend(config.relay.tls.as_ref().map(|tls| format!("relay tls://{}", tls.listen)));
    addresses.push(format!("admin unix:{}", config.admin.socket.display()));
    addresses.extend(config.admin.tls.as_ref().map(|tls| format!("admin https://{}", tls.listen)));
    addresses.extend(config.admin.http.as_ref().map(|address| format!("health http://{address}")));
    tracing::info!(config = %daemon.config_file.display(), "ready; listening on {}", addresses.join(", "));
}

impl Daemon {
    async fn shut_down(&self) {
        tracing::info!("stopping");
        service_manager::notify_stopping();
        self.stop.cancel();
        self.own_sockets.close_all();
        // Links that do not end in time are named in the log.
        let _ = self.registry.close(EndReason::Stopped).await;
        if let Some(vault) = &self.context.vault {
            vault.end().await;
        }
        self.context.tasks.close();
        if timeout(STOP_TIMEOUT, self.context.tasks.wait()).await.is_err() {
            tracing::error!(tasks = self.context.tasks.len(), "some tasks did not end in time");
        }
        self.record(Event::SidecarStop, None);
        self.context.server_state.stderr.finish(STDERR_TIMEOUT);
        left_out_lines::log_left_out();
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
