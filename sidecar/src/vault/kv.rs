//! Key-value secrets: which version of the engine a path belongs to is found out, not configured.

use std::time::Duration;

use serde::Deserialize;

use super::api::{Vault, get, malformed};
use super::envelope::{Data, Envelope};
use super::error::{Kind, VaultError};
use super::token::Token;

/// The version of the engine, with the part of a path that is its mount, slash and all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KvVersion {
    V1,
    V2 { mount: String },
}

/// A secret as it is kept.
#[derive(Debug)]
pub struct KvSecret {
    pub data: Data,
    /// Of the secret; only the second version of the engine counts.
    pub version: Option<u64>,
    /// How often the writer asks to look again; the first version's advisory `ttl`.
    pub refresh: Option<Duration>,
    pub request_id: String,
}

impl Vault {
    /// Reads `MOUNT/PATH`, as people write it for either version of the engine.
    pub async fn kv_read(&self, token: &Token, path: &str) -> Result<KvSecret, VaultError> {
        let version = self.kv_version(token, path).await?;
        self.kv_read_as(token, path, &version).await
    }

    /// Asks Vault which engine is behind a path. A token that may not even know that gets its answer from looking: a
    /// path below the first segment that answers as the second version does is of the second version.
    pub async fn kv_version(&self, token: &Token, path: &str) -> Result<KvVersion, VaultError> {
        #[derive(Deserialize)]
        struct Mount {
            path: String,
            #[serde(rename = "type")]
            kind: String,
            options: Option<Options>,
        }
        #[derive(Deserialize)]
        struct Options {
            version: Option<String>,
        }
        let request = get(token, &format!("sys/internal/ui/mounts/{path}"));
        let found = match self.data(&request).await {
            Ok((data, _)) => data.read::<Mount>().map_err(|why| malformed(&request, why))?,
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing) => {
                return self.kv_probe(token, path).await;
            }
            Err(error) => return Err(error),
        };
        let version = found.options.and_then(|options| options.version);
        match (found.kind.as_str(), version.as_deref()) {
            ("kv", Some("2")) if path.starts_with(&found.path) => Ok(KvVersion::V2 { mount: found.path }),
            ("kv" | "generic" | "cubbyhole", _) => Ok(KvVersion::V1),
            _ => Err(malformed(&request, "the mount behind this path keeps no key-value secrets")),
        }
    }

    pub async fn kv_read_as(
        &self,
        token: &Token,
        path: &str,
        version: &KvVersion,
    ) -> Result<KvSecret, VaultError> {
        #[derive(Deserialize)]
        struct Metadata {
            version: u64,
        }
        let KvVersion::V2 { mount } = version else {
            let request = get(token, path);
            let Envelope { data, lease_duration, request_id, .. } = self.call(&request).await?;
            let data = data.ok_or_else(|| malformed(&request, "there is no data in it"))?;
            let refresh = data.text("ttl").is_some().then_some(lease_duration).filter(|ttl| !ttl.is_zero());
            return Ok(KvSecret { data, version: None, refresh, request_id });
        };
        let rest = path.strip_prefix(mount.as_str()).unwrap_or(path);
        let request = get(token, &format!("{mount}data/{rest}"));
        let (outer, request_id) = self.data(&request).await?;
        let metadata = outer.part("metadata").and_then(|metadata| metadata.read::<Metadata>().ok());
        match (outer.part("data"), metadata) {
            (Some(data), Some(Metadata { version })) => {
                Ok(KvSecret { data, version: Some(version), refresh: None, request_id })
            }
            _ => Err(malformed(&request, "it has not the form of a versioned secret")),
        }
    }

    async fn kv_probe(&self, token: &Token, path: &str) -> Result<KvVersion, VaultError> {
        let Some((first, _)) = path.split_once('/') else { return Ok(KvVersion::V1) };
        let versioned = KvVersion::V2 { mount: format!("{first}/") };
        match self.kv_read_as(token, path, &versioned).await {
            Ok(_) => Ok(versioned),
            // Not of that form, or not for us there: the plain path says what is the matter.
            Err(error)
                if matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Malformed | Kind::Missing) =>
            {
                Ok(KvVersion::V1)
            }
            Err(error) => Err(error),
        }
    }
}
