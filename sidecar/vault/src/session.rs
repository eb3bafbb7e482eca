//! What one session has in Vault: tokens that are children of the login's, from which every credential of the session
//! hangs.
//!
//! One of them is current: what lends nothing is read with it. A lease hangs from a token of its own, taken out of
//! `current` before it is asked for, so that it can be ended by ending that token, with no policy that may revoke
//! anybody's leases.
//!
//! What must stay true: a token has the policies of the session's grant, named one by one, and does not outlive it; it is
//! made when it is first needed, again when the login turned or its end is near, and not before a failure was waited out;
//! one that was made is known here and on disk before anybody uses it, and until it is known to be gone. A session whose
//! last link ended gives everything up; one that has a link again begins anew.

mod issue;
mod validity;

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_secrets::Asker;
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

/// While a caller waits, Vault is tried at most this often.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// What a busy Vault asks for is honoured up to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
/// A token with less of its life left than this part is replaced when it is next needed.
const LAST_SHARE: u32 = 6;
/// A token that ends no earlier than this before its session is as good as one can be had.
const EXPIRY_TOLERANCE: Duration = Duration::from_secs(2);

/// Cheap to clone.
#[derive(Clone)]
pub struct SessionVault(Arc<SessionInner>);

struct SessionInner {
    access: Arc<Access>,
    owner: TokenOwner,
    outstanding: Arc<OutstandingTokens>,
    state: Mutex<TokenState>,
    presence: StdMutex<Presence>,
}

#[derive(Default)]
struct TokenState {
    current: Option<Arc<SessionToken>>,
    failure: Option<RetryableFailure>,
}

/// Links that are there, and the tokens that are not to be used any more.
#[derive(Debug)]
struct Presence {
    links: usize,
    made: u64,
    /// Tokens up to this number are given up.
    given_up: u64,
    /// Ends when the last link leaves.
    period: CancellationToken,
}

/// With which token something was read that hangs from none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReadMark {
    number: u64,
}

/// Whether a session has a link still.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Left {
    Last,
    Others,
}

impl SessionVault {
    pub fn new(access: Arc<Access>, owner: TokenOwner) -> Self {
        let presence = Presence { links: 0, made: 0, given_up: 0, period: access.stop.child_token() };
        Self(Arc::new(SessionInner {
            access,
            owner,
            outstanding: Arc::default(),
            state: Mutex::default(),
            presence: presence.into(),
        }))
    }

    /// One more link.
    pub fn enter(&self) {
        let mut presence = self.0.presence();
        presence.links += 1;
        if presence.period.is_cancelled() {
            presence.period = self.0.access.stop.child_token();
        }
    }

    /// One link less, its server's processes dead. The last one gives up all tokens there are.
    pub fn leave(&self) -> Left {
        let mut presence = self.0.presence();
        presence.links = presence.links.saturating_sub(1);
        match presence.links {
            0 => {
                presence.given_up = presence.made;
                presence.period.cancel();
                Left::Last
            }
            _ => Left::Others,
        }
    }

    /// Cancelled when the last of the links that there are now has left.
    pub(crate) fn period(&self) -> CancellationToken {
        self.0.presence().period.clone()
    }

    /// The token to use now, for what lends nothing. A token that is being made is finished even if no caller waits for it
    /// any more.
    pub(crate) async fn token(&self, asker: Asker) -> Result<Arc<SessionToken>, RetryableFailure> {
        self.in_own_task(|inner| inner.current_or_new(asker)).await
    }

    /// A token with a single user: the leases made with it end with it.
    pub(crate) async fn token_for_a_lease(
        &self,
        asker: Asker,
    ) -> Result<Arc<SessionToken>, RetryableFailure> {
        self.in_own_task(|inner| inner.take_or_new(asker)).await
    }

    /// Nothing was lent for this token: others may use it.
    pub(crate) async fn give_back(&self, token: Arc<SessionToken>) {
        let mut state = self.0.state.lock().await;
        let given_up = self.0.presence().given_up;
        if state.current.is_none()
            && token.issued().number > given_up
            && token.issued().is_fresh(self.0.access.generation())
        {
            state.current = Some(token);
        }
    }

    /// The login's generation, and each one after it.
    pub(crate) fn logins(&self) -> watch::Receiver<u64> {
        self.0.access.login.generations()
    }

    pub(crate) fn client(&self) -> &Vault {
        &self.0.access.vault
    }

