//! The tokens of one session: children of the login's token, with which every credential of the session is read.
//!
//! One of them is current: reads that create no lease use it. Each lease has a separate token, which is removed from
//! `current` before the lease is requested. So revoking that token revokes the lease, and no policy has to allow
//! revoking leases in general.
//!
//! What must stay true: a token has exactly the policies of the session's grant and does not outlive the session; it is
//! created when first needed, and again after a new login or shortly before it expires, but not before the pause after
//! a failure is over; from before its first use until it is known to be gone, a token is one of the outstanding tokens,
//! which have to be revoked, and its accessor is on disk. When the last link ends, all tokens are withdrawn: not used any
//! more, and revoked by [`SessionVault::end`]. A later link starts with new tokens.

mod issue;
mod validity;

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_secrets::Requester;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::api::Vault;
use crate::error::{Kind, Problem, RequestLine, VaultError};
use crate::login::RetryableFailure;
use crate::revoker::Revoked;
use crate::session_token::{IssuedToken, OutstandingToken, OutstandingTokens, Parentage, TokenOwner};

pub(crate) use crate::session_token::SessionToken;

/// The least time between two attempts while callers wait.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A longer `Retry-After` is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
/// If less than its lifetime divided by this is left, a token is replaced at its next use.
const MIN_REMAINING_DIVISOR: u32 = 6;

/// Access to Vault for one session. Cheap to clone.
#[derive(Clone)]
pub struct SessionVault(Arc<SessionInner>);

struct SessionInner {
    access: Arc<Access>,
    owner: TokenOwner,
    outstanding: Arc<OutstandingTokens>,
    state: Mutex<TokenState>,
    link_state: StdMutex<LinkState>,
}

#[derive(Default)]
struct TokenState {
    current: Option<Arc<SessionToken>>,
    /// Why the last attempt to create a token failed.
    failure: Option<RetryableFailure>,
}

/// The links of the session, and which of its tokens are withdrawn.
#[derive(Debug)]
struct LinkState {
    links: usize,
    /// The number of the newest token.
    issued: u64,
    /// Tokens up to this number are withdrawn.
    withdrawn: u64,
    /// Cancelled when the last link leaves.
    renewal_stop: CancellationToken,
}

/// Identifies the token with which values without a lease were read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReadMark {
    number: u64,
}

/// Whether the session has links after one has left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RemainingLinks {
    None,
    Some,
}

impl SessionVault {
    pub fn new(access: Arc<Access>, owner: TokenOwner) -> Self {
        let link_state =
            LinkState { links: 0, issued: 0, withdrawn: 0, renewal_stop: access.stop.child_token() };
        Self(Arc::new(SessionInner {
            access,
            owner,
            outstanding: Arc::default(),
            state: Mutex::default(),
            link_state: link_state.into(),
        }))
    }

    /// A link was opened.
    pub fn enter(&self) {
        let mut link_state = self.0.link_state();
        link_state.links += 1;
        if link_state.renewal_stop.is_cancelled() {
            link_state.renewal_stop = self.0.access.stop.child_token();
        }
    }

    /// A link has ended, and the processes of its server too. After the last link, all tokens are withdrawn.
    pub fn leave(&self) -> RemainingLinks {
        let mut link_state = self.0.link_state();
        link_state.links = link_state.links.saturating_sub(1);
        match link_state.links {
            0 => {
                link_state.withdrawn = link_state.issued;
                link_state.renewal_stop.cancel();
                RemainingLinks::None
            }
            _ => RemainingLinks::Some,
        }
    }

    /// Cancelled when the last of the present links has left.
    pub(crate) fn renewal_stop(&self) -> CancellationToken {
        self.0.link_state().renewal_stop.clone()
    }

    /// The current token, for reads that create no lease. A token that is being created is finished even if its caller
    /// no longer waits.
    pub(crate) async fn token(&self, requester: Requester) -> Result<Arc<SessionToken>, RetryableFailure> {
        self.in_separate_task(|inner| inner.current_or_new(requester)).await
    }

