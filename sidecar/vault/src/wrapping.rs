//! Response wrapping: look up a wrapping token, and unwrap it once.

use std::time::Duration;

use serde::Deserialize;

use crate::api::{Vault, malformed, post};
use crate::body::Body;
use crate::envelope::Envelope;
use crate::error::VaultError;
use crate::token::Token;

/// The properties of a wrapping token that was not used yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WrappingInfo {
    /// The path whose response was wrapped. Wrapping again does not change it.
    pub creation_path: String,
    pub creation_ttl: Duration,
}

impl Vault {
    /// Looks up a wrapping token without using it up.
    pub async fn wrapping_lookup(&self, wrap: &Token) -> Result<WrappingInfo, VaultError> {
        #[derive(Deserialize)]
        struct Raw {
            creation_path: String,
            creation_ttl: u64,
        }
        // Sent in the body: if the wrapping token were the client token (`X-Vault-Token`), this look-up would use it
        // up.
        let request = post(None, "sys/wrapping/lookup", Body::new().with_token("token", wrap));
        let (data, _) = self.data(&request).await?;
        let Raw { creation_path, creation_ttl } = data.read().map_err(|why| malformed(&request, why))?;
        Ok(WrappingInfo { creation_path, creation_ttl: Duration::from_secs(creation_ttl) })
    }

    /// Uses up the wrapping token, whether it succeeds or not.
    pub async fn unwrap(&self, wrap: &Token) -> Result<Envelope, VaultError> {
        self.call(&post(Some(wrap), "sys/wrapping/unwrap", Body::new())).await
    }
}
