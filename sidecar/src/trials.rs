//! Starts servers for trials, as the daemon would, but with a state directory that ends with the trials.
//!
//! What must stay true: nothing of a running sidecar is touched: its state directory is not opened, and tokens that it has
//! recorded are not revoked; what the trials have started and made is gone after [`Trials::end`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{self as audit, Audit};
use cofferdam_base::memory::MemoryAccount;
use cofferdam_base::text::error_chain;
use cofferdam_process::PathObserver;
use cofferdam_scrub::Scrubber;
use cofferdam_secrets::files::FileStore;
use cofferdam_servers::spec::ServerSpec;
use cofferdam_servers::stderr_files::{StderrFollower, StderrRecord, StderrSink, stderr_directory};
use cofferdam_servers::trial::{RecordedUse, Trial, TrialError, try_server};
use cofferdam_servers::{HostResources, Launcher, NetworkEvents};
use cofferdam_vault::RemainingLinks;
use relay_proto::name::Name;
use tokio::time::{Instant, timeout};

use crate::config::Config;
use crate::session::principal::{Enrolled, EnrolledBy, Principal};
use crate::session::{Context, NetworkAudit, Session};

/// How long a trial's credentials may live if they cannot be revoked.
const CREDENTIAL_LIFETIME: Duration = Duration::from_secs(300);
/// For the end of all processes and tokens.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Where servers are tried.
pub(crate) struct Trials {
    pub(crate) context: Arc<Context>,
    scratch: ScratchState,
    /// The command that makes the trials, for the names of their sessions.
    by: &'static str,
}

/// Whether the trials log in to Vault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VaultUse {
    LogIn,
    /// Servers with secrets of Vault are not tried.
    Leave,
}

/// Who is told what confined servers ask for.
pub(crate) struct Observers {
    pub(crate) network: Arc<dyn NetworkEvents>,
    pub(crate) paths: Arc<dyn PathObserver>,
}

/// What a server did in a trial.
pub(crate) struct Tried {
    pub(crate) result: Result<Trial, TrialError>,
    /// Removes the credentials from what the server says.
    pub(crate) scrubber: Scrubber,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TrialsError {
    #[error("no directory for the trials: {0}")]
    Scratch(std::io::Error),
    #[error("{0}")]
    Context(String),
}

/// A directory for the trials, with the audit, the working directories and the stderr of the servers. Removed on drop.
struct ScratchState(PathBuf);

impl Trials {
    /// Reads the configuration at `path` again, because its state directory is replaced.
    pub(crate) fn open(path: &Path, vault: VaultUse, by: &'static str) -> Result<Self, TrialsError> {
        let scratch = ScratchState::create().map_err(TrialsError::Scratch)?;
        let context = scratch.context(path, vault).map_err(TrialsError::Context)?;
        Ok(Self { context, scratch, by })
    }

    /// Tries one server; `observers` are for confined ones.
    pub(crate) async fn run(
        &self,
        server: &Arc<ServerSpec>,
        recorded: &RecordedUse,
        observers: Option<Observers>,
    ) -> Tried {
        let config = self.context.config.load_full();
        let session = Arc::new(Session::new(&self.context, &self.principal(server, &config)));
        session.enter();
        let link: Arc<str> = self.by.into();
        let (network_events, path_observer) = match observers {
            Some(Observers { network, paths }) => (network, Some(paths)),
            None => {
                let audit = NetworkAudit { session: Arc::clone(&session), link: Arc::clone(&link) };
                (Arc::new(audit) as Arc<dyn NetworkEvents>, None)
            }
        };
        let (context, state) = (&self.context, &self.context.server_state);
        let host = HostResources {
            sandbox_limits: session.sandbox_limits.clone(),
            memory: MemoryAccount::new(usize::try_from(config.limits.link_memory).unwrap_or(usize::MAX)),
            files: context.files.clone(),
            tasks: context.tasks.clone(),
            working_directories: state.directories.clone(),
            stderr: StderrSink { files: state.stderr.clone(), session: Arc::clone(&session.id) },
            network_events,
            path_observer,
        };
        let launcher = Launcher::new(
            Arc::clone(server),
            (&config.limits).into(),
            Arc::clone(&config.secrets),
            Arc::clone(&session.credentials),
            host,
            link,
        );
        let result = try_server(launcher, recorded).await;
        let scrubber = session.credentials.scrubber();
        if session.leave() == RemainingLinks::None
            && let Some(vault) = &session.vault
        {
            // What is not revoked by then is revoked when the trials end, or expires.
            vault.end(Instant::now() + END_TIMEOUT).await;
        }
        Tried { result, scrubber }
    }

    fn principal(&self, server: &ServerSpec, config: &Config) -> Principal {
        let enrolment = Enrolled {
            id: cofferdam_base::random::id(self.by).into(),
            name: format!("cofferdam {}", self.by).into(),
            expires: Instant::now() + CREDENTIAL_LIFETIME,
            kind: EnrolledBy::Connection,
            next_step: "",
        };
        let grant = grant_of(&server.name, config).unwrap_or_else(|| server.name.clone());
        Principal { grant, enrolment: Some(enrolment), uid: None }
    }

    /// The last line of a server's stderr, which is scrubbed.
    pub(crate) fn last_stderr(&self, server: &Name) -> Option<String> {
        let directory = stderr_directory(&self.scratch.0);
        let line = StderrFollower::from_start(&directory, server).ok()?.last(1).ok()?.pop_back()?;
        StderrRecord::parse(&line)?.text().map(str::to_owned)
    }

    /// Ends what the trials have left.
    pub(crate) async fn end(&self) {
        let context = &self.context;
        if let Some(vault) = &context.vault {
            vault.end().await;
        }
        context.tasks.close();
        // Tasks that end processes; the keepers kill the processes in any case.
        let _ = timeout(END_TIMEOUT, context.tasks.wait()).await;
        context.server_state.stderr.finish(STDERR_TIMEOUT);
    }
}

/// A grant that names the server.
pub(crate) fn grant_of(server: &Name, config: &Config) -> Option<Name> {
    config.grants.values().find(|grant| grant.servers.contains(server)).map(|grant| grant.name.clone())
}

impl ScratchState {
    fn create() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-trial-"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// A context like the daemon's, with the state in this directory.
    fn context(&self, path: &Path, vault: VaultUse) -> Result<Arc<Context>, String> {
        let mut config = crate::config::load(path).map_err(|problems| problems.to_string())?;
        config.state_dir.clone_from(&self.0);
        if vault == VaultUse::Leave {
            config.vault = None;
        }
        let files = FileStore::open().map_err(|error| error_chain(&error))?;
        let audit = Audit::open(config.audit_options(audit::WriteBy::Caller));
        let audit = audit.map_err(|error| error_chain(&error))?;
        let context = Context::new(config, audit, files, Arc::default());
        context.map(Arc::new).map_err(|error| error_chain(&error))
    }
}

impl Drop for ScratchState {
    fn drop(&mut self) {
        // A server may have made files there that this user cannot remove; they are in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