    /// A token for one lease alone: revoking the token revokes the lease.
    pub(crate) async fn token_for_a_lease(
        &self,
        requester: Requester,
    ) -> Result<Arc<SessionToken>, RetryableFailure> {
        self.in_separate_task(|inner| inner.take_current_or_new(requester)).await
    }

    /// Makes a token with which no lease was created current again, for other reads.
    pub(crate) async fn put_back(&self, token: Arc<SessionToken>) {
        let mut state = self.0.state.lock().await;
        let withdrawn = self.0.link_state().withdrawn;
        if state.current.is_none()
            && token.issued().number > withdrawn
            && token.issued().is_fresh(self.0.access.login_token_number())
        {
            state.current = Some(token);
        }
    }

    /// The number of the login's current token, and of every later one.
    pub(crate) fn login_token_numbers(&self) -> watch::Receiver<u64> {
        self.0.access.login.token_numbers()
    }

    pub(crate) fn client(&self) -> &Vault {
        &self.0.access.vault
    }

    /// Revokes the withdrawn tokens, and reports at `deadline` at the latest. `None` if there are none.
    pub async fn end(&self, deadline: Instant) -> Option<Revoked> {
        let (report, mut seen) = watch::channel(None);
        let inner = Arc::clone(&self.0);
        self.0.access.tasks.spawn(async move { inner.revoke(&report).await });
        // The sender is dropped when everything is revoked, or retries have ended.
        let all = async { while seen.changed().await.is_ok() {} };
        let _ = timeout_at(deadline, all).await;
        seen.borrow_and_update().clone()
    }

    /// A link has failed: like `leave`, then `end`, without waiting for the report.
    pub fn abandon(&self) -> RemainingLinks {
        let remaining = self.leave();
        if remaining == RemainingLinks::None {
            let inner = Arc::clone(&self.0);
            self.0.access.tasks.spawn(async move { inner.revoke(&watch::Sender::default()).await });
        }
        remaining
    }

    /// Runs `make` in a task, so that it finishes even if the caller is cancelled.
    async fn in_separate_task<F>(
        &self,
        make: impl FnOnce(Arc<SessionInner>) -> F,
    ) -> Result<Arc<SessionToken>, RetryableFailure>
    where
        F: Future<Output = Result<Arc<SessionToken>, RetryableFailure>> + Send + 'static,
    {
        let made = self.0.access.tasks.spawn(make(Arc::clone(&self.0)));
        made.await.unwrap_or_else(|_| {
            Err(RetryableFailure { error: session_ended(), next_attempt: Instant::now() + RETRY_INTERVAL })
        })
    }
}

impl SessionInner {
    async fn current_or_new(
        self: Arc<Self>,
        requester: Requester,
    ) -> Result<Arc<SessionToken>, RetryableFailure> {
        let mut state = self.state.lock().await;
        self.valid_current(&mut state, requester).await
    }

    async fn take_current_or_new(
        self: Arc<Self>,
        requester: Requester,
    ) -> Result<Arc<SessionToken>, RetryableFailure> {
        let mut state = self.state.lock().await;
        let token = self.valid_current(&mut state, requester).await?;
        state.current = None;
        // A read that still uses this token ends soon and creates no lease.
        Ok(token)
    }

