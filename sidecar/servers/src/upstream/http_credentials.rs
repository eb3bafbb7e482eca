//! The credentials of an HTTP server's requests: filled for each request from the newest secrets of the session.
//!
//! What must stay true: a request whose credential has expired waits for the read in progress, for ten seconds at most;
//! a refused credential causes one read at most, and only if it was not read again since; error messages name secrets, never
//! a value, and only the log names where they come from.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cofferdam_base::text::error_chain;
use cofferdam_base::{PacedLines, RateLimiter};
use cofferdam_secrets::reread::Reread;
use cofferdam_secrets::{
    InjectError, Material, RegisteredUses, SecretError, SecretReads, SecretUse, Secrets, fill_header,
};
use futures_util::future::try_join_all;
use http::HeaderMap;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::http::{BoxFuture, CredentialResult, Credentials, RequestCredentials};
use crate::server_secrets::ServerSecrets;
use crate::spec::{Scope, ServerKind};
use crate::start_error::explain;

/// Fills the headers of a server's requests, or of those of one of its scopes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HeaderCredentials(Arc<Shared>);

struct Shared {
    secrets: ServerSecrets,
    /// Owns the background reads.
    tasks: TaskTracker,
    /// A background read is in progress.
    reading: AtomicBool,
    failures: Arc<FailureLog>,
    /// Tells the session that new values of the secrets have a user here; shared with the scopes.
    uses: Arc<RegisteredUses>,
}

/// Logs why credentials are not available, under the link that the refusals name.
struct FailureLog {
    link: Arc<str>,
    pace: Mutex<RateLimiter>,
}

/// Failures of one link that are logged within a minute: a sandbox can cause one with each call.
const FAILURES_PER_MINUTE: u32 = 30;
static UNAVAILABLE_LINES: PacedLines = PacedLines::new("the credential of a request is not available");
static REREAD_LINES: PacedLines = PacedLines::new("reading a secret again failed");

/// The headers of one request. Holding this keeps their secrets from being revoked while the server may use them.
struct FilledHeaders {
    credentials: HeaderCredentials,
    secrets: Secrets,
    headers: HeaderMap,
}

/// Why the headers of a request could not be filled.
enum FillError {
    Inject(InjectError),
    Secret(SecretError),
}

impl HeaderCredentials {
    pub(crate) fn new(secrets: ServerSecrets, tasks: TaskTracker, link: &Arc<str>) -> Self {
        let names = secrets.server.every_secret().into_iter();
        let uses = names.map(|name| (name.clone(), SecretUse::TakesNewValues)).collect();
        let uses = Arc::new(secrets.credentials.register_uses(uses));
        let pace = Mutex::new(RateLimiter::per_minute(FAILURES_PER_MINUTE));
        let failures = Arc::new(FailureLog { link: Arc::clone(link), pace });
        Self(Arc::new(Shared { secrets, tasks, reading: AtomicBool::new(false), failures, uses }))
    }

    /// The same for a request of a scope.
    pub(super) fn in_scope(&self, scope: &Arc<Scope>) -> Self {
        let Shared { secrets, tasks, failures, uses, .. } = &*self.0;
        Self(Arc::new(Shared {
            secrets: secrets.clone().in_scope(scope),
            tasks: tasks.clone(),
            reading: AtomicBool::new(false),
            failures: Arc::clone(failures),
            uses: Arc::clone(uses),
        }))
    }

    /// Logs the details of a failure; returns what the sandbox is told, with the reference to them.
    fn report(&self, shown: &str, detail: &str) -> String {
        let FailureLog { link, pace } = &*self.0.failures;
        let server = &self.0.secrets.server.name;
        let mut pace = pace.lock().expect("no holder of this lock panics");
        if let Some(left_out) = UNAVAILABLE_LINES.admit_within(&mut pace) {
            tracing::warn!(%server, %link, left_out, why = detail, "the credential of a request is not available");
        }
        format!("{shown}; the host's log has the details under link={link}")
    }

    /// Fills the header templates of the server or the scope.
    pub(crate) fn fill(&self, secrets: &Secrets) -> Result<HeaderMap, InjectError> {
        let ServerSecrets { server, scope, .. } = &self.0.secrets;
        let ServerKind::Http(http) = &server.kind else { return Ok(HeaderMap::new()) };
        let headers = scope.as_ref().map_or(&http.headers, |scope| &scope.headers);
        headers.iter().map(|(name, template)| Ok((name.clone(), fill_header(template, secrets)?))).collect()
    }

    fn headers(&self, secrets: Secrets) -> Result<FilledHeaders, InjectError> {
        Ok(FilledHeaders { headers: self.fill(&secrets)?, credentials: self.clone(), secrets })
    }