    /// Revokes what the session has given up, and reports at `deadline` at the latest. `None` where there was nothing.
    pub async fn end(&self, deadline: Instant) -> Option<Revoked> {
        let (report, mut seen) = watch::channel(None);
        let inner = Arc::clone(&self.0);
        self.0.access.tasks.spawn(async move { inner.revoke(&report).await });
        // The sender is dropped when everything is revoked.
        let all = async { while seen.changed().await.is_ok() {} };
        let _ = timeout_at(deadline, all).await;
        seen.borrow_and_update().clone()
    }

    /// A link that failed has left, and no caller waits for the report.
    pub fn abandon(&self) {
        if self.leave() == Left::Last {
            let inner = Arc::clone(&self.0);
            self.0.access.tasks.spawn(async move { inner.revoke(&watch::Sender::default()).await });
        }
    }

    async fn in_own_task<F>(
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
    async fn current_or_new(self: Arc<Self>, asker: Asker) -> Result<Arc<SessionToken>, RetryableFailure> {
        let mut state = self.state.lock().await;
        self.valid_current(&mut state, asker).await
    }

    async fn take_or_new(self: Arc<Self>, asker: Asker) -> Result<Arc<SessionToken>, RetryableFailure> {
        let mut state = self.state.lock().await;
        let token = self.valid_current(&mut state, asker).await?;
        state.current = None;
        // A reader who has it still lets it go soon; it lends nothing.
        Ok(token)
    }

    /// Sees to it that there is a current token.
    async fn valid_current(
        self: &Arc<Self>,
        state: &mut TokenState,
        asker: Asker,
    ) -> Result<Arc<SessionToken>, RetryableFailure> {
        let given_up = {
            let presence = self.presence();
            if presence.links == 0 {
                return Err(RetryableFailure {
                    error: session_ended(),
                    next_attempt: Instant::now() + RETRY_INTERVAL,
                });
            }
            presence.given_up
        };
        state.current.take_if(|current| current.issued().number <= given_up);
        let generation = self.access.generation();
        let live = state.current.clone().filter(|token| token.issued().is_live());
        if let Some(token) = live.clone().filter(|token| token.issued().is_fresh(generation)) {
            return Ok(token);
        }
        let now = Instant::now();
        if let Some(failure) =
            state.failure.clone().filter(|failure| failure.next_attempt > now && must_wait(asker, failure))
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
        let tokens = self.give_up().await;
        if !tokens.is_empty() {
            self.access.revoker.revoke_session(tokens, began, report).await;
        }
    }

    /// Everything up to the last time that all links had left.
    async fn give_up(&self) -> Vec<OutstandingToken> {
        let mut state = self.state.lock().await;
        let given_up = {
            let mut presence = self.presence();
            if presence.links == 0 {
                // One was being made when they left.
                presence.given_up = presence.made;
            }
            presence.given_up
        };
        let tokens = self.outstanding.take_up_to(given_up);
        // Released only now: a released token that is still outstanding would be revoked a second time.
        state.current.take_if(|token| token.issued().number <= given_up);
        tokens
    }

    /// The number of one more token.
    fn next_number(&self) -> u64 {
        let mut presence = self.presence();
        presence.made += 1;
        presence.made
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the time until the next attempt is waited out. The upkeep of a secret has a backoff of its own, and waits only
/// where Vault asked for it.
fn must_wait(asker: Asker, failure: &RetryableFailure) -> bool {
    asker == Asker::Caller || matches!(failure.error.kind(), Kind::Busy { .. })
}

impl SessionToken {
    /// What is read with it, and does not hang from it, says this.
    pub(crate) fn mark(&self) -> ReadMark {
        ReadMark { number: self.issued().number }
    }
}

impl IssuedToken {
    /// Whether the next caller that needs a token gets it.
    fn is_fresh(&self, generation: u64) -> bool {
        let has_time = self.expires.is_none_or(|end| {
            end.saturating_duration_since(Instant::now()) > (end - self.issued_at) / LAST_SHARE
        });
        has_time && self.is_of_this_login(generation)
    }

    /// An orphan outlives its login, and is as good under the next.
    fn is_of_this_login(&self, generation: u64) -> bool {
        self.parentage == Parentage::Orphan || self.parent.generation == generation
    }
}

/// When something that failed is tried again.
pub(crate) fn next_attempt(error: &VaultError) -> Instant {
    let wait = match error.kind() {
        Kind::Busy { retry_after: Some(asked) } => asked.clamp(RETRY_INTERVAL, MAX_RETRY_AFTER),
        _ => RETRY_INTERVAL,
    };
    Instant::now() + wait
}

fn session_ended() -> VaultError {
    let asked = RequestLine { method: http::Method::POST, path: "auth/token/create".into() };
    VaultError { asked, problem: Problem::Stopped }
}