    /// The current token, or a new one if it is missing or about to end. If no new one can be created, the current one
    /// as long as it is valid.
    async fn valid_current(
        self: &Arc<Self>,
        state: &mut TokenState,
        requester: Requester,
    ) -> Result<Arc<SessionToken>, RetryableFailure> {
        let withdrawn = {
            let link_state = self.link_state();
            if link_state.links == 0 {
                return Err(RetryableFailure {
                    error: session_ended(),
                    next_attempt: Instant::now() + RETRY_INTERVAL,
                });
            }
            link_state.withdrawn
        };
        state.current.take_if(|current| current.issued().number <= withdrawn);
        let login_token_number = self.access.login_token_number();
        let live = state.current.clone().filter(|token| token.issued().is_live());
        if let Some(token) = live.clone().filter(|token| token.issued().is_fresh(login_token_number)) {
            return Ok(token);
        }
        let now = Instant::now();
        if let Some(failure) = state
            .failure
            .clone()
            .filter(|failure| failure.next_attempt > now && must_wait(requester, failure))
        {
            return live.ok_or(failure);
        }
        match self.issue().await {
            Ok(issued) => {
                state.failure = None;
                self.outstanding.insert(Arc::clone(&issued));
                let released = self.access.revoker.released();
                let token = Arc::new(SessionToken::new(issued, &self.outstanding, released));
                state.current = Some(Arc::clone(&token));
                Ok(token)
            }
            Err(error) => {
                let failure = RetryableFailure { next_attempt: next_attempt(&error), error };
                state.failure = Some(failure.clone());
                live.ok_or(failure)
            }
        }
    }

    async fn revoke(&self, report: &watch::Sender<Option<Revoked>>) {
        let began = Instant::now();
        let tokens = self.take_withdrawn().await;
        if !tokens.is_empty() {
            self.access.revoker.revoke_session(tokens, began, report).await;
        }
    }

    /// Removes the withdrawn tokens from the outstanding ones and returns them.
    async fn take_withdrawn(&self) -> Vec<OutstandingToken> {
        let mut state = self.state.lock().await;
        let withdrawn = {
            let mut link_state = self.link_state();
            if link_state.links == 0 {
                // A token may have been issued after the last link ended.
                link_state.withdrawn = link_state.issued;
            }
            link_state.withdrawn
        };
        let tokens = self.outstanding.take_up_to(withdrawn);
        // Dropped only now: a token that is dropped while it is outstanding is passed to the revoker, and would be revoked a
        // second time.
        state.current.take_if(|token| token.issued().number <= withdrawn);
        tokens
    }

    /// The number for a new token.
    fn next_number(&self) -> u64 {
        let mut link_state = self.link_state();
        link_state.issued += 1;
        link_state.issued
    }

    fn link_state(&self) -> MutexGuard<'_, LinkState> {
        self.link_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this requester has to wait for the next attempt. A renewal task has a backoff of its own and waits only
/// where Vault is busy.
fn must_wait(requester: Requester, failure: &RetryableFailure) -> bool {
    requester == Requester::Caller || matches!(failure.error.kind(), Kind::Busy { .. })
}

impl SessionToken {
    /// Identifies this token in values that are read with it and outlive it.
    pub(crate) fn mark(&self) -> ReadMark {
        ReadMark { number: self.issued().number }
    }
}

impl IssuedToken {
    /// Whether this token may serve another caller, while the login has the token with this number.
    fn is_fresh(&self, login_token_number: u64) -> bool {
        let has_time = self.expires.is_none_or(|end| {
            end.saturating_duration_since(Instant::now()) > (end - self.issued_at) / MIN_REMAINING_DIVISOR
        });
        has_time && self.is_of_this_login(login_token_number)
    }

    /// An orphan does not end with its login, so it counts as one of every login.
    fn is_of_this_login(&self, login_token_number: u64) -> bool {
        self.parentage == Parentage::Orphan || self.parent.token_number == login_token_number
    }
}

/// When a failed request may be repeated.
pub(crate) fn next_attempt(error: &VaultError) -> Instant {
    let wait = match error.kind() {
        Kind::Busy { retry_after: Some(pause) } => pause.clamp(RETRY_INTERVAL, MAX_RETRY_AFTER),
        _ => RETRY_INTERVAL,
    };
    Instant::now() + wait
}

fn session_ended() -> VaultError {
    let request = RequestLine { method: http::Method::POST, path: "auth/token/create".into() };
    VaultError { request, problem: Problem::Stopped }
}
