//! How a server of each kind is started: its secrets are obtained, then its process is started or its
//! HTTP client is created.

use std::ffi::OsString;
use std::sync::Arc;

use cofferdam_base::memory::MemoryAccount;
use cofferdam_process::{self as process, Launch, PathObserver, ServerProcess};
use cofferdam_secrets::files::FileStore;
use cofferdam_secrets::{fill_arguments, fill_environment};
use tokio_util::task::TaskTracker;

use super::http::{HttpLimits, HttpTarget, HttpUpstream};
use super::http_credentials::HeaderCredentials;
#[cfg(any(test, feature = "scripted"))]
use super::scripted::Script;
use super::stdio::StdioUpstream;
use super::{HttpConnection, ProcessPipes, ProcessResources, StdioProcess, Upstream};
use crate::confined::{self, ConfinedStart};
use crate::grant_limits::{LimitReached, ProcessPermit, SandboxLimits};
use crate::network_events::{NetworkEvents, NetworkObserver};
use crate::read_memory::InputMemory;
use crate::server_secrets::ServerSecrets;
use crate::spec::{HttpServer, ServerLimits, StdioServer};
use crate::start_error::StartError;
use crate::stderr;
use crate::stderr_files::StderrSink;
use crate::working_directory::WorkingDirectories;

/// What a start needs.
#[derive(Clone, Copy)]
pub(crate) struct StartContext<'a> {
    pub(crate) secrets: &'a ServerSecrets,
    pub(crate) limits: &'a ServerLimits,
    pub(crate) host: &'a HostResources,
    /// For the log.
    pub(crate) link: &'a Arc<str>,
    /// Simulates the processes of stdio servers.
    #[cfg(any(test, feature = "scripted"))]
    pub(crate) script: Option<&'a Script>,
}

/// What the sidecar provides to the servers of a sandbox.
#[derive(Clone)]
pub struct HostResources {
    pub sandbox_limits: SandboxLimits,
    /// The account of the link, for messages that are received from its servers.
    pub memory: Arc<MemoryAccount>,
    pub files: FileStore,
    /// Owns the tasks that end processes and read their stderr.
    pub tasks: TaskTracker,
    pub working_directories: WorkingDirectories,
    /// Keeps what the servers write to stderr.
    pub stderr: StderrSink,
    /// Records what confined servers do in their networks.
    pub network_events: Arc<dyn NetworkEvents>,
    /// Is told of the paths that confined servers ask for. Set for trials only: it makes them slower.
    pub path_observer: Option<Arc<dyn PathObserver>>,
}

/// Asks the grant's limits whether the sandbox may have one more process.
pub(crate) type Admit = fn(&SandboxLimits) -> Result<ProcessPermit, LimitReached>;

impl StartContext<'_> {
    /// Creates the client of an HTTP server. No connection is opened yet.
    pub(super) async fn prepare_http(self, http: &HttpServer) -> Result<Upstream, StartError> {
        let secrets = self.secrets.obtain().await?;
        let limits = self.limits;
        let upstream = HttpUpstream::new(
            HttpTarget { url: http.url.clone(), addresses: http.addresses },
            HttpLimits {
                message_bytes: limits.message_bytes,
                connect_timeout: limits.http_connect_timeout,
                requests_in_flight: limits.requests_in_flight,
                memory: Arc::clone(&self.host.memory),
                memory_wait: limits.memory_wait,
            },
        );
        let credentials = HeaderCredentials::new(self.secrets.clone(), self.host.tasks.clone(), self.link);
        // Tried before anything is sent, so that a header that cannot be filled fails the start.
        credentials.fill(&secrets)?;
        Ok(Upstream::Http(Box::new(HttpConnection::new(upstream, credentials))))
    }

    /// Starts the process of a stdio server.
    pub(super) async fn launch(self, stdio: &StdioServer, admit: Admit) -> Result<Upstream, StartError> {
        // Secrets come first: a start that fails here needs no permit and is not counted.
        let secrets = self.secrets.obtain().await?;
        let permit = admit(&self.host.sandbox_limits)?;
        let (env, files) = self.secrets.templates(stdio);
        let files = self.host.files.write(files, &secrets)?;
        let injected = fill_environment(env, &secrets, files.paths())?;
        let filled = fill_arguments(&stdio.argument_templates, &secrets, files.paths())?;
        let secrets = Arc::new(secrets);
        let mut resources = ProcessResources { files, secrets, network: None, _permit: permit };
        let scope = self.secrets.scope.as_ref().map(|scope| scope.to_string());
        #[cfg(any(test, feature = "scripted"))]
        if let Some(script) = self.script {
            let pipes = ProcessPipes::Scripted(script.start(scope).await?);
            return Ok(Upstream::Stdio(Box::new(StdioProcess::new(pipes, resources, self.link))));
        }
        let server = &self.secrets.server.name;
        let (program, arguments) = stdio.command.split_first().expect("a checked command is not empty");
        let args: Vec<OsString> = match filled.is_empty() {
            true => arguments.iter().map(Into::into).collect(),
            false => filled,
        };
        let started = match &stdio.confinement {
            None => {
                let directory = Some(match &stdio.directory {
                    Some(directory) => directory.clone(),
                    None => self.host.working_directories.of(server)?,
                });
                let environment = process::allowed_environment(injected);
                process::launch(Launch { program: program.into(), args, environment, directory, walls: None })
                    .await?
            }
            Some(confinement) => {
                let start = ConfinedStart {
                    program,
                    written: arguments,
                    arguments: args,
                    injected,
                    files: resources.files.directory(),
                    directory: stdio.directory.as_deref(),
                    directories: &self.host.working_directories,
                    limits: self.limits,
                    observer: Arc::new(NetworkObserver {
                        server: server.clone(),
                        link: Arc::clone(self.link),
                        events: Arc::clone(&self.host.network_events),
                    }),
                    path_observer: self.host.path_observer.clone(),
                };
                let (process, network) = confined::start(confinement, start).await?;
                resources.network = Some(network);
                process
            }
        };
        let ServerProcess { stdin, stdout, stderr: stderr_pipe, handle, sockets: _ } = started;
        tracing::info!(%server, link = %self.link, scope, pid = handle.pid(), "server started");
        self.host.tasks.spawn(stderr::log(
            stderr_pipe,
            stderr::LogContext {
                server: server.clone(),
                link: Arc::clone(self.link),
                process: handle.pid(),
                sink: self.host.stderr.clone(),
                credentials: Arc::clone(&self.secrets.credentials),
                line_bytes: self.limits.stderr_line_bytes,
                lines_per_second: self.limits.stderr_lines_per_second,
            },
        ));
        let limit = self.limits.message_bytes;
        let memory = InputMemory::new(&self.host.memory, limit, self.limits.memory_wait);
        let pipes = ProcessPipes::Real(StdioUpstream::new(handle, stdin, stdout, limit, memory));
        Ok(Upstream::Stdio(Box::new(StdioProcess::new(pipes, resources, self.link))))
    }
}
