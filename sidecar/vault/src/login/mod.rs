//! The sidecar's own login: one current token, kept valid by one task.
//!
//! | module | what it is for |
//! |---|---|
//! | `method` | the six ways to log in; credential files are read at each login |
//! | `wrapped` | a response-wrapped secret-id: looked up, unwrapped once, kept in memory |
//! | `unwrap_records` | on disk: which wraps the sidecar has unwrapped |
//! | `records` | what the login leaves on disk for the next start |
//! | `once` | a single login that is not renewed |
//! | `task` | the task: renews, logs in again before the old token expires, backs off after failures |
//! | `timing` | when to renew, and how long to wait after a failure |
//! | `backend` | the requests of the task, which tests can replace |
//!
//! What must stay true: a token is replaced while the one before is still valid; a caller never gets an expired token
//! as the current one; there is a pause before each retry; the token in a user's own file is never revoked.

mod backend;
mod method;
mod once;
mod records;
mod task;
#[cfg(test)]
mod tests;
mod timing;
mod unwrap_records;
mod wrapped;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_scrub::OwnCredentials;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Vault;
use crate::error::{Kind, Problem, RequestLine, VaultError};
use crate::token::{Accessor, Token};
use backend::VaultBackend;
use method::Authenticator;
pub use method::{Method, SecretId};
pub use once::SingleLogin;
pub use records::LoginRecords;
use records::StoredAccessors;
use task::LoginTask;
pub use unwrap_records::UnwrapRecords;

/// The longest wait of a caller, whose own timeout is ten seconds.
const MAX_WAIT: Duration = Duration::from_secs(9);
/// The longest wait for the next login after a revoked token.
const MAX_SUCCESSOR_WAIT: Duration = Duration::from_secs(3);
/// At most this many tokens of earlier logins are revoked at the end; further ones are left to expire.
const MAX_RETIRED: usize = 16;

/// The sidecar's login at Vault. Cheap to clone.
#[derive(Clone)]
pub struct Login {
    vault: Vault,
    ownership: Ownership,
    /// Where the accessors of the login's tokens are stored; `None` for a user's own token.
    accessors: Option<Arc<StoredAccessors>>,
    shared: Arc<SharedLogin>,
}

/// The token of a login.
#[derive(Debug)]
pub struct LoginToken {
    pub token: Arc<Token>,
    pub accessor: Option<Accessor>,
    /// `None`: the token does not expire.
    pub expires: Option<Instant>,
    pub renewable: bool,
    pub policies: Vec<String>,
    /// Counts the login's tokens from one. A renewal keeps the number; a login outside the sidecar's login task has zero.
    pub token_number: u64,
}

/// Why Vault could not be used, and when the next attempt is.
#[derive(Clone, Debug)]
pub struct RetryableFailure {
    pub error: VaultError,
    pub next_attempt: Instant,
}

/// Who created the token, and so who may revoke it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ownership {
    Sidecar,
    User,
}

struct SharedLogin {
    state: watch::Sender<LoginState>,
    /// The number of the current token; zero before the first login.
    token_number: watch::Sender<u64>,
    /// The number of callers that wait for a token.
    waiting: AtomicUsize,
    /// The number of the token that Vault refused; zero for none.
    refused_token_number: AtomicU64,
    /// Wakes the task.
    wake: Notify,
    /// Tokens of earlier logins that may still be valid.
    retired: Mutex<Vec<Arc<LoginToken>>>,
    stop: CancellationToken,
}

#[derive(Clone, Debug, Default)]
struct LoginState {
    current: Option<Arc<LoginToken>>,
    failure: Option<RetryableFailure>,
    /// The number of finished attempts, successful or not.
    finished: u64,
}

