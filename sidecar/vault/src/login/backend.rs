//! The requests of the login task, behind a trait so that tests can replace Vault.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::LoginToken;
use super::method::Authenticator;
use super::records::StoredAccessors;
use crate::api::Vault;
use crate::envelope::Auth;
use crate::error::VaultError;
use crate::token::{Accessor, Token};
use crate::token_calls::TokenInfo;

/// The token from a login or a renewal.
pub(super) struct GrantedToken {
    pub(super) token: Arc<Token>,
    pub(super) accessor: Option<Accessor>,
    /// Zero: the token does not expire.
    pub(super) lifetime: Duration,
    pub(super) expires: Option<Instant>,
    pub(super) renewable: bool,
    pub(super) policies: Vec<String>,
}

pub(super) trait LoginBackend: Send {
    fn log_in(&mut self) -> impl Future<Output = Result<GrantedToken, VaultError>> + Send;
    fn renew(
        &mut self,
        held: &LoginToken,
        increment: Duration,
    ) -> impl Future<Output = Result<GrantedToken, VaultError>> + Send;
    /// Fails with `Kind::Denied` if the token is not valid any more.
    fn verify(&mut self, held: &LoginToken) -> impl Future<Output = Result<(), VaultError>> + Send;
}

pub(super) struct VaultBackend {
    vault: Vault,
    authenticator: Authenticator,
    /// `None` where nothing is stored: a user's own token, or a test.
    accessors: Option<Arc<StoredAccessors>>,
}

impl VaultBackend {
    pub(super) fn new(
        vault: Vault,
        authenticator: Authenticator,
        accessors: Option<Arc<StoredAccessors>>,
    ) -> Self {
        Self { vault, authenticator, accessors }
    }
}

impl LoginBackend for VaultBackend {
    async fn log_in(&mut self) -> Result<GrantedToken, VaultError> {
        let granted = self.authenticator.log_in(&self.vault).await?;
        if let Some(accessors) = &self.accessors {
            accessors.store(&granted).await;
        }
        Ok(granted)
    }

    async fn renew(&mut self, held: &LoginToken, increment: Duration) -> Result<GrantedToken, VaultError> {
        let auth = self.vault.renew_self(&held.token, Some(increment)).await?;
        let granted = GrantedToken { token: held.token.clone(), ..GrantedToken::from(auth) };
        if let Some(accessors) = &self.accessors {
            accessors.extend(&granted);
        }
        Ok(granted)
    }

    async fn verify(&mut self, held: &LoginToken) -> Result<(), VaultError> {
        self.vault.lookup_self(&held.token).await.map(drop)
    }
}

impl From<Auth> for GrantedToken {
    fn from(auth: Auth) -> Self {
        Self {
            expires: auth.expires(),
            lifetime: auth.lease_duration,
            accessor: auth.accessor,
            renewable: auth.renewable,
            policies: auth.policies,
            token: Arc::new(auth.token),
        }
    }
}

impl GrantedToken {
    /// A token that existed before, with its properties in Vault.
    pub(super) fn from_lookup(token: Token, info: TokenInfo) -> Self {
        Self {
            expires: info.expires(),
            token: Arc::new(token),
            accessor: info.accessor,
            lifetime: info.ttl,
            renewable: info.renewable,
            policies: info.policies,
        }
    }
}
