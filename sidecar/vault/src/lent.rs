//! Tokens that sessions have, and what becomes of one that is no longer in use.
//!
//! What must stay true: a token is revoked soon after the last who held it let go, and with it the lease that hangs from
//! it; letting go waits for nothing and fails never; what Vault does not revoke at once is tried again until it is gone,
//! expired by itself, taken over by the session's end, or the sidecar stops. So many are revoked at once, and no more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cofferdam_base::Backoff;
use cofferdam_base::metrics::{self, Revocation};
use cofferdam_scrub::Needle;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use crate::access::Access;
use crate::login::{Login, LoginToken};
use crate::session::Inner;
use crate::token::{Accessor, LeaseId, Token};

/// Revocations under way at once, of all sessions.
const AT_ONCE: usize = 8;
/// Between two tries: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A token of a session, for as long as this value lives. Not printed.
pub(crate) struct SessionToken {
    issued: Arc<Issued>,
    session: Weak<Inner>,
    released: mpsc::UnboundedSender<Released>,
}

/// What was made, and is not known to be gone.
pub(crate) struct Issued {
    pub(crate) token: Token,
    pub(crate) accessor: Option<Accessor>,
    pub(crate) number: u64,
    pub(crate) made: Instant,
    /// None means never, as far as the token alone decides.
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

/// It is no longer in use.
pub(crate) struct Released {
    issued: Arc<Issued>,
    session: Weak<Inner>,
}

/// A lease that the session uses.
#[derive(Clone)]
pub(crate) struct HeldLease {
    pub(crate) secret: String,
    pub(crate) id: Arc<LeaseId>,
}

impl SessionToken {
    pub(crate) fn new(issued: Arc<Issued>, session: Weak<Inner>, access: &Access) -> Self {
        Self { issued, session, released: access.released.clone() }
    }

    pub(crate) fn reveal(&self) -> &Token {
        &self.issued.token
    }

    /// When it ends, by itself or with its login. None means never.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.issued.ends()
    }

    /// What scrubbers must know of it: itself, and the login's token.
    pub(crate) fn needles(&self) -> [Needle; 2] {
        let Issued { token, parent, .. } = &*self.issued;
        [token.needle("vault.session-token"), parent.token.needle("vault.login-token")]
    }

    /// The token of the login that made it.
    pub(crate) fn parent(&self) -> Weak<Token> {
        Arc::downgrade(&self.issued.parent.token)
    }

    pub(crate) fn issued(&self) -> &Arc<Issued> {
        &self.issued
    }
}

/// The last one may be dropped anywhere, so the drop only reports it; the revoking task does the rest.
impl Drop for SessionToken {
    fn drop(&mut self) {
        let released = Released { issued: Arc::clone(&self.issued), session: Weak::clone(&self.session) };
        // After the end nothing receives it: then the end of the login revokes it.
        let _ = self.released.send(released);
    }
}

impl Issued {
    pub(crate) fn ends(&self) -> Option<Instant> {
        let with_login = match self.parentage {
            Parentage::Child => self.login.end_of(self.parent.generation),
            Parentage::Orphan => None,
        };
        [self.expires, with_login].into_iter().flatten().min()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.ends().is_none_or(|end| end > Instant::now())
    }
}

impl Access {
    /// Sees to every token that is let go, until the sidecar stops.
    pub(crate) async fn revoke_released(self: Arc<Self>, mut released: mpsc::UnboundedReceiver<Released>) {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        while let Some(Some(token)) = self.stop.run_until_cancelled(released.recv()).await {
            let (access, turns) = (Arc::clone(&self), Arc::clone(&turns));
            self.tasks.spawn(async move {
                let stop = access.stop.clone();
                stop.run_until_cancelled(access.follow_up(&token, &turns)).await;
            });
        }
    }

    async fn follow_up(&self, Released { issued, session }: &Released, turns: &Semaphore) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut is_revoked = false;
        loop {
            let session = session.upgrade();
            let lease = match &session {
                Some(session) => match session.still_has(issued.number).await {
                    Some(lease) => lease,
                    // Its session has ended, and says itself what became of it.
                    None => return,
                },
                None => None,
            };
            let done = {
                let _turn = turns.acquire().await;
                self.end_one(issued, lease.as_ref(), &mut is_revoked).await
            };
            match done {
                Ok(()) => {
                    if let Some(session) = session {
                        session.forget(issued.number).await;
                    }
                    tracing::debug!(number = issued.number, "a token that is no longer in use was revoked");
                    return;
                }
                Err(why) if issued.expires.is_some_and(|end| end < Instant::now()) => {
                    metrics::vault().revocation(Revocation::Expired);
                    tracing::warn!(
                        why,
                        "a former Vault token of a session was not revoked and has expired by itself"
                    );
                    if let Some(session) = session {
                        session.forget(issued.number).await;
                    }
                    return;
                }
                Err(why) => tracing::info!(why, "a former Vault token of a session is not revoked yet"),
            }
            sleep(backoff.next_delay()).await;
        }
    }

    /// The token, then its lease: gone only when a lookup finds nothing.
    async fn end_one(
        &self,
        issued: &Issued,
        lease: Option<&HeldLease>,
        is_revoked: &mut bool,
    ) -> Result<(), String> {
        if !*is_revoked {
            self.revoke(issued).await?;
            *is_revoked = true;
        }
        match lease {
            Some(lease) => self.is_gone(lease).await,
            None => Ok(()),
        }
    }
}
