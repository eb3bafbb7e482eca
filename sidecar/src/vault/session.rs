//! What one session has in Vault: one current token, a child of the login's, from which every credential of the session
//! hangs.
//!
//! What must stay true: a token has the policies of the session's grant, named one by one, and does not outlive it; it is
//! made when it is first needed, again when the login turned or its end is near, and not before a failure was waited out;
//! one that was made is known here and on disk before anybody uses it, so that its end can be seen to. A session whose
//! last link ended gives everything up; one that has a link again begins anew.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::access::Access;
use super::api::Vault;
use super::error::{Asked, Kind, Problem, VaultError};
use super::login::{LoginToken, Trouble};
use super::token::{Accessor, LeaseId, Token};
use super::token_calls::{ChildToken, Renewable};
use crate::scrub::Needle;

/// While somebody waits, Vault is tried at most this often.
pub(crate) const BETWEEN_TRIES: Duration = Duration::from_secs(5);
/// What a busy Vault asks for is honoured up to this.
const LONGEST_ASKED: Duration = Duration::from_secs(30);
/// A token with less of its life left than this part is replaced when it is next needed.
const LAST_PART: u32 = 6;
/// Leases that a session is reported to have had; more are revoked with their token all the same.
const MAX_LEASES: usize = 1024;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct SessionVault(Arc<Inner>);

pub(super) struct Inner {
    pub(super) access: Arc<Access>,
    whose: Whose,
    pub(super) state: Mutex<State>,
    presence: StdMutex<Presence>,
}

/// Whose tokens they are, and until when.
pub(crate) struct Whose {
    pub(crate) session: String,
    pub(crate) sandbox: String,
    pub(crate) grant: String,
    pub(crate) policies: Vec<String>,
    pub(crate) until: Instant,
}

#[derive(Default)]
pub(super) struct State {
    current: Option<Arc<SessionToken>>,
    /// Those before it, which running servers may hang from.
    retired: Vec<Arc<SessionToken>>,
    leases: Vec<HeldLease>,
    trouble: Option<Trouble>,
}

/// Links that are there, and the tokens that are not to be used any more.
#[derive(Debug, Default)]
struct Presence {
    links: usize,
    made: u64,
    /// Tokens up to this number are given up.
    given_up: u64,
}

/// A token of a session. Not printed.
pub struct SessionToken {
    pub(super) token: Token,
    pub(super) accessor: Option<Accessor>,
    made: Instant,
    /// None means never, as far as the token alone decides.
    pub(crate) expires: Option<Instant>,
    login: Arc<LoginToken>,
    number: u64,
}

/// A lease that somebody of the session has.
pub(super) struct HeldLease {
    pub(super) secret: String,
    pub(super) id: Arc<LeaseId>,
    expires: Option<Instant>,
    token: u64,
}

/// Everything that a session gives up.
pub(super) struct GivenUp {
    pub(super) tokens: Vec<Arc<SessionToken>>,
    pub(super) leases: Vec<HeldLease>,
}

/// Whether a session has a link still.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Left {
    Last,
    Others,
}

impl SessionVault {
    pub(crate) fn new(access: Arc<Access>, whose: Whose) -> Self {
        Self(Arc::new(Inner { access, whose, state: Mutex::default(), presence: StdMutex::default() }))
    }

    /// One more link.
    pub(crate) fn enter(&self) {
        self.0.presence().links += 1;
    }

    /// One link less, its server's processes dead. The last one gives up all tokens there are.
    pub(crate) fn leave(&self) -> Left {
        let mut presence = self.0.presence();
        presence.links = presence.links.saturating_sub(1);
        match presence.links {
            0 => {
                presence.given_up = presence.made;
                Left::Last
            }
            _ => Left::Others,
        }
    }

    /// The token to use now. A token that is being made is finished also if nobody waits for it any more.
    pub(crate) async fn token(&self) -> Result<Arc<SessionToken>, Trouble> {
        let this = self.clone();
        let made = self.0.access.tasks.spawn(async move { this.0.current_or_new().await });
        made.await.unwrap_or_else(|_| Err(Trouble { error: over(), next: Instant::now() + BETWEEN_TRIES }))
    }

    /// Whether what was read with this token is as good as what would be read now.
    pub(crate) fn vouches_for(&self, token: &SessionToken) -> bool {
        token.number > self.0.presence().given_up
            && token.login.generation == self.0.access.generation()
            && token.is_live()
    }

    /// Vault refused something with this token: if it is dead, the next one to ask gets a new one.
    pub(crate) async fn is_dead(&self, token: &Arc<SessionToken>) -> bool {
        match self.0.access.vault.lookup_self(&token.token).await {
            Err(error) if error.kind() == Kind::Denied => {
                let mut state = self.0.state.lock().await;
                if state.current.as_ref().is_some_and(|current| current.number == token.number) {
                    let dead = state.current.take();
                    state.retired.extend(dead);
                }
                true
            }
            _ => false,
        }
    }

    /// A lease that Vault gave for this token.
    pub(crate) async fn hold(
        &self,
        secret: &str,
        id: Arc<LeaseId>,
        expires: Option<Instant>,
        token: &SessionToken,
    ) {
        let mut state = self.0.state.lock().await;
        let now = Instant::now();
        state.leases.retain(|lease| lease.expires.is_none_or(|end| end > now));
        if state.leases.len() < MAX_LEASES {
            state.leases.push(HeldLease { secret: secret.into(), id, expires, token: token.number });
        }
    }