    async fn newest(&self) -> Result<FilledHeaders, FillError> {
        let secrets = match self.0.secrets.held() {
            Some(secrets) => {
                if secrets.values().any(|material| !material.is_fresh()) {
                    self.read_again();
                }
                secrets
            }
            None => self.0.secrets.obtain().await.map_err(FillError::Secret)?,
        };
        self.headers(secrets).map_err(FillError::Inject)
    }

    /// Reads the secrets in the background, for the requests after this one.
    fn read_again(&self) {
        if self.0.reading.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(&self.0);
        self.0.tasks.spawn(async move {
            if let Err(error) = shared.secrets.obtain().await
                && let Some(left_out) = REREAD_LINES.admit()
            {
                let server = &shared.secrets.server.name;
                tracing::warn!(%server, left_out, why = %error.cause, "reading a secret again failed; the values read before are still used");
            }
            shared.reading.store(false, Ordering::Release);
        });
    }

    /// Reads the secrets of refused headers again, and returns headers that differ from the refused ones.
    async fn newer_than(&self, refused: &FilledHeaders) -> Result<FilledHeaders, String> {
        const REFUSED: &str = "the server did not accept the credential (HTTP 401)";
        if refused.secrets.is_empty() {
            return Err("the server requires a credential (HTTP 401) and none is configured for it; ask the user to put one into its `headers`".into());
        }
        let ServerSecrets { specs, limits, credentials, .. } = &self.0.secrets;
        let reread = |(name, seen): (&_, &Arc<Material>)| {
            let (source, seen) = (&specs[name], seen.version);
            async move { credentials.reread(source, *limits, seen).await }
        };
        let reread = try_join_all(refused.secrets.iter().map(reread)).await;
        let reread = reread.map_err(|error| {
            let shown = format!("{REFUSED}, and it cannot be read again: {}", error.for_sandbox());
            self.report(&shown, &explain(&error))
        })?;
        let mut secrets = refused.secrets.clone();
        let mut next_read = None;
        for (held, reread) in secrets.values_mut().zip(reread) {
            match reread {
                Reread::Read(material) => *held = material,
                Reread::TooSoon { next } => next_read = next_read.max(Some(next)),
            }
        }
        let headers = self.headers(secrets).map_err(|error| {
            let shown = error.for_sandbox();
            let shown = format!("{REFUSED}, and the one that was read again cannot be used: {shown}");
            self.report(&shown, &error_chain(&error))
        })?;
        if headers.headers != refused.headers {
            return Ok(headers);
        }
        let secrets = headers.secret_names();
        let shown = match next_read {
            Some(next) => {
                let wait = next.saturating_duration_since(Instant::now()).as_secs() + 1;
                format!(
                    "{REFUSED}; it is {secrets}, which was read again a moment ago; the next read is possible in {wait} s; ask the user to renew it"
                )
            }
            None => format!(
                "{REFUSED}; it is {secrets}, which was read again and has not changed; ask the user to renew it"
            ),
        };
        Err(self.report(&shown, &format!("{REFUSED}; it is from {}", headers.origins())))
    }
}

impl FilledHeaders {
    /// For the log: where the secrets come from.
    fn origins(&self) -> String {
        let origins: Vec<&str> = self.secrets.values().map(|material| material.origin.as_str()).collect();
        origins.join(" and ")
    }
}

impl Credentials for HeaderCredentials {
    fn current(&self) -> BoxFuture<'_, CredentialResult> {
        Box::pin(async {
            self.newest().await.map(shared).map_err(|error| match error {
                FillError::Inject(error) => self.report(&error.for_sandbox(), &error_chain(&error)),
                FillError::Secret(error) => self.report(&error.for_sandbox(), &explain(&error)),
            })
        })
    }

    fn held(&self) -> Option<Arc<dyn RequestCredentials>> {
        self.headers(self.0.secrets.held()?).ok().map(shared)
    }
}

impl RequestCredentials for FilledHeaders {
    fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    fn reads_after_decision(&self, decided: &SecretReads) -> Option<Arc<SecretReads>> {
        decided.reads_beyond(&self.secrets)
    }

    fn secret_names(&self) -> String {
        let names: Vec<String> = self.secrets.keys().map(|name| format!("the secret `{name}`")).collect();
        names.join(" and ")
    }

    fn newer(&self) -> BoxFuture<'_, CredentialResult> {
        Box::pin(async { self.credentials.newer_than(self).await.map(shared) })
    }
}

fn shared(headers: FilledHeaders) -> Arc<dyn RequestCredentials> {
    Arc::new(headers)
}
