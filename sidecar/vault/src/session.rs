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

mod hanging;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_secrets::Asker;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::api::Vault;
use crate::error::{Asked, Kind, Problem, VaultError};
use crate::lent::{HeldLease, Issued, Parentage};
use crate::login::Trouble;
use crate::mint::Whose;

pub(crate) use crate::lent::SessionToken;

/// While a caller waits, Vault is tried at most this often.
pub(crate) const BETWEEN_TRIES: Duration = Duration::from_secs(5);
/// What a busy Vault asks for is honoured up to this.
const LONGEST_ASKED: Duration = Duration::from_secs(30);
/// A token with less of its life left than this part is replaced when it is next needed.
const LAST_PART: u32 = 6;
/// A token that ends no earlier than this before its session is as good as one can be had.
const NO_EARLIER: Duration = Duration::from_secs(2);

/// Cheap to clone.
#[derive(Clone)]
pub struct SessionVault(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) access: Arc<Access>,
    pub(crate) whose: Whose,
    state: Mutex<State>,
    presence: StdMutex<Presence>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<SessionToken>>,
    /// Everything that was made and is not known to be gone, the current one too, by number.
    issued: BTreeMap<u64, GivenUp>,
    trouble: Option<Trouble>,
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

/// A token, and what hangs from it.
#[derive(Clone)]
pub(crate) struct GivenUp {
    pub(crate) token: Arc<Issued>,
    pub(crate) lease: Option<HeldLease>,
}

/// With which token something was read that hangs from none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReadWith {
    number: u64,
}

/// Whether a session has a link still.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Left {
    Last,
    Others,
}

impl SessionVault {
    pub fn new(access: Arc<Access>, whose: Whose) -> Self {
        let presence = Presence { links: 0, made: 0, given_up: 0, period: access.stop.child_token() };
        Self(Arc::new(Inner { access, whose, state: Mutex::default(), presence: presence.into() }))
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
    pub(crate) async fn token(&self, asker: Asker) -> Result<Arc<SessionToken>, Trouble> {
        self.spawned(|inner| inner.current_or_new(asker)).await
    }

    /// A token with a single user: the leases made with it end with it.
    pub(crate) async fn token_for_a_lease(&self, asker: Asker) -> Result<Arc<SessionToken>, Trouble> {
        self.spawned(|inner| inner.take_or_new(asker)).await
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
        self.0.access.login.changed()
    }

    pub(crate) fn client(&self) -> &Vault {
        &self.0.access.vault
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    async fn spawned<F>(&self, make: impl FnOnce(Arc<Inner>) -> F) -> Result<Arc<SessionToken>, Trouble>
    where
        F: Future<Output = Result<Arc<SessionToken>, Trouble>> + Send + 'static,
    {
        let made = self.0.access.tasks.spawn(make(Arc::clone(&self.0)));
        made.await.unwrap_or_else(|_| Err(Trouble { error: over(), next: Instant::now() + BETWEEN_TRIES }))
    }
}

impl Inner {
    async fn current_or_new(self: Arc<Self>, asker: Asker) -> Result<Arc<SessionToken>, Trouble> {
        let mut state = self.state.lock().await;
        self.renew_current(&mut state, asker).await
    }

    async fn take_or_new(self: Arc<Self>, asker: Asker) -> Result<Arc<SessionToken>, Trouble> {
        let mut state = self.state.lock().await;
        let token = self.renew_current(&mut state, asker).await?;
        state.current = None;
        // A reader who has it still lets it go soon; it lends nothing.
        Ok(token)
    }

    /// Sees to it that there is a current token.
    async fn renew_current(
        self: &Arc<Self>,
        state: &mut State,
        asker: Asker,
    ) -> Result<Arc<SessionToken>, Trouble> {
        let given_up = {
            let presence = self.presence();
            if presence.links == 0 {
                return Err(Trouble { error: over(), next: Instant::now() + BETWEEN_TRIES });
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
        if let Some(trouble) =
            state.trouble.clone().filter(|trouble| trouble.next > now && waits(asker, trouble))
        {
            return live.ok_or(trouble);
        }
        match self.mint().await {
            Ok(issued) => {
                state.trouble = None;
                state.issued.insert(issued.number, GivenUp { token: Arc::clone(&issued), lease: None });
                let token = Arc::new(SessionToken::new(issued, Arc::downgrade(self), &self.access));
                state.current = Some(Arc::clone(&token));
                Ok(token)
            }
            Err(error) => {
                let trouble = Trouble { next: next_try(&error), error };
                state.trouble = Some(trouble.clone());
                live.ok_or(trouble)
            }
        }
    }

    /// Everything up to the last time that all links had left.
    pub(crate) async fn give_up(&self) -> Vec<GivenUp> {
        let mut state = self.state.lock().await;
        let given_up = {
            let mut presence = self.presence();
            if presence.links == 0 {
                // One was being made when they left.
                presence.given_up = presence.made;
            }
            presence.given_up
        };
        state.current.take_if(|token| token.issued().number <= given_up);
        let later = state.issued.split_off(&(given_up + 1));
        std::mem::replace(&mut state.issued, later).into_values().collect()
    }

    /// The lease of a token that is neither gone nor given up; none if there is no such token.
    pub(crate) async fn still_has(&self, number: u64) -> Option<Option<HeldLease>> {
        self.state.lock().await.issued.get(&number).map(|issued| issued.lease.clone())
    }

    /// It is gone.
    pub(crate) async fn forget(&self, number: u64) {
        self.state.lock().await.issued.remove(&number);
    }

    /// The number of one more token.
    pub(crate) fn next_number(&self) -> u64 {
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
fn waits(asker: Asker, trouble: &Trouble) -> bool {
    asker == Asker::Caller || matches!(trouble.error.kind(), Kind::Busy { .. })
}

impl SessionToken {
    /// What is read with it, and does not hang from it, says this.
    pub(crate) fn mark(&self) -> ReadWith {
        ReadWith { number: self.issued().number }
    }
}

impl Issued {
    /// Whether the next caller that needs a token gets it.
    fn is_fresh(&self, generation: u64) -> bool {
        let has_time = self
            .expires
            .is_none_or(|end| end.saturating_duration_since(Instant::now()) > (end - self.made) / LAST_PART);
        has_time && self.is_of_this_login(generation)
    }

    /// An orphan outlives its login, and is as good under the next.
    fn is_of_this_login(&self, generation: u64) -> bool {
        self.parentage == Parentage::Orphan || self.parent.generation == generation
    }
}

/// When something that failed is tried again.
pub(crate) fn next_try(error: &VaultError) -> Instant {
    let wait = match error.kind() {
        Kind::Busy { retry_after: Some(asked) } => asked.clamp(BETWEEN_TRIES, LONGEST_ASKED),
        _ => BETWEEN_TRIES,
    };
    Instant::now() + wait
}

pub(crate) fn over() -> VaultError {
    let asked = Asked { method: http::Method::POST, path: "auth/token/create".into() };
    VaultError { asked, problem: Problem::Stopped }
}
