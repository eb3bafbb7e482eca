//! Response wrapping: looking at a wrap without opening it, and opening it once.

use std::time::Duration;

use serde::Deserialize;

use crate::api::{Vault, malformed, post};
use crate::body::Body;
use crate::envelope::Envelope;
use crate::error::VaultError;
use crate::token::Token;

/// What Vault says of a wrap that was not opened yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WrapFacts {
    /// The path whose answer was wrapped. Of what was wrapped a second time this stays as it was.
    pub creation_path: String,
    pub creation_ttl: Duration,
}

impl Vault {
    /// Looks at a wrap; it stays good.
    pub async fn wrapping_lookup(&self, wrap: &Token) -> Result<WrapFacts, VaultError> {
        #[derive(Deserialize)]
        struct Raw {
            creation_path: String,
            creation_ttl: u64,
        }
        // In the body and with no token of its own: as a client token, any call but one would spend it.
        let request = post(None, "sys/wrapping/lookup", Body::new().token("token", wrap));
        let (data, _) = self.data(&request).await?;
        let Raw { creation_path, creation_ttl } = data.read().map_err(|why| malformed(&request, why))?;
        Ok(WrapFacts { creation_path, creation_ttl: Duration::from_secs(creation_ttl) })
    }

    /// Opens a wrap. Whatever comes of it, it is spent.
    pub async fn unwrap(&self, wrap: &Token) -> Result<Envelope, VaultError> {
        self.call(&post(Some(wrap), "sys/wrapping/unwrap", Body::new())).await
    }
}
