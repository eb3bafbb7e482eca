//! From configuration and credentials to a running upstream.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_process::{self as process, Launch, ServerProcess};
use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::files::FileStore;
use cofferdam_secrets::{SecretSpecs, Template, fill_environment};
use relay_proto::name::Name;
use tokio_util::task::TaskTracker;

use crate::grant_limits::{GrantLimits, LimitReached, ProcessPermit};
use crate::leaving::EndPolicy;
use crate::server_secrets::ServerSecrets;
use crate::spec::{HttpServer, Scope, ServerKind, ServerLimits, ServerSpec, StdioServer};
use crate::start_error::StartError;
use crate::stderr;
use crate::upstream::http::{HttpLimits, HttpTarget, HttpUpstream};
use crate::upstream::http_credentials::HeaderCredentials;
#[cfg(any(test, feature = "scripted"))]
use crate::upstream::scripted::Script;
use crate::upstream::stdio::StdioUpstream;
use crate::upstream::{HttpConnection, ProcessPipes, ProcessResources, StdioProcess, Upstream};

/// Everything that a start needs. It outlives the single connections of a link.
#[derive(Clone)]
pub struct Launcher {
    pub(crate) secrets: ServerSecrets,
    pub(crate) limits: ServerLimits,
    host: Host,
    /// For the log.
    link: Arc<str>,
    /// Simulates the processes of stdio servers.
    #[cfg(any(test, feature = "scripted"))]
    pub(crate) script: Option<Script>,
}

/// Resources of the sidecar that the servers of a grant use.
#[derive(Clone)]
pub struct Host {
    pub grant_limits: Arc<GrantLimits>,
    pub files: FileStore,
    /// Owns the tasks that end processes and read their stderr.
    pub tasks: TaskTracker,
}

/// Variables or files by name.
type Templates = BTreeMap<String, Template>;

impl Launcher {
    /// For `server`, whose secrets are among `specs` and are held by `credentials`.
    pub fn new(
        server: Arc<ServerSpec>,
        limits: ServerLimits,
        specs: Arc<SecretSpecs>,
        credentials: Arc<Credentials>,
        host: Host,
        link: Arc<str>,
    ) -> Self {
        let secrets = ServerSecrets { server, scope: None, specs, limits: limits.sources, credentials };
        Self {
            secrets,
            limits,
            host,
            link,
            #[cfg(any(test, feature = "scripted"))]
            script: None,
        }
    }

    /// The same with simulated processes.
    #[cfg(any(test, feature = "scripted"))]
    pub fn scripted(self, script: Option<Script>) -> Self {
        Self { script, ..self }
    }

