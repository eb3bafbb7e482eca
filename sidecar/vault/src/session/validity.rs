//! Whether values that were read with a session's tokens are still valid; renewal and look-up of the tokens' leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{RETRY_INTERVAL, ReadMark, SessionToken, SessionVault, session_ended};
use crate::envelope::Envelope;
use crate::error::{Kind, VaultError};
use crate::login::RetryableFailure;
use crate::session_token::SecretLease;
use crate::token::LeaseId;

/// If a token expires less than this before its session ends, its lease is not replaced before the token expires: a new
/// token would hardly last longer.
const EXPIRY_TOLERANCE: Duration = Duration::from_secs(2);

impl SessionVault {
    /// Whether a lease of this token is as good as one that would be created now.
    pub(crate) fn is_current(&self, token: &SessionToken) -> bool {
        token.issued().number > self.0.link_state().withdrawn
            && token.issued().is_of_this_login(self.0.access.login_token_number())
            && token.issued().is_live()
    }

    /// Whether all links that this token was issued for have ended.
    pub(crate) fn is_withdrawn(&self, token: &SessionToken) -> bool {
        token.issued().number <= self.0.link_state().withdrawn
    }

    /// Whether values without a lease were read for the present links.
    pub(crate) fn is_read_current(&self, mark: ReadMark) -> bool {
        mark.number > self.0.link_state().withdrawn
    }

    /// For use after Vault refused a request with this token. If the token is revoked, it is no longer the current one.
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

    /// Records the lease that was created with this token. Fails if the session has ended meanwhile.
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

    /// When a lease of this token ends with the token. `None` if a new token would not live longer.
    pub(crate) fn relevant_token_expiry(&self, token: &SessionToken) -> Option<Instant> {
        token.issued().expires.filter(|end| *end + EXPIRY_TOLERANCE < self.0.owner.until)
    }

    /// Whether this token ends with an earlier login.
    pub(crate) fn is_of_former_login(&self, token: &SessionToken) -> bool {
        !token.issued().is_of_this_login(self.0.access.login_token_number())
    }

    /// Renews the lease of this token; `None` leaves the increment to Vault.
    pub(crate) async fn renew_lease(
        &self,
        token: &SessionToken,
        increment: Option<Duration>,
    ) -> Result<Envelope, VaultError> {
        let lease = self.lease_of(token).ok_or_else(session_ended)?;
        self.0.access.vault.renew_lease(token.reveal(), &lease.id, increment).await
    }

    /// Whether a look-up has shown that the lease of this token does not exist any more.
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
