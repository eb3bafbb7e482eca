//! From configuration and credentials to a running upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cofferdam_base::text::error_chain;
use futures_util::future::try_join_all;
use relay_proto::code::Code;
use relay_proto::name::Name;
use tokio_util::task::TaskTracker;

use super::gate::{Crowded, Gate, Place};
use super::keyring::Keyring;
use super::leaving::Custody;
use super::spec::{HttpServer, Scope, ServerKind, ServerLimits, ServerSpec, StdioServer};
use super::stderr;
use super::upstream::{Belongings, HttpConnection, ProcessPipes, StdioProcess, Upstream};
use crate::inject::credentials::Credentials;
use crate::inject::files::{FileError, FileStore};
use crate::inject::{InjectError, Secrets, Template, fill_environment};
use crate::process::{self, Launch, LaunchError, ServerProcess};
use crate::secret::{SecretError, SecretSpecs};
use crate::upstream::http::{HttpLimits, HttpTarget, HttpUpstream};
use crate::upstream::stdio::StdioUpstream;

/// Everything a start needs. Nothing of it belongs to one connection.
#[derive(Clone)]
pub(crate) struct Starter {
    pub(crate) server: Arc<ServerSpec>,
    /// Every secret of the configuration that the server is from.
    pub(crate) secrets: Arc<SecretSpecs>,
    pub(crate) limits: ServerLimits,
    /// What is started is for tools of this scope only.
    pub(crate) scope: Option<Arc<Scope>>,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) files: FileStore,
    pub(crate) tasks: TaskTracker,
    /// For the log.
    pub(crate) link: Arc<str>,
    /// Plays the processes of stdio servers.
    #[cfg(test)]
    pub(crate) script: Option<super::scripted::Script>,
}

/// Variables or files by name.
type Templates = BTreeMap<String, Template>;

/// Why a server did not start. Nothing was sent to it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{0}")]
    Crowded(#[from] Crowded),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Files(#[from] FileError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl StartError {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Files(FileError::Fill { .. }) | Self::Inject(_) | Self::Secret(_) => {
                Code::CredentialUnavailable
            }
            Self::Crowded(_) | Self::Files(_) | Self::Launch(_) => Code::ServerUnavailable,
        }
    }

    /// Whether the next try waits by itself: who is asked for the credential has a pace of its own.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self, Self::Secret(error) if error.is_paced())
    }

    /// What, why and, where there is one, the next step.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Secret(error) => format!("{}; {}", error_chain(error), error.next_step()),
            other => error_chain(other),
        }
    }
}

impl Starter {
    pub(crate) async fn start(self) -> Result<Upstream, StartError> {
        match &self.server.kind {
            ServerKind::Http(http) => self.start_http(http).await,
            ServerKind::Stdio(stdio) => self.start_stdio(stdio, Gate::enter).await,
        }
    }

    /// Starts a process that takes over from the one that runs.
    pub(crate) async fn start_beside(self) -> Result<Upstream, StartError> {
        match &self.server.kind {
            ServerKind::Http(http) => self.start_http(http).await,
            ServerKind::Stdio(stdio) => self.start_stdio(stdio, Gate::enter_beside).await,
        }
    }

    /// Whether what it starts may have to be given other credentials while it runs.
    pub(crate) fn may_change(&self) -> bool {
        let may_change = |name| self.secrets[name].origin.may_change();
        // A test changes what it holds, wherever that is from.
        #[cfg(test)]
        let may_change = |name| self.script.is_some() || may_change(name);
        matches!(self.server.kind, ServerKind::Stdio(_)) && self.names().into_iter().any(may_change)
    }

    /// What is remembered of what this starts.
    pub(crate) fn custody(&self) -> Custody {
        Custody {
            tasks: self.tasks.clone(),
            grace: self.limits.stop_grace,
            patience: self.limits.start_timeout,
            drain: self.limits.replace_drain,
            server: self.server.name.clone(),
            link: Arc::clone(&self.link),
        }
    }