    #[cfg(test)]
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.host.tasks
    }

    pub(crate) fn server(&self) -> &Arc<ServerSpec> {
        &self.secrets.server
    }

    /// The same for tools of a scope.
    pub(crate) fn in_scope(self, scope: &Arc<Scope>) -> Self {
        Self { secrets: self.secrets.in_scope(scope), ..self }
    }

    /// The same for a scope that was configured before, if there still is one like it.
    pub(crate) fn in_scope_like(self, scope: &Arc<Scope>) -> Option<Self> {
        let scope = self.server().scopes.iter().find(|other| other.runs_like(scope)).cloned()?;
        Some(self.in_scope(&scope))
    }

    pub(crate) async fn start(self) -> Result<Upstream, StartError> {
        match &self.server().kind {
            ServerKind::Http(http) => self.start_http(http).await,
            ServerKind::Stdio(stdio) => self.start_stdio(stdio, GrantLimits::admit_process).await,
        }
    }

    /// Starts a process that is to take over from the current one.
    pub(crate) async fn start_successor(self) -> Result<Upstream, StartError> {
        match &self.server().kind {
            ServerKind::Http(http) => self.start_http(http).await,
            ServerKind::Stdio(stdio) => self.start_stdio(stdio, GrantLimits::admit_successor).await,
        }
    }

    /// Whether a process that it starts may need new credentials while it runs.
    pub(crate) fn may_change(&self) -> bool {
        let may_change = |name: &Name| self.secrets.specs[name].origin.may_change();
        // Tests change secrets of any origin.
        #[cfg(any(test, feature = "scripted"))]
        let may_change = |name| self.script.is_some() || may_change(name);
        matches!(self.server().kind, ServerKind::Stdio(_)) && self.secrets.names().into_iter().any(may_change)
    }

    pub(crate) fn end_policy(&self) -> EndPolicy {
        EndPolicy {
            tasks: self.host.tasks.clone(),
            grace: self.limits.stop_grace,
            start_timeout: self.limits.start_timeout,
            drain: self.limits.replace_drain,
            server: self.server().name.clone(),
            link: Arc::clone(&self.link),
        }
    }

    /// The templates of variables and files for a process.
    pub(crate) fn templates<'a>(&'a self, stdio: &'a StdioServer) -> (&'a Templates, &'a Templates) {
        match &self.secrets.scope {
            Some(scope) => (&scope.env, &scope.files),
            None => (&stdio.env, &stdio.files),
        }
    }

    async fn start_http(&self, http: &HttpServer) -> Result<Upstream, StartError> {
        let secrets = self.secrets.obtain().await?;
        let limits = &self.limits;
        let upstream = HttpUpstream::new(
            HttpTarget { url: http.url.clone(), addresses: http.addresses },
            HttpLimits {
                message_bytes: limits.message_bytes,
                connect_timeout: limits.http_connect_timeout,
                requests_in_flight: limits.requests_in_flight,
            },
        );
        let credentials = HeaderCredentials::new(self.secrets.clone(), self.host.tasks.clone());
        // Filled once before anything is sent, so that a header that cannot be filled fails the start.
        credentials.fill(&secrets)?;
        Ok(Upstream::Http(Box::new(HttpConnection::new(upstream, credentials))))
    }

    async fn start_stdio(
        &self,
        stdio: &StdioServer,
        admit: fn(&GrantLimits) -> Result<ProcessPermit, LimitReached>,
    ) -> Result<Upstream, StartError> {
        // Before the permit: a start that fails for want of a secret is not counted.
        let secrets = self.secrets.obtain().await?;
        let permit = admit(&self.host.grant_limits)?;
        let (env, files) = self.templates(stdio);
        let files = self.host.files.write(files, &secrets)?;
        let injected = fill_environment(env, &secrets, files.paths())?;
        let resources = ProcessResources { files, secrets: Arc::new(secrets), _permit: permit };
        let scope = self.secrets.scope.as_ref().map(|scope| scope.to_string());
        #[cfg(any(test, feature = "scripted"))]
        if let Some(script) = &self.script {
            let pipes = ProcessPipes::Scripted(script.start(scope).await?);
            return Ok(Upstream::Stdio(Box::new(StdioProcess { pipes, resources })));
        }
        let (program, arguments) = stdio.command.split_first().expect("a checked command is not empty");
        let ServerProcess { stdin, stdout, stderr: stderr_pipe, handle } = process::launch(Launch {
            program: program.into(),
            args: arguments.iter().map(Into::into).collect(),
            environment: process::allowed_environment(injected),
            directory: None,
        })
        .await?;
        let server = &self.server().name;
        tracing::info!(%server, link = %self.link, scope, pid = handle.pid(), "server started");
        self.host.tasks.spawn(stderr::log(
            stderr_pipe,
            stderr::Source {
                server: server.clone(),
                link: Arc::clone(&self.link),
                credentials: Arc::clone(&self.secrets.credentials),
                line_bytes: self.limits.stderr_line_bytes,
                lines_per_second: self.limits.stderr_lines_per_second,
            },
        ));
        let pipes = ProcessPipes::Real(StdioUpstream::new(handle, stdin, stdout, self.limits.message_bytes));
        Ok(Upstream::Stdio(Box::new(StdioProcess { pipes, resources })))
    }
}