impl Login {
    /// Starts the task that logs in and keeps the login valid until `stop`. What it reads to log in, and its tokens, are
    /// held in `own`.
    pub fn start(
        vault: Vault,
        method: Method,
        records: LoginRecords,
        own: Arc<OwnCredentials>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let ownership = Ownership::of(&method);
        let LoginRecords { accessors, unwraps } = records;
        let accessors = accessors.filter(|_| ownership == Ownership::Sidecar);
        let accessors = accessors.map(|files| Arc::new(StoredAccessors::new(files)));
        let authenticator = Authenticator::new(method, unwraps, own);
        let shared = SharedLogin::new(stop.child_token());
        let task = LoginTask::new(
            VaultBackend::new(vault.clone(), authenticator, accessors.clone()),
            shared.clone(),
        );
        tasks.spawn(task.run());
        Self { vault, ownership, accessors, shared }
    }

    /// The current token. If there is none, waits for the next attempt to log in and returns its result.
    pub async fn current(&self) -> Result<Arc<LoginToken>, VaultError> {
        self.shared.current().await
    }

    /// The number of the current token and of every later one; zero before the first login.
    pub fn token_numbers(&self) -> watch::Receiver<u64> {
        self.shared.token_number.subscribe()
    }

    /// When the token with this number expires, as known now. `None`: it does not expire. A token that is not stored any
    /// more counts as expired.
    pub(crate) fn end_of(&self, token_number: u64) -> Option<Instant> {
        let has_this_number = |token: &&Arc<LoginToken>| token.token_number == token_number;
        if let Some(token) = self.shared.state.borrow().current.as_ref().filter(has_this_number) {
            return token.expires;
        }
        let retired = self.shared.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.iter().find(has_this_number).map_or_else(|| Some(Instant::now()), |token| token.expires)
    }

    /// Reports that Vault refused a request with the token of this number. The task verifies the token, and logs in
    /// again if it is not valid.
    pub fn report_refusal(&self, token_number: u64) {
        self.shared.refused_token_number.store(token_number, Ordering::Release);
        self.shared.wake.notify_one();
    }

    /// For use after Vault refused a request with this token. If it is not valid any more, waits for the next login and
    /// returns its token. `None` if the token is valid, if that is unknown, or if there is no new login in time.
    pub(crate) async fn successor_of(&self, refused: &LoginToken) -> Option<Arc<LoginToken>> {
        let is_next = |token_number: u64| token_number > refused.token_number;
        let mut changed = self.token_numbers();
        if !is_next(*changed.borrow()) {
            let found = self.vault.lookup_self(&refused.token).await;
            if !found.is_err_and(|error| error.kind() == Kind::Denied) {
                return None;
            }
            self.report_refusal(refused.token_number);
        }
        timeout(MAX_SUCCESSOR_WAIT, changed.wait_for(|token_number| is_next(*token_number)))
            .await
            .ok()?
            .ok()?;
        self.shared.state.borrow().live_token()
    }

    /// Whether there is a valid token, as far as is known without a request.
    pub fn is_logged_in(&self) -> bool {
        self.shared.state.borrow().live_token().is_some()
    }

    /// Passes each new alert to `forward`, until the login ends.
    pub(crate) async fn forward_alerts(&self, forward: impl Fn(&str)) {
        let mut state = self.shared.state.subscribe();
        let mut last_alert = None;
        while let Some(Ok(())) = self.shared.stop.run_until_cancelled(state.changed()).await {
            let failure = state.borrow_and_update().failure.clone();
            let alert = failure.filter(|failure| failure.error.kind() == Kind::Alert);
            let alert = alert.map(|failure| failure.error.explained());
            if let Some(alert) = alert.as_deref().filter(|alert| last_alert.as_deref() != Some(*alert)) {
                forward(alert);
            }
            last_alert = alert;
        }
    }

    /// Ends the login: revokes all its tokens that may be valid, and so their children and leases. A user's own token
    /// is not revoked. A login that is under way is cancelled; if Vault completes it, that token expires.
    pub async fn end(&self) -> Result<(), VaultError> {
        self.shared.stop.cancel();
        if self.ownership == Ownership::User {
            return Ok(());
        }
        let tokens = self.shared.take_all();
        // All at once, because the caller has little time.
        let revoked = join_all(tokens.iter().map(|token| self.revoke(token))).await;
        if let Some(accessors) = &self.accessors {
            accessors.remove_expired();
        }
        revoked.into_iter().collect()
    }