    pub(crate) fn client(&self) -> &Vault {
        &self.0.access.vault
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    async fn current_or_new(&self) -> Result<Arc<SessionToken>, Trouble> {
        let mut state = self.state.lock().await;
        let given_up = {
            let presence = self.presence();
            if presence.links == 0 {
                return Err(Trouble { error: over(), next: Instant::now() + BETWEEN_TRIES });
            }
            presence.given_up
        };
        if state.current.as_ref().is_some_and(|current| current.number <= given_up) {
            // Its revocation is on its way, and finds it here.
            let current = state.current.take();
            state.retired.extend(current);
        }
        let generation = self.access.generation();
        let live = state.current.clone().filter(|token| token.is_live());
        if let Some(token) = live.clone().filter(|token| token.is_fresh(generation)) {
            return Ok(token);
        }
        let now = Instant::now();
        if let Some(trouble) = state.trouble.clone().filter(|trouble| trouble.next > now) {
            return live.ok_or(trouble);
        }
        match self.mint().await {
            Ok(token) => {
                state.trouble = None;
                let before = state.current.replace(Arc::clone(&token));
                state.retired.extend(before);
                self.drop_unused(&mut state);
                Ok(token)
            }
            Err(error) => {
                let trouble = Trouble { next: next_try(&error), error };
                state.trouble = Some(trouble.clone());
                live.ok_or(trouble)
            }
        }
    }

    async fn mint(&self) -> Result<Arc<SessionToken>, VaultError> {
        let Whose { session, sandbox, grant, policies, until } = &self.whose;
        let made = Instant::now();
        let left = until.saturating_duration_since(made);
        if left.is_zero() {
            return Err(over());
        }
        let metadata = [("session", session), ("sandbox", sandbox), ("grant", grant)];
        let child = ChildToken {
            policies: policies.clone(),
            metadata: metadata.map(|(name, value)| (name.to_owned(), value.clone())).into(),
            display_name: format!("cofferdam-{session}"),
            ttl: left,
            explicit_max_ttl: left,
            renewable: Renewable::No,
        };
        let (auth, login) = self.access.mint(&child).await?;
        let number = {
            let mut presence = self.presence();
            presence.made += 1;
            presence.made
        };
        let expires = auth.expires();
        let token = SessionToken { token: auth.token, accessor: auth.accessor, made, expires, login, number };
        if let Some(accessor) = token.accessor.clone() {
            self.write_down(accessor).await;
        }
        tracing::info!(session, number, life = ?expires.map(|end| end - made), "the session has a Vault token");
        Ok(Arc::new(token))
    }

    /// A token that is not written down is no reason to stop: it expires, as all do.
    async fn write_down(&self, accessor: Accessor) {
        let (access, session) = (Arc::clone(&self.access), self.whose.session.clone());
        let kept = tokio::task::spawn_blocking(move || access.accessors.keep(&accessor, &session));
        if let Err(error) = kept.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
            let session = &self.whose.session;
            tracing::error!(%error, session, "after a crash this session's Vault token would live until it expires");
        }
    }

    /// Everything up to the last time that all links had left.
    pub(super) async fn give_up(&self) -> GivenUp {
        let mut state = self.state.lock().await;
        let given_up = self.presence().given_up;
        let current = state.current.take_if(|token| token.number <= given_up);
        let mut tokens: Vec<_> = state.retired.extract_if(.., |token| token.number <= given_up).collect();
        tokens.extend(current);
        let leases = state.leases.extract_if(.., |lease| lease.token <= given_up).collect();
        GivenUp { tokens, leases }
    }

    /// Tokens before the current one that no credential in use hangs from.
    fn drop_unused(&self, state: &mut State) {
        let unused: Vec<_> = state.retired.extract_if(.., |token| Arc::strong_count(token) == 1).collect();
        for token in unused {
            state.leases.retain(|lease| lease.token != token.number);
            let access = Arc::clone(&self.access);
            self.access.tasks.spawn(async move {
                if let Err(why) = access.revoke(&token).await {
                    tracing::warn!(why, "a former Vault token of a session was not revoked; it expires");
                }
            });
        }
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionToken {
    pub(crate) fn reveal(&self) -> &Token {
        &self.token
    }

    /// What scrubbers must know of it: itself, and the login's token.
    pub(crate) fn needles(&self) -> [Needle; 2] {
        [self.token.needle("vault.session-token"), self.login.token.needle("vault.login-token")]
    }

    fn is_live(&self) -> bool {
        self.expires.is_none_or(|end| end > Instant::now())
    }

    fn is_fresh(&self, generation: u64) -> bool {
        let has_time = self
            .expires
            .is_none_or(|end| end.saturating_duration_since(Instant::now()) > (end - self.made) / LAST_PART);
        has_time && self.login.generation == generation
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

fn over() -> VaultError {
    let asked = Asked { method: http::Method::POST, path: "auth/token/create".into() };
    VaultError { asked, problem: Problem::Stopped }
}
