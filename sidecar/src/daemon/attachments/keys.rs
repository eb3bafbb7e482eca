//! Reads the API keys of the platforms from their sources.
//!
//! What must stay true: a key is read from the source that the configuration names, and is added to the log's scrubber
//! before it is used; a key that the platform refused is read again before the next request; a key in Vault is read with
//! a token that has only the policies of its platform, and that token is revoked when the configuration is reloaded and
//! when the sidecar stops.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::reread::Reread;
use cofferdam_secrets::{Material, SecretError, SecretSpec, Source, SourceLimits};
use cofferdam_vault::{SessionVault, TokenOwner};
use futures_util::future::join_all;
use relay_proto::name::Name;
use tokio::time::Instant;

use crate::config::Platform;
use crate::session::Context;

/// The API keys of all platforms. Cleared at a reload, because a secret of the same name may have another source then.
#[derive(Default)]
pub(super) struct PlatformKeys(Mutex<BTreeMap<Name, Arc<PlatformKey>>>);

/// The API key of one platform.
pub(super) struct PlatformKey {
    credentials: Credentials,
    vault: Option<SessionVault>,
    /// When the key has to be read with a new Vault token.
    replace_at: Instant,
}

/// Whether the key that was read before may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeyUse {
    Held,
    /// The platform refused it: it may have been replaced at its source.
    ReadAgain,
}

/// The longest lifetime of a Vault token that reads a key. Vault may give it a shorter lifetime; then the token is replaced in time.
const TOKEN_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long revoking the tokens may take when the sidecar stops.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(2);

impl PlatformKeys {
    pub(super) fn of(&self, context: &Context, platform: &Platform) -> Arc<PlatformKey> {
        let mut keys = self.lock();
        let now = Instant::now();
        if let Some(key) = keys.get(&platform.name).filter(|key| key.replace_at > now) {
            return Arc::clone(key);
        }
        let key = Arc::new(PlatformKey::new(context, platform));
        if let Some(replaced) = keys.insert(platform.name.clone(), Arc::clone(&key)) {
            replaced.abandon();
        }
        key
    }

    /// Drops all keys after a reload: each is read again when it is needed next.
    pub(super) fn clear(&self) {
        let keys = std::mem::take(&mut *self.lock());
        keys.values().for_each(|key| key.abandon());
    }

    /// Revokes the tokens that read keys in Vault.
    pub(super) async fn end(&self) {
        let keys = std::mem::take(&mut *self.lock());
        let deadline = Instant::now() + REVOKE_TIMEOUT;
        join_all(keys.values().filter_map(|key| key.vault.as_ref()).map(|vault| {
            vault.leave();
            vault.end(deadline)
        }))
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<PlatformKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlatformKey {
    fn new(context: &Context, platform: &Platform) -> Self {
        let now = Instant::now();
        // A key in Vault has policies (`vault-policies`).
        let access = context.vault.as_ref().filter(|_| !platform.vault_policies.is_empty());
        let vault = access.map(|access| {
            let owner = TokenOwner {
                session: format!("platform-{}", platform.name),
                sandbox: "none".into(),
                grant: "none".into(),
                policies: platform.vault_policies.clone(),
                until: now + TOKEN_LIFETIME,
            };
            let vault = SessionVault::new(Arc::clone(access), owner);
            // Matched by `leave` in `PlatformKeys::end`, or ended by `abandon`.
            vault.enter();
            vault
        });
        let source = vault.clone().map(|vault| Arc::new(vault) as Arc<dyn Source>);
        Self {
            credentials: Credentials::new(Arc::clone(context.values()), source, context.tasks.clone()),
            vault,
            replace_at: now + TOKEN_LIFETIME / 2,
        }
    }

    pub(super) async fn read(
        &self,
        spec: &SecretSpec,
        limits: SourceLimits,
        key: KeyUse,
    ) -> Result<Arc<Material>, SecretError> {
        let held = self.credentials.obtain(spec, limits).await?;
        match key {
            KeyUse::Held => Ok(held),
            KeyUse::ReadAgain => match self.credentials.reread(spec, limits, held.version).await? {
                Reread::Read(material) => Ok(material),
                Reread::TooSoon { .. } => Ok(held),
            },
        }
    }

    /// Revokes the key's Vault token without waiting, even if a client that is being created still uses the key.
    fn abandon(&self) {
        if let Some(vault) = &self.vault {
            vault.abandon();
        }
    }
}
