//! The credentials of an HTTP server's requests: filled anew for each, from the newest secrets of the session.
//!
//! What must stay true: a request whose credential is over waits for the read that is under way, and no longer than ten
//! seconds; one that the server refused causes one read at most, and only if it was not read since; what is said about it
//! names the sources, never a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::try_join_all;
use http::HeaderMap;
use tokio::time::Instant;

use super::spec::{Scope, ServerKind};
use super::start::{StartError, Starter};
use crate::inject::reread::Reread;
use crate::inject::{InjectError, Reads, Secrets, fill_header};
use crate::upstream::http::{Credentials, Filled, Finding, Outcome};

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Keyring(Arc<Ring>);

struct Ring {
    starter: Starter,
    /// They are being read again.
    reading: AtomicBool,
}

/// The headers of one request. The secrets in them are not given back while the server may use them.
struct Keys {
    ring: Keyring,
    secrets: Secrets,
    headers: HeaderMap,
}

impl Keyring {
    pub(super) fn new(starter: Starter) -> Self {
        Self(Arc::new(Ring { starter, reading: AtomicBool::new(false) }))
    }

    /// The same for a request of a scope.
    pub(super) fn in_scope(&self, scope: &Arc<Scope>) -> Self {
        Self::new(self.0.starter.clone().in_scope(scope))
    }

    /// The templates of the server or the scope, filled.
    pub(super) fn fill(&self, secrets: &Secrets) -> Result<HeaderMap, InjectError> {
        let Starter { server, scope, .. } = &self.0.starter;
        let ServerKind::Http(http) = &server.kind else { return Ok(HeaderMap::new()) };
        let headers = scope.as_ref().map_or(&http.headers, |scope| &scope.headers);
        headers.iter().map(|(name, template)| Ok((name.clone(), fill_header(template, secrets)?))).collect()
    }

    /// The newest of every secret, if none is missing or over.
    fn held(&self) -> Option<Secrets> {
        let newest = self.0.starter.credentials.newest();
        let held = |name: &&_| {
            let material = newest.get(*name).filter(|material| material.is_live())?;
            Some(((*name).clone(), Arc::clone(material)))
        };
        self.0.starter.names().iter().map(held).collect()
    }

    fn keys(&self, secrets: Secrets) -> Result<Keys, InjectError> {
        Ok(Keys { headers: self.fill(&secrets)?, ring: self.clone(), secrets })
    }

    async fn newest(&self) -> Result<Keys, StartError> {
        let secrets = match self.held() {
            Some(secrets) => {
                if secrets.values().any(|material| !material.is_fresh()) {
                    self.read_anew();
                }
                secrets
            }
            None => self.0.starter.obtain_secrets().await?,
        };
        Ok(self.keys(secrets)?)
    }

    /// For the requests after this one.
    fn read_anew(&self) {
        if self.0.reading.swap(true, Ordering::AcqRel) {
            return;
        }
        let ring = self.clone();
        self.0.starter.tasks.spawn(async move {
            if let Err(error) = ring.0.starter.obtain_secrets().await {
                tracing::warn!(server = %ring.0.starter.server.name, why = %error.cause, "a secret was not read anew");
            }
            ring.0.reading.store(false, Ordering::Release);
        });
    }

    /// What there is instead of what the server refused.
    async fn others_than(&self, refused: &Keys) -> Result<Keys, String> {
        const REFUSED: &str = "the server did not accept the credential (HTTP 401)";
        if refused.secrets.is_empty() {
            return Err("the server wants a credential (HTTP 401) and none is configured for it; ask the user to put one into its `headers`".into());
        }
        let Starter { secrets: specs, limits, credentials, .. } = &self.0.starter;
        let reread = |(name, seen): (&_, &Arc<crate::secret::Material>)| {
            let (source, seen) = (&specs[name], seen.generation);
            async move { credentials.reread(source, limits.sources, seen).await }
        };
        let reread = try_join_all(refused.secrets.iter().map(reread)).await;
        let reread = reread.map_err(|error| {
            format!("{REFUSED}, and no other can be had: {}", StartError::from(error).told())
        })?;
        let mut secrets = refused.secrets.clone();
        let mut soonest = None;
        for (held, reread) in secrets.values_mut().zip(reread) {
            match reread {
                Reread::Read(material) => *held = material,
                Reread::TooSoon { next } => soonest = soonest.max(Some(next)),
            }
        }
        let keys =
            self.keys(secrets).map_err(|error| format!("{REFUSED}, and no other can be made: {error}"))?;
        if keys.headers != refused.headers {
            return Ok(keys);
        }
        let origin = keys.origin();
        Err(match soonest {
            Some(next) => {
                let wait = next.saturating_duration_since(Instant::now()).as_secs() + 1;
                format!(
                    "{REFUSED}; it is from {origin}, which was read anew a moment ago and is read again in {wait} s at the earliest; ask the user to renew it there"
                )
            }
            None => format!(
                "{REFUSED}; it is from {origin}, which was read anew and has not changed; ask the user to renew it there"
            ),
        })
    }
}

impl Credentials for Keyring {
    fn current(&self) -> Finding<'_, Outcome> {
        Box::pin(async { self.newest().await.map(shared).map_err(|error| error.told()) })
    }

    fn at_hand(&self) -> Option<Arc<dyn Filled>> {
        self.keys(self.held()?).ok().map(shared)
    }
}

impl Filled for Keys {
    fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    fn other_reads(&self, decided: &Reads) -> Option<Arc<Reads>> {
        decided.others(&self.secrets)
    }

    fn origin(&self) -> String {
        let origins: Vec<&str> = self.secrets.values().map(|material| material.origin.as_str()).collect();
        origins.join(" and ")
    }

    fn others(&self) -> Finding<'_, Outcome> {
        Box::pin(async { self.ring.others_than(self).await.map(shared) })
    }
}

fn shared(keys: Keys) -> Arc<dyn Filled> {
    Arc::new(keys)
}
