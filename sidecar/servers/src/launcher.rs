//! All that a link needs to start its server, or a scope of it, at any time.

use std::sync::Arc;

use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::{SecretSpecs, SecretUse};
use relay_proto::name::Name;
#[cfg(test)]
use tokio_util::task::TaskTracker;

use crate::grant_limits::GrantLimits;
use crate::server_secrets::ServerSecrets;
use crate::spec::{Replace, Scope, ServerLimits, ServerSpec};
use crate::start_error::StartError;
use crate::terminating::EndPolicy;
use crate::upstream::Upstream;
#[cfg(any(test, feature = "scripted"))]
use crate::upstream::scripted::Script;
use crate::upstream::start::{HostResources, StartContext};

/// Everything that a start needs. It outlives the single connections of a link.
#[derive(Clone)]
pub struct Launcher {
    pub(crate) secrets: ServerSecrets,
    pub(crate) limits: ServerLimits,
    host: HostResources,
    /// For the log.
    link: Arc<str>,
    /// Simulates the processes of stdio servers.
    #[cfg(any(test, feature = "scripted"))]
    pub(crate) script: Option<Script>,
}

impl Launcher {
    /// For `server`, whose secrets are among `specs` and are held by `credentials`.
    pub fn new(
        server: Arc<ServerSpec>,
        limits: ServerLimits,
        specs: Arc<SecretSpecs>,
        credentials: Arc<Credentials>,
        host: HostResources,
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

    /// The same for the configured scope with the same templates as `scope`, which is from an earlier configuration.
    pub(crate) fn in_matching_scope(self, scope: &Arc<Scope>) -> Option<Self> {
        let scope = self.server().scopes.iter().find(|other| other.has_same_templates(scope)).cloned()?;
        Some(self.in_scope(&scope))
    }

    pub(crate) async fn start(self) -> Result<Upstream, StartError> {
        Upstream::start(self.context(), GrantLimits::admit_process).await
    }

    /// Starts a process that is to take over from the current one.
    pub(crate) async fn start_successor(self) -> Result<Upstream, StartError> {
        Upstream::start(self.context(), GrantLimits::admit_successor).await
    }

    fn context(&self) -> StartContext<'_> {
        StartContext {
            secrets: &self.secrets,
            limits: &self.limits,
            host: &self.host,
            link: &self.link,
            #[cfg(any(test, feature = "scripted"))]
            script: self.script.as_ref(),
        }
    }

    /// Whether a process that it starts may need new credentials while it runs.
    pub(crate) fn credentials_may_change(&self) -> bool {
        let may_change = |name: &Name| self.secrets.specs[name].origin.may_change();
        // Tests change secrets of any origin.
        #[cfg(any(test, feature = "scripted"))]
        let may_change = |name| self.script.is_some() || may_change(name);
        self.server().kind.runs_processes() && self.secrets.names().into_iter().any(may_change)
    }

    /// Whether a process that it starts can take new values of each secret: in another process, or in rewritten files.
    pub(crate) fn secret_uses(&self) -> Vec<(Name, SecretUse)> {
        let secret_use = |name: &Name| match self.server().replace {
            Replace::Never if !self.can_reload(std::slice::from_ref(name)) => SecretUse::KeepsFirstValue,
            _ => SecretUse::TakesNewValues,
        };
        self.secrets.names().into_iter().map(|name| (name.clone(), secret_use(name))).collect()
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
}
