//! The login of a check, and the tokens that are created with it.
//!
//! What must stay true: a token is registered here as soon as it is created, and revoked at the end; no token is being
//! created when the revocation begins; a token that cannot be revoked is reported, and expires by itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use cofferdam_vault::login::LoginToken;
use cofferdam_vault::{Auth, ChildToken, Kind, Mint, Renewable, Token, Vault, VaultError};
use futures_util::future::join_all;
use tokio::sync::{Mutex, MutexGuard};

use super::report::Report;
use crate::check::vault_needs::TokenUser;

/// The lifetime of the tokens that a check creates.
pub(super) const TOKEN_LIFETIME: Duration = Duration::from_secs(60);

pub(super) struct CheckLogin {
    pub(super) vault: Vault,
    pub(super) login: LoginToken,
    pub(super) owner: Owner,
    created: RefCell<Vec<Rc<Auth>>>,
    /// Locked while a token is being created.
    creating: Mutex<()>,
}

/// Whether the login was made by this check, which then revokes its token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Owner {
    Check,
    User,
}

impl CheckLogin {
    pub(super) fn new(vault: Vault, login: LoginToken, owner: Owner) -> Self {
        Self { vault, login, owner, created: RefCell::default(), creating: Mutex::default() }
    }

    pub(super) fn token(&self) -> &Token {
        &self.login.token
    }

    /// Creates a token like the one of a grant's sessions, or like the one that reads a platform's API key.
    pub(super) async fn mint(&self, user: &TokenUser<'_>, mint: Mint<'_>) -> Result<Rc<Auth>, VaultError> {
        let metadata = [user.label(), ("purpose", "cofferdam check")];
        let child = ChildToken {
            policies: user.policies.to_vec(),
            metadata: BTreeMap::from(metadata.map(|(name, value)| (name.to_owned(), value.to_owned()))),
            display_name: "cofferdam-check".into(),
            ttl: TOKEN_LIFETIME,
            explicit_max_ttl: TOKEN_LIFETIME,
            renewable: Renewable::No,
        };
        let _creating = self.creating.lock().await;
        let created = Rc::new(self.vault.create_child(self.token(), &child, mint).await?);
        self.created.borrow_mut().push(Rc::clone(&created));
        Ok(created)
    }

    /// Waits for the token that is being created, if any. While the guard is held, no further token is created.
    pub(super) async fn stop_creating(&self) -> MutexGuard<'_, ()> {
        self.creating.lock().await
    }

    /// Revokes the created tokens, then the login if the check made it.
    pub(super) async fn end(self, report: &mut Report) {
        let created = self.created.take();
        let ends = join_all(created.iter().map(|child| self.revoke(child))).await;
        for error in ends.into_iter().filter_map(Result::err) {
            let time = TOKEN_LIFETIME.as_secs();
            report.remark(&format!(
                "a token of this check was not revoked and expires within {time} s: {}",
                describe_error(&error)
            ));
        }
        if self.owner == Owner::Check
            && let Err(error) = self.vault.revoke_self(self.token()).await
        {
            report.remark(&format!(
                "the login of this check was not revoked and expires by itself: {}",
                describe_error(&error)
            ));
        }
    }

    async fn revoke(&self, child: &Auth) -> Result<(), VaultError> {
        match (self.vault.revoke_self(&child.token).await, &child.accessor) {
            // The token's policies may not allow it to revoke itself.
            (Err(error), Some(accessor)) if error.kind() == Kind::Denied => {
                self.vault.revoke_accessor(self.token(), accessor).await
            }
            (ended, _) => ended,
        }
    }
}

/// Describes the failed request and its error on one line.
pub(super) fn describe_error(error: &VaultError) -> String {
    format!("{error}: {}", error.problem)
}