    async fn start_http(&self, http: &HttpServer) -> Result<Upstream, StartError> {
        let secrets = self.obtain_secrets().await?;
        let limits = &self.limits;
        let upstream = HttpUpstream::new(
            HttpTarget { url: http.url.clone(), addresses: http.addresses },
            HttpLimits {
                message_bytes: limits.message_bytes,
                connect_timeout: limits.http_connect_timeout,
                requests_in_flight: limits.requests_in_flight,
            },
        );
        let keyring = Keyring::new(self.clone());
        // Tried once before anything is sent: a header that cannot be filled is a server that does not start.
        keyring.fill(&secrets)?;
        Ok(Upstream::Http(Box::new(HttpConnection::new(upstream, keyring))))
    }

    async fn start_stdio(
        &self,
        stdio: &StdioServer,
        enter: fn(&Gate) -> Result<Place, Crowded>,
    ) -> Result<Upstream, StartError> {
        // First of all: a start that ends here cost nothing, and is not counted.
        let secrets = self.obtain_secrets().await?;
        let place = enter(&self.gate)?;
        let (env, files) = self.templates(stdio);
        let files = self.files.write(files, &secrets)?;
        let injected = fill_environment(env, &secrets, files.paths())?;
        #[cfg(test)]
        if let Some(script) = &self.script {
            let scope = self.scope.as_ref().map(|scope| scope.to_string());
            let upstream = ProcessPipes::Scripted(script.start(scope).await?);
            let belongings = Belongings { files, secrets: Arc::new(secrets), _place: place };
            return Ok(Upstream::Stdio(Box::new(StdioProcess { upstream, belongings })));
        }
        let (program, arguments) = stdio.command.split_first().expect("a checked command is not empty");
        let ServerProcess { stdin, stdout, stderr: talk, handle } = process::launch(Launch {
            program: program.into(),
            args: arguments.iter().map(Into::into).collect(),
            environment: process::allowed_environment(injected),
            directory: None,
        })
        .await?;
        let scope = self.scope.as_ref().map(|scope| scope.to_string());
        tracing::info!(server = %self.server.name, link = %self.link, scope, pid = handle.pid(), "server started");
        self.tasks.spawn(stderr::log(
            talk,
            stderr::Source {
                server: self.server.name.clone(),
                link: Arc::clone(&self.link),
                credentials: Arc::clone(&self.credentials),
                line_bytes: self.limits.stderr_line_bytes,
                lines_per_second: self.limits.stderr_lines_per_second,
            },
        ));
        let upstream = StdioUpstream::new(handle, stdin, stdout, self.limits.message_bytes);
        let upstream = ProcessPipes::Real(upstream);
        let belongings = Belongings { files, secrets: Arc::new(secrets), _place: place };
        Ok(Upstream::Stdio(Box::new(StdioProcess { upstream, belongings })))
    }

    /// The variables and files of what it starts.
    pub(super) fn templates<'a>(&'a self, stdio: &'a StdioServer) -> (&'a Templates, &'a Templates) {
        match &self.scope {
            Some(scope) => (&scope.env, &scope.files),
            None => (&stdio.env, &stdio.files),
        }
    }

    /// The same for tools of a scope.
    pub(super) fn in_scope(self, scope: &Arc<Scope>) -> Self {
        Self { scope: Some(Arc::clone(scope)), ..self }
    }

    /// The same for a scope that was configured before, if there still is one like it.
    pub(super) fn in_scope_like(self, scope: &Arc<Scope>) -> Option<Self> {
        let scope = self.server.scopes.iter().find(|other| other.runs_like(scope)).cloned()?;
        Some(self.in_scope(&scope))
    }

    /// The secrets that the server's or the scope's templates name, read now or held already by the session.
    pub(super) async fn obtain_secrets(&self) -> Result<Secrets, SecretError> {
        let obtain = async |name: &Name| {
            let source = &self.secrets[name];
            Ok((name.clone(), self.credentials.obtain(source, self.limits.sources).await?))
        };
        // All at once: together they may take no longer than one.
        let secrets = try_join_all(self.names().into_iter().map(obtain)).await?;
        Ok(secrets.into_iter().collect())
    }

    pub(super) fn names(&self) -> BTreeSet<&Name> {
        match &self.scope {
            Some(scope) => scope.secrets(),
            None => self.server.secrets(),
        }
    }
}
