//! Where secrets are stored already, and the writing of those that go to Vault.
//!
//! What must stay true: a secret is written to Vault only where there is none; its values are in memory that is wiped, and
//! travel in requests of the sidecar's own client.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;

use cofferdam_import::{Fields, Held, Store, Stored, StoredAt, WriteSecret};
use cofferdam_vault::{Kind, Settings, Token, Vault, VaultError};
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use crate::check::online::vault_failure;
use crate::cli::vault_setup::operator_token::{self, OperatorToken};
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::print_line;

pub(super) struct Secrets {
    store: Store,
    vault: VaultAccess,
}

enum VaultAccess {
    /// The import is one to files.
    None,
    Open(OpenVault),
    /// A dry run without a token, which shows what it would store in an empty engine.
    WithoutToken,
}

/// What an import does if it finds no token of the operator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WithoutToken {
    Ask,
    /// The import goes on without Vault, and says so: it changes nothing.
    GoOn,
    Refuse,
}

struct OpenVault {
    runtime: Runtime,
    vault: Vault,
    token: Token,
    /// Whether Vault was asked for a secret, so that the engine is known to exist.
    has_answered: Cell<bool>,
}

impl Secrets {
    pub(super) fn in_files(store: &Store) -> Self {
        Self { store: store.clone(), vault: VaultAccess::None }
    }

    /// Connects with the operator's own token.
    pub(super) fn in_vault(
        store: &Store,
        settings: &Settings,
        without_token: WithoutToken,
    ) -> Result<Self, Failure> {
        let found = match without_token {
            WithoutToken::Ask => Some(operator_token::read(settings)?),
            WithoutToken::GoOn | WithoutToken::Refuse => operator_token::find(settings)?,
        };
        let Some(OperatorToken { token, source }) = found else {
            if without_token == WithoutToken::Refuse {
                return Err(operator_token::missing(
                    "nothing was changed: there is no Vault token of an operator, and --yes asks for none",
                ));
            }
            print_line("not compared with Vault: there is no Vault token of an operator");
            return Ok(Self { store: store.clone(), vault: VaultAccess::WithoutToken });
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
        let vault =
            cofferdam_vault::client(settings).map_err(|error| Failure::new(Sysexit::Configuration, error))?;
        runtime.block_on(vault.lookup_self(&token)).map_err(vault_failure)?;
        print_line(&format!("your Vault token: from {source}"));
        let vault = OpenVault { runtime, vault, token, has_answered: Cell::new(false) };
        Ok(Self { store: store.clone(), vault: VaultAccess::Open(vault) })
    }
}

impl Stored for Secrets {
    fn held(&self, place: &StoredAt, fields: &Fields) -> Result<Held, Box<dyn Error + Send + Sync>> {
        match (place, &self.vault) {
            (StoredAt::File(path), _) => Ok(self.store.held(path, fields)?),
            (StoredAt::Kv(path), VaultAccess::Open(vault)) => Ok(vault.held(path, fields)?),
            // A secret in Vault that the configuration names, in an import to files.
            (StoredAt::Kv(_), VaultAccess::None) => Ok(Held::Other),
            (StoredAt::Kv(_), VaultAccess::WithoutToken) => Ok(Held::Nothing),
        }
    }
}

impl WriteSecret for Secrets {
    fn write(&mut self, path: &str, fields: &Fields) -> Result<(), Box<dyn Error + Send + Sync>> {
        let VaultAccess::Open(vault) = &self.vault else {
            return Err("this import has no connection to Vault".into());
        };
        let write = async {
            let version = vault.vault.kv_version(&vault.token, path).await?;
            vault.vault.kv_create(&vault.token, path, &version, fields).await
        };
        match vault.runtime.block_on(write) {
            Ok(()) => Ok(()),
            // It may have been written although the response was lost.
            Err(error) => match vault.held(path, fields) {
                Ok(Held::Same) => Ok(()),
                _ => Err(error.into()),
            },
        }
    }
}

impl OpenVault {
    fn held(&self, path: &str, fields: &Fields) -> Result<Held, VaultError> {
        let read = async {
            if !self.has_answered.get() {
                // Fails if no engine is mounted there, which would otherwise look like a missing secret.
                self.vault.mount(&self.token, path).await?;
                self.has_answered.set(true);
            }
            self.vault.kv_read(&self.token, path).await
        };
        match self.runtime.block_on(read) {
            Ok(secret) => {
                // A field that is not a text makes it another secret.
                let held: BTreeMap<String, String> = secret.data.read().unwrap_or_default();
                let held: Fields =
                    held.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect();
                Ok(if held == *fields { Held::Same } else { Held::Other })
            }
            Err(error) if error.kind() == Kind::Missing => Ok(Held::Nothing),
            Err(error) => Err(error),
        }
    }
}
