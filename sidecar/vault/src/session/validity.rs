//! What hangs from a session's tokens, and whether it is still good.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{EXPIRY_TOLERANCE, RETRY_INTERVAL, ReadMark, SessionToken, SessionVault, session_ended};
use crate::envelope::Envelope;
use crate::error::{Kind, VaultError};
use crate::login::RetryableFailure;
use crate::session_token::SecretLease;
use crate::token::LeaseId;

impl SessionVault {
    /// Whether what hangs from this token is as good as what would be read now.
    pub(crate) fn is_current(&self, token: &SessionToken) -> bool {
        token.issued().number > self.0.presence().given_up
            && token.issued().is_of_this_login(self.0.access.generation())
            && token.issued().is_live()
    }

    /// Whether this token was of links that have all ended.
    pub(crate) fn is_given_up(&self, token: &SessionToken) -> bool {
        token.issued().number <= self.0.presence().given_up
    }

    /// Whether what was read, and hangs from nothing, was read for the links that there are.
    pub(crate) fn is_read_current(&self, with: ReadMark) -> bool {
        with.number > self.0.presence().given_up
    }

    /// Vault refused something with this token: if it is dead, the next one to ask gets a new one.
    pub(crate) async fn is_token_revoked(&self, token: &Arc<SessionToken>) -> bool {
        match self.0.access.vault.lookup_self(token.reveal()).await {
            Err(error) if error.kind() == Kind::Denied => {
                let mut state = self.0.state.lock().await;
                state.current.take_if(|current| current.issued().number == token.issued().number);
                true
            }
            _ => false,
        }
    }

    /// A lease that Vault gave for this token. An error if the token is given up meanwhile.
    pub(crate) fn record_lease(
        &self,
        secret: &str,
        id: Arc<LeaseId>,
        token: &SessionToken,
    ) -> Result<(), RetryableFailure> {
        let lease = SecretLease { secret: secret.into(), id };
        let recorded = self.0.outstanding.record_lease(token.issued().number, lease);
        recorded.ok_or_else(|| RetryableFailure {
            error: session_ended(),
            next_attempt: Instant::now() + RETRY_INTERVAL,
        })
    }

    /// When what hangs from this token ends with it, where one that is made now would live longer.
    pub(crate) fn bound(&self, token: &SessionToken) -> Option<Instant> {
        token.issued().expires.filter(|end| *end + EXPIRY_TOLERANCE < self.0.owner.until)
    }

    /// Whether this token ends with a login that is not the current one.
    pub(crate) fn is_of_former_login(&self, token: &SessionToken) -> bool {
        !token.issued().is_of_this_login(self.0.access.generation())
    }

    /// Asks for this much more for the lease that hangs from a token.
    pub(crate) async fn renew_lease(
        &self,
        token: &SessionToken,
        increment: Option<Duration>,
    ) -> Result<Envelope, VaultError> {
        let lease = self.lease_of(token).ok_or_else(session_ended)?;
        self.0.access.vault.renew_lease(token.reveal(), &lease.id, increment).await
    }

    /// Whether the lease is known to be gone that should hang from a token.
    pub(crate) async fn is_lease_gone(&self, token: &SessionToken) -> bool {
        match self.lease_of(token) {
            Some(lease) => self.0.access.revoker.confirm_gone(&lease).await.is_ok(),
            None => false,
        }
    }

    fn lease_of(&self, token: &SessionToken) -> Option<SecretLease> {
        self.0.outstanding.find(token.issued().number)?.lease
    }
}
