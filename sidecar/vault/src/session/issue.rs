//! Creates a token for a session.
//!
//! What must stay true: the token has exactly the policies of the session's grant; it expires with the session at the
//! latest; it carries the session's metadata, which connects Vault's audit log to ours; its accessor is written to disk
//! before the token is used, or an error is logged.

use std::sync::Arc;

use tokio::time::Instant;

use super::{SessionInner, session_ended};
use crate::error::VaultError;
use crate::session_token::{IssuedToken, Parentage, TokenOwner};
use crate::token::Accessor;
use crate::token_calls::{ChildToken, Renewable};

impl SessionInner {
    pub(super) async fn issue(&self) -> Result<Arc<IssuedToken>, VaultError> {
        let TokenOwner { session, sandbox, grant, policies, until } = &self.owner;
        let issued_at = Instant::now();
        let left = until.saturating_duration_since(issued_at);
        if left.is_zero() {
            return Err(session_ended());
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
        let (auth, parent) = self.access.create_token(&child).await?;
        let number = self.next_number();
        let expires = auth.expires();
        let token = IssuedToken {
            parentage: if auth.orphan { Parentage::Orphan } else { Parentage::Child },
            token: auth.token,
            accessor: auth.accessor,
            number,
            issued_at,
            expires,
            parent,
            login: self.access.login.clone(),
        };
        if let Some(accessor) = token.accessor.clone() {
            self.write_accessor(accessor).await;
        }
        tracing::info!(session, number, lifetime = ?expires.map(|end| end - issued_at), "issued a Vault token for the session");
        Ok(Arc::new(token))
    }

    /// Failing to write is no reason to refuse the session: the token expires with it.
    async fn write_accessor(&self, accessor: Accessor) {
        let (access, session) = (Arc::clone(&self.access), self.owner.session.clone());
        let written = tokio::task::spawn_blocking(move || access.revoker.store_accessor(&accessor, &session));
        if let Err(error) = written.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
            let session = &self.owner.session;
            tracing::error!(%error, session, "cannot store the accessor of a Vault token: after a crash that token would not be revoked before it expires");
        }
    }
}