    async fn revoke(&self, token: &LoginToken) -> Result<(), VaultError> {
        self.vault.revoke_self(&token.token).await?;
        if let (Some(accessors), Some(accessor)) = (&self.accessors, &token.accessor) {
            accessors.remove(accessor);
        }
        Ok(())
    }
}

impl Ownership {
    fn of(method: &Method) -> Self {
        match method {
            Method::TokenFile { .. } => Self::User,
            _ => Self::Sidecar,
        }
    }
}

impl LoginToken {
    pub fn is_live(&self) -> bool {
        self.expires.is_none_or(|end| end > Instant::now())
    }
}

impl SharedLogin {
    fn new(stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::default(),
            token_number: watch::Sender::default(),
            waiting: AtomicUsize::new(0),
            refused_token_number: AtomicU64::new(0),
            wake: Notify::new(),
            retired: Mutex::default(),
            stop,
        })
    }

    async fn current(&self) -> Result<Arc<LoginToken>, VaultError> {
        let mut state = self.state.subscribe();
        let finished = {
            let state = state.borrow_and_update();
            if let Some(token) = state.live_token() {
                return Ok(token);
            }
            state.finished
        };
        let _waiting = WaitingCaller::new(self);
        let outcome = async {
            loop {
                // The sender cannot be dropped: it is in `self`.
                let _ = state.changed().await;
                let state = state.borrow_and_update();
                match (state.live_token(), &state.failure) {
                    (Some(token), _) => return Ok(token),
                    (None, Some(failure)) if state.finished > finished => return Err(failure.error.clone()),
                    _ => {}
                }
            }
        };
        match timeout(MAX_WAIT, self.stop.run_until_cancelled(outcome)).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => Err(login_error(Problem::Stopped)),
            Err(_) => {
                let late = || login_error(Problem::Unreachable { why: "the login takes too long".into() });
                Err(self.state.borrow().failure.as_ref().map_or_else(late, |failure| failure.error.clone()))
            }
        }
    }

    /// Replaces the current token. The one before stays valid for its users.
    fn publish(&self, token: Arc<LoginToken>) {
        let token_number = token.token_number;
        let before = self.state.borrow().current.clone();
        if let Some(before) = before.filter(|before| before.token_number != token_number) {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            retired.retain(|token| token.is_live());
            if retired.len() < MAX_RETIRED {
                retired.push(before);
            }
        }
        self.state.send_modify(|state| {
            state.current = Some(token);
            state.failure = None;
            state.finished += 1;
        });
        self.token_number
            .send_if_modified(|published| std::mem::replace(published, token_number) != token_number);
    }

    fn publish_failure(&self, failure: RetryableFailure) {
        self.state.send_modify(|state| {
            state.failure = Some(failure);
            state.finished += 1;
        });
    }

    /// Removes the current token, which turned out to be revoked.
    fn discard_current(&self) {
        self.state.send_modify(|state| state.current = None);
    }

    fn take_all(&self) -> Vec<Arc<LoginToken>> {
        let mut tokens = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
        self.state.send_modify(|state| tokens.extend(state.current.take()));
        tokens.retain(|token| token.is_live());
        tokens
    }
}

impl LoginState {
    fn live_token(&self) -> Option<Arc<LoginToken>> {
        self.current.as_ref().filter(|token| token.is_live()).cloned()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.borrow();
        f.debug_struct("Login")
            .field("vault", &self.vault)
            .field("current", &state.current)
            .finish_non_exhaustive()
    }
}

/// Counts a caller that waits for a token, and wakes the task.
struct WaitingCaller<'a>(&'a SharedLogin);

impl<'a> WaitingCaller<'a> {
    fn new(shared: &'a SharedLogin) -> Self {
        shared.waiting.fetch_add(1, Ordering::AcqRel);
        shared.wake.notify_one();
        Self(shared)
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

fn login_error(problem: Problem) -> VaultError {
    let request = RequestLine { method: http::Method::POST, path: "auth".into() };
    VaultError { request, problem }
}
