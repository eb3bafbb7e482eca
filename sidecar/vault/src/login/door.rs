//! The seam between the keeper, which knows about time, and Vault, which knows about tokens.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::LoginToken;
use super::method::{Method, Visitor};
use crate::api::Vault;
use crate::envelope::Auth;
use crate::error::VaultError;
use crate::token::{Accessor, Token};
use crate::token_calls::TokenFacts;

/// What a login or a renewal gave.
pub(super) struct Granted {
    pub(super) token: Arc<Token>,
    pub(super) accessor: Option<Accessor>,
    /// Zero means for ever.
    pub(super) life: Duration,
    pub(super) expires: Option<Instant>,
    pub(super) renewable: bool,
    pub(super) policies: Vec<String>,
}

pub(super) trait Door: Send {
    fn log_in(&mut self) -> impl Future<Output = Result<Granted, VaultError>> + Send;
    fn renew(
        &mut self,
        held: &LoginToken,
        increment: Duration,
    ) -> impl Future<Output = Result<Granted, VaultError>> + Send;
    /// Whether Vault still knows the token.
    fn look(&mut self, held: &LoginToken) -> impl Future<Output = Result<(), VaultError>> + Send;
}

pub(super) struct VaultDoor {
    vault: Vault,
    visitor: Visitor,
}

impl VaultDoor {
    pub(super) fn new(vault: Vault, method: Method) -> Self {
        Self { vault, visitor: Visitor::new(method) }
    }
}

impl Door for VaultDoor {
    async fn log_in(&mut self) -> Result<Granted, VaultError> {
        self.visitor.log_in(&self.vault).await
    }

    async fn renew(&mut self, held: &LoginToken, increment: Duration) -> Result<Granted, VaultError> {
        let auth = self.vault.renew_self(&held.token, Some(increment)).await?;
        Ok(Granted { token: held.token.clone(), ..Granted::from(auth) })
    }

    async fn look(&mut self, held: &LoginToken) -> Result<(), VaultError> {
        self.vault.lookup_self(&held.token).await.map(drop)
    }
}

impl From<Auth> for Granted {
    fn from(auth: Auth) -> Self {
        Self {
            expires: auth.expires(),
            life: auth.lease_duration,
            accessor: auth.accessor,
            renewable: auth.renewable,
            policies: auth.policies,
            token: Arc::new(auth.token),
        }
    }
}

impl Granted {
    /// A token that was there before, and what Vault knows of it.
    pub(super) fn found(token: Token, facts: TokenFacts) -> Self {
        Self {
            expires: facts.expires(),
            token: Arc::new(token),
            accessor: facts.accessor,
            life: facts.ttl,
            renewable: facts.renewable,
            policies: facts.policies,
        }
    }
}
