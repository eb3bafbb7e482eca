//! One more token for a session.
//!
//! What must stay true: its policies are those of the session's grant, named one by one; it lives no longer than the
//! session; it carries the session's metadata, by which Vault's audit and ours are joined; its accessor is on disk before
//! anybody has it.

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
        let (auth, parent) = self.access.mint(&child).await?;
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
        tracing::info!(session, number, life = ?expires.map(|end| end - issued_at), "the session has a Vault token");
        Ok(Arc::new(token))
    }

    /// A token that is not written down is no reason to stop: it expires, as all do.
    async fn write_accessor(&self, accessor: Accessor) {
        let (access, session) = (Arc::clone(&self.access), self.owner.session.clone());
        let kept = tokio::task::spawn_blocking(move || access.revoker.remember(&accessor, &session));
        if let Err(error) = kept.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
            let session = &self.owner.session;
            tracing::error!(%error, session, "after a crash this session's Vault token would live until it expires");
        }
    }
}
