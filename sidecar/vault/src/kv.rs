//! Key-value secrets. The version of the engine is detected, not configured.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use zeroize::Zeroizing;

use crate::api::{Vault, get, malformed, post};
use crate::body::Body;
use crate::client::Request;
use crate::envelope::{Data, Envelope};
use crate::error::{Kind, VaultError};
use crate::token::Token;

/// The version of the engine; for version 2 with its mount, which ends with a slash.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KvVersion {
    V1,
    V2 { mount: String },
}

/// A key-value secret.
#[derive(Debug)]
pub struct KvSecret {
    pub data: Data,
    /// The secret's version, in version 2 of the engine.
    pub version: Option<u64>,
    /// How often to read again: the advisory `ttl` in version 1 of the engine.
    pub refresh: Option<Duration>,
    pub request_id: String,
}

/// A secrets engine and its path.
#[derive(Deserialize)]
pub struct Mount {
    /// Ends with a slash.
    path: String,
    #[serde(rename = "type")]
    pub kind: String,
    options: Option<MountOptions>,
}

#[derive(Deserialize)]
struct MountOptions {
    version: Option<String>,
}

impl Mount {
    /// `None` if this is not a key-value engine.
    pub fn kv_version(self, path: &str) -> Option<KvVersion> {
        let version = self.options.and_then(|options| options.version);
        match (self.kind.as_str(), version.as_deref()) {
            ("kv", Some("2")) if path.starts_with(&self.path) => Some(KvVersion::V2 { mount: self.path }),
            ("kv" | "generic" | "cubbyhole", _) => Some(KvVersion::V1),
            _ => None,
        }
    }
}

impl KvVersion {
    /// The path of the API for the secret at `path`.
    pub fn api_path(&self, path: &str) -> String {
        match self {
            Self::V1 => path.to_owned(),
            Self::V2 { mount } => {
                format!("{mount}data/{}", path.strip_prefix(mount.as_str()).unwrap_or(path))
            }
        }
    }
}

impl Vault {
    /// Reads `MOUNT/PATH`, which is written the same for both versions of the engine.
    pub async fn kv_read(&self, token: &Token, path: &str) -> Result<KvSecret, VaultError> {
        let version = self.kv_version(token, path).await?;
        self.kv_read_as(token, path, &version).await
    }

    /// Looks up which engine serves a path. If the token may not do that, tries to read the path as version 2 with the
    /// first segment as mount, and assumes version 1 if Vault refuses that or the response has another form.
    pub async fn kv_version(&self, token: &Token, path: &str) -> Result<KvVersion, VaultError> {
        let request = mount_request(token, path);
        match self.mount(token, path).await {
            Ok(mount) => mount
                .kv_version(path)
                .ok_or_else(|| malformed(&request, "the engine at this path is not a key-value engine")),
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing) => {
                self.kv_probe(token, path).await
            }
            Err(error) => Err(error),
        }
    }

    /// Which engine serves a path. Reads no secret. Fails with [`Kind::Denied`] both if the token has no permission
    /// there and if nothing is mounted there.
    pub async fn mount(&self, token: &Token, path: &str) -> Result<Mount, VaultError> {
        let request = mount_request(token, path);
        let (data, _) = self.data(&request).await?;
        data.read().map_err(|why| malformed(&request, why))
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
        let request = get(token, &version.api_path(path));
        if *version == KvVersion::V1 {
            let Envelope { data, lease_duration, request_id, .. } = self.call(&request).await?;
            let data = data.ok_or_else(|| malformed(&request, "it has no data"))?;
            let refresh = data.text("ttl").is_some().then_some(lease_duration).filter(|ttl| !ttl.is_zero());
            return Ok(KvSecret { data, version: None, refresh, request_id });
        }
        let (outer, request_id) = self.data(&request).await?;
        let metadata = outer.part("metadata").and_then(|metadata| metadata.read::<Metadata>().ok());
        match (outer.part("data"), metadata) {
            (Some(data), Some(Metadata { version })) => {
                Ok(KvSecret { data, version: Some(version), refresh: None, request_id })
            }
            _ => Err(malformed(&request, "it does not have the form of a versioned secret")),
        }
    }

    /// Writes a secret where there is none yet. In version 1 of the engine another writer may come in between, because
    /// that has no conditional writes; the caller has read the path before.
    pub async fn kv_create(
        &self,
        token: &Token,
        path: &str,
        version: &KvVersion,
        fields: &BTreeMap<String, Zeroizing<String>>,
    ) -> Result<(), VaultError> {
        let mut values = Body::new();
        for (name, value) in fields {
            values = values.with_secret(name, value.clone());
        }
        let body = match version {
            KvVersion::V1 => values,
            KvVersion::V2 { .. } => {
                Body::new().with("options", serde_json::json!({"cas": 0})).with_body("data", values)
            }
        };
        self.call(&post(Some(token), &version.api_path(path), body)).await.map(drop)
    }

    async fn kv_probe(&self, token: &Token, path: &str) -> Result<KvVersion, VaultError> {
        let Some((first, _)) = path.split_once('/') else { return Ok(KvVersion::V1) };
        let versioned = KvVersion::V2 { mount: format!("{first}/") };
        match self.kv_read_as(token, path, &versioned).await {
            Ok(_) => Ok(versioned),
            // Another form, or no permission: reading the path as version 1 gives the proper error.
            Err(error)
                if matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Malformed | Kind::Missing) =>
            {
                Ok(KvVersion::V1)
            }
            Err(error) => Err(error),
        }
    }
}

fn mount_request<'a>(token: &'a Token, path: &str) -> Request<'a> {
    get(token, &format!("sys/internal/ui/mounts/{path}"))
}
