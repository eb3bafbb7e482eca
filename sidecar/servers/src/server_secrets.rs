//! The secrets of one server, or of one of its scopes: which they are, and how a session gets them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::{SecretError, SecretSpecs, Secrets, SourceLimits, Template};
use futures_util::future::try_join_all;
use relay_proto::name::Name;

use crate::spec::{Scope, ServerSpec, StdioServer, secret_names};

/// Variables or files by name.
type Templates = BTreeMap<String, Template>;

/// Which secrets a server or one of its scopes uses, and where they are obtained from. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ServerSecrets {
    pub(crate) server: Arc<ServerSpec>,
    /// The scope whose templates are used instead of the server's own.
    pub(crate) scope: Option<Arc<Scope>>,
    /// All secrets of the configuration that `server` comes from.
    pub(crate) specs: Arc<SecretSpecs>,
    pub(crate) limits: SourceLimits,
    /// The secrets that the session holds.
    pub(crate) credentials: Arc<Credentials>,
}

impl ServerSecrets {
    /// The same for tools of a scope.
    pub(crate) fn in_scope(self, scope: &Arc<Scope>) -> Self {
        Self { scope: Some(Arc::clone(scope)), ..self }
    }

    /// The secrets that the templates name.
    pub(crate) fn names(&self) -> BTreeSet<&Name> {
        match &self.scope {
            Some(scope) => secret_names(scope.templates().chain(self.server.arguments())),
            None => self.server.secrets(),
        }
    }

    /// The variables and files of a process.
    pub(crate) fn templates<'a>(&'a self, stdio: &'a StdioServer) -> (&'a Templates, &'a Templates) {
        match &self.scope {
            Some(scope) => (&scope.env, &scope.files),
            None => (&stdio.env, &stdio.files),
        }
    }

    /// Returns all of them: those that the session holds, and the others read from their source.
    pub(crate) async fn obtain(&self) -> Result<Secrets, SecretError> {
        let obtain = async |name: &Name| {
            let source = &self.specs[name];
            Ok((name.clone(), self.credentials.obtain(source, self.limits).await?))
        };
        // Concurrently, so that the time limit of one read bounds them all.
        let secrets = try_join_all(self.names().into_iter().map(obtain)).await?;
        Ok(secrets.into_iter().collect())
    }

    /// The newest of each that the session holds; none if one is missing or has expired.
    pub(crate) fn held(&self) -> Option<Secrets> {
        let newest = self.credentials.newest();
        let held = |name: &&Name| {
            let material = newest.get(*name).filter(|material| material.is_live())?;
            Some(((*name).clone(), Arc::clone(material)))
        };
        self.names().iter().map(held).collect()
    }
}
