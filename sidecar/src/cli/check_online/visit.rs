//! One login for the time of a check, and the tokens that are made with it.
//!
//! What must stay true: a token is known here from the moment that it is made, and revoked at the end; none is being made
//! when that begins; what cannot be revoked is said, and expires.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use cofferdam_vault::login::LoginToken;
use cofferdam_vault::{Auth, ChildToken, Kind, Mint, Renewable, Token, Vault, VaultError};
use futures_util::future::join_all;
use tokio::sync::{Mutex, MutexGuard};

use super::report::Report;
use crate::config::Grant;

/// Nothing that is made here lives longer.
pub(super) const LIFE: Duration = Duration::from_secs(60);

pub(super) struct Visit {
    pub(super) vault: Vault,
    pub(super) login: LoginToken,
    pub(super) owner: Owner,
    made: RefCell<Vec<Rc<Auth>>>,
    /// Held while a token is being made.
    making: Mutex<()>,
}

/// Whose token the login's is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Owner {
    Us,
    User,
}

impl Visit {
    pub(super) fn new(vault: Vault, login: LoginToken, owner: Owner) -> Self {
        Self { vault, login, owner, made: RefCell::default(), making: Mutex::default() }
    }

    pub(super) fn token(&self) -> &Token {
        &self.login.token
    }

    /// A token as a session of this grant would have it.
    pub(super) async fn mint(&self, grant: &Grant, mint: Mint<'_>) -> Result<Rc<Auth>, VaultError> {
        let metadata = [("grant", grant.name.as_str()), ("purpose", "cofferdam check")];
        let child = ChildToken {
            policies: grant.vault_policies.clone(),
            metadata: BTreeMap::from(metadata.map(|(name, value)| (name.to_owned(), value.to_owned()))),
            display_name: "cofferdam-check".into(),
            ttl: LIFE,
            explicit_max_ttl: LIFE,
            renewable: Renewable::No,
        };
        let _making = self.making.lock().await;
        let made = Rc::new(self.vault.create_child(self.token(), &child, mint).await?);
        self.made.borrow_mut().push(Rc::clone(&made));
        Ok(made)
    }

    /// Waits for the token that is being made, if one is. As long as this is held, no other is.
    pub(super) async fn no_more(&self) -> MutexGuard<'_, ()> {
        self.making.lock().await
    }

    /// Revokes what was made, then the login if it is ours.
    pub(super) async fn end(self, report: &mut Report) {
        let made = self.made.take();
        let ends = join_all(made.iter().map(|child| self.revoke(child))).await;
        for error in ends.into_iter().filter_map(Result::err) {
            let time = LIFE.as_secs();
            report.remark(&format!(
                "a token of this check was not revoked and expires within {time} s: {}",
                told(&error)
            ));
        }
        if self.owner == Owner::Us
            && let Err(error) = self.vault.revoke_self(self.token()).await
        {
            report.remark(&format!(
                "the login of this check was not revoked and expires by itself: {}",
                told(&error)
            ));
        }
    }

    async fn revoke(&self, child: &Auth) -> Result<(), VaultError> {
        match (self.vault.revoke_self(&child.token).await, &child.accessor) {
            // Its policies may not let it end itself.
            (Err(error), Some(accessor)) if error.kind() == Kind::Denied => {
                self.vault.revoke_accessor(self.token(), accessor).await
            }
            (ended, _) => ended,
        }
    }
}

/// What was asked and what came of it, on one line.
pub(super) fn told(error: &VaultError) -> String {
    format!("{error}: {}", error.problem)
}
