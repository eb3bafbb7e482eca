//! The secrets of one server, or of one of its scopes: which they are, and how a session gets them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::{SecretError, SecretSpecs, Secrets, SourceLimits};
use futures_util::future::try_join_all;
use relay_proto::name::Name;

use crate::spec::{Scope, ServerSpec};

/// Cheap to clone.
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
            Some(scope) => scope.secrets(),
            None => self.server.secrets(),
        }
    }

    /// Gets all of them: from the session where it holds them, otherwise by reading them now.
    pub(crate) async fn obtain(&self) -> Result<Secrets, SecretError> {
        let obtain = async |name: &Name| {
            let source = &self.specs[name];
            Ok((name.clone(), self.credentials.obtain(source, self.limits).await?))
        };
        // Concurrently: together they may take no longer than one.
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
