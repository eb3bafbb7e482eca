//! Tokens of sessions: what Vault issued, and the handle that keeps a token in use.
//!
//! What must stay true: dropping the last handle of a token releases it, which waits for nothing and cannot fail; an
//! issued token is outstanding, together with the lease that was made with it, until it is known to be gone or its
//! session ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cofferdam_scrub::Needle;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::login::{Login, LoginToken};
use crate::token::{Accessor, LeaseId, Token};

/// The session that tokens are issued for, and their latest expiry.
pub struct TokenOwner {
    pub session: String,
    pub sandbox: String,
    pub grant: String,
    pub policies: Vec<String>,
    pub until: Instant,
}

/// A handle: the token is in use as long as this value lives. Has no `Debug`.
pub(crate) struct SessionToken {
    issued: Arc<IssuedToken>,
    outstanding: Arc<OutstandingTokens>,
    released: mpsc::UnboundedSender<ReleasedToken>,
}

/// A token as Vault issued it.
pub(crate) struct IssuedToken {
    pub(crate) token: Token,
    pub(crate) accessor: Option<Accessor>,
    /// Counts the tokens of a session from 1.
    pub(crate) number: u64,
    pub(crate) issued_at: Instant,
    /// `None`: the token itself does not expire.
    pub(crate) expires: Option<Instant>,
    pub(crate) parentage: Parentage,
    pub(crate) parent: Arc<LoginToken>,
    pub(crate) login: Login,
}

/// Whether a token ends with the login that made it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Parentage {
    Child,
    Orphan,
}

/// A token whose last handle was dropped.
pub(crate) struct ReleasedToken {
    pub(crate) token: Arc<IssuedToken>,
    pub(crate) outstanding: Arc<OutstandingTokens>,
}

/// The tokens of one session that are not known to be gone, by number.
#[derive(Default)]
pub(crate) struct OutstandingTokens(Mutex<BTreeMap<u64, OutstandingToken>>);

/// A token and the lease that ends with it.
#[derive(Clone)]
pub(crate) struct OutstandingToken {
    pub(crate) token: Arc<IssuedToken>,
    pub(crate) lease: Option<SecretLease>,
}

/// The lease of a secret.
#[derive(Clone)]
pub(crate) struct SecretLease {
    pub(crate) secret: String,
    pub(crate) id: Arc<LeaseId>,
}

impl SessionToken {
    pub(crate) fn new(
        issued: Arc<IssuedToken>,
        outstanding: &Arc<OutstandingTokens>,
        released: &mpsc::UnboundedSender<ReleasedToken>,
    ) -> Self {
        Self { issued, outstanding: Arc::clone(outstanding), released: released.clone() }
    }

    pub(crate) fn reveal(&self) -> &Token {
        &self.issued.token
    }

    /// When the token ends, by itself or with its login. `None`: never.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.issued.ends()
    }

    /// What scrubbers look for: this token, and the login's.
    pub(crate) fn needles(&self) -> [Needle; 2] {
        let IssuedToken { token, parent, .. } = &*self.issued;
        [token.needle("vault.session-token"), parent.token.needle("vault.login-token")]
    }

    /// The token of the login that made this one.
    pub(crate) fn parent(&self) -> Weak<Token> {
        Arc::downgrade(&self.issued.parent.token)
    }

    pub(crate) fn issued(&self) -> &Arc<IssuedToken> {
        &self.issued
    }
}

/// A handle may be dropped on any thread, so the drop only sends a message to the revoker.
impl Drop for SessionToken {
    fn drop(&mut self) {
        let (token, outstanding) = (Arc::clone(&self.issued), Arc::clone(&self.outstanding));
        // After the orderly stop there is no receiver; the end of the login revokes the token.
        let _ = self.released.send(ReleasedToken { token, outstanding });
    }
}

impl IssuedToken {
    pub(crate) fn ends(&self) -> Option<Instant> {
        let with_login = match self.parentage {
            Parentage::Child => self.login.end_of(self.parent.token_number),
            Parentage::Orphan => None,
        };
        [self.expires, with_login].into_iter().flatten().min()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.ends().is_none_or(|end| end > Instant::now())
    }
}

impl OutstandingTokens {
    pub(crate) fn insert(&self, token: Arc<IssuedToken>) {
        self.lock().insert(token.number, OutstandingToken { token, lease: None });
    }

    /// Adds the lease that was made with a token. `None` if the token is not listed any more, because its session
    /// ended.
    pub(crate) fn record_lease(&self, number: u64, lease: SecretLease) -> Option<()> {
        self.lock().get_mut(&number).map(|token| token.lease = Some(lease))
    }

    pub(crate) fn find(&self, number: u64) -> Option<OutstandingToken> {
        self.lock().get(&number).cloned()
    }

    /// Removes a token that is known to be gone.
    pub(crate) fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// Removes and returns every token up to this number.
    pub(crate) fn take_up_to(&self, number: u64) -> Vec<OutstandingToken> {
        let mut tokens = self.lock();
        let later = tokens.split_off(&(number + 1));
        std::mem::replace(&mut *tokens, later).into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, OutstandingToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
