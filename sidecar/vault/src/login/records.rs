//! What the login leaves in the state directory for the next start of the sidecar: the accessors of its tokens, which
//! that start revokes after a crash, and which wrapped secret-ids were unwrapped.
//!
//! What must stay true: an accessor is on disk before its token is used, or an error is logged; it is removed when the
//! token is revoked or has expired; neither a token nor a secret-id is written.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::backend::GrantedToken;
use super::unwrap_records::UnwrapRecords;
use crate::accessor_files::{AccessorFiles, AccessorOwner};
use crate::token::Accessor;

/// The default stores nothing.
#[derive(Default)]
pub struct LoginRecords {
    pub(super) accessors: Option<Arc<AccessorFiles>>,
    pub(super) unwraps: Option<UnwrapRecords>,
}

/// The accessors of logins that are on disk, each with the expiry of its token.
pub(super) struct StoredAccessors {
    files: Arc<AccessorFiles>,
    stored: Mutex<Vec<(Accessor, Option<Instant>)>>,
}

impl LoginRecords {
    pub(crate) fn in_state(state: &Path, accessors: Arc<AccessorFiles>) -> Self {
        Self { accessors: Some(accessors), unwraps: Some(UnwrapRecords::in_state(state)) }
    }
}

impl StoredAccessors {
    pub(super) fn new(files: Arc<AccessorFiles>) -> Self {
        Self { files, stored: Mutex::default() }
    }

    /// Stores the accessor of a new token. Failing to write is no reason to give up the login: its token expires.
    pub(super) async fn store(&self, granted: &GrantedToken) {
        self.remove_expired();
        let Some(accessor) = granted.accessor.clone() else { return };
        self.stored().push((accessor.clone(), granted.expires));
        let files = Arc::clone(&self.files);
        let written = tokio::task::spawn_blocking(move || files.write(&accessor, AccessorOwner::Login));
        if let Err(error) = written.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
            tracing::error!(%error, "cannot store the accessor of the login's Vault token: after a crash that token would not be revoked before it expires");
        }
    }

    /// The token was renewed.
    pub(super) fn extend(&self, granted: &GrantedToken) {
        let Some(accessor) = &granted.accessor else { return };
        if let Some((_, expires)) = self.stored().iter_mut().find(|(stored, _)| stored == accessor) {
            *expires = granted.expires;
        }
    }

    /// The token was revoked.
    pub(super) fn remove(&self, accessor: &Accessor) {
        self.files.remove(accessor);
        self.stored().retain(|(stored, _)| stored != accessor);
    }

    pub(super) fn remove_expired(&self) {
        let now = Instant::now();
        self.stored().retain(|(accessor, expires)| {
            let is_live = expires.is_none_or(|end| end > now);
            if !is_live {
                self.files.remove(accessor);
            }
            is_live
        });
    }

    fn stored(&self) -> MutexGuard<'_, Vec<(Accessor, Option<Instant>)>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
