//! Requests about tokens: look up, renew, revoke, create children.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::{Vault, get, malformed, post};
use crate::body::{Body, seconds};
use crate::envelope::{Auth, expiry};
use crate::error::VaultError;
use crate::token::{Accessor, Token};

/// The properties of a token in Vault.
#[derive(Clone, Debug)]
pub struct TokenInfo {
    pub accessor: Option<Accessor>,
    pub policies: Vec<String>,
    /// Zero: the token does not expire.
    pub ttl: Duration,
    pub renewable: bool,
    pub orphan: bool,
    /// Zero: unlimited. Every request counts, the look-up too.
    pub uses_left: u64,
    pub entity_id: String,
    pub metadata: BTreeMap<String, String>,
    /// The namespace of the token and its policies, without slashes around it; empty for the root namespace.
    pub namespace: String,
    pub requested_at: Instant,
}

/// A token to create. The policies are always sent: without them, a role grants all that it allows.
#[derive(Clone, Debug, Default)]
pub struct ChildToken {
    pub policies: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    pub display_name: String,
    pub ttl: Duration,
    /// No renewal extends the token beyond this; zero leaves it to Vault.
    pub explicit_max_ttl: Duration,
    pub renewable: Renewable,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Renewable {
    No,
    #[default]
    Yes,
}

/// How a child is created.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mint<'a> {
    /// `auth/token/create`: its policies are a subset of its parent's.
    Plain,
    /// `auth/token/create/ROLE`: its policies are a subset of those that the role allows.
    Role(&'a str),
}

impl TokenInfo {
    /// When the token expires; `None` if it does not.
    pub fn expires(&self) -> Option<Instant> {
        expiry(self.requested_at, self.ttl)
    }
}

impl Vault {
    pub async fn lookup_self(&self, token: &Token) -> Result<TokenInfo, VaultError> {
        let requested_at = Instant::now();
        let request = get(token, "auth/token/lookup-self");
        let (data, _) = self.data(&request).await?;
        let raw: RawTokenInfo = data.read().map_err(|why| malformed(&request, why))?;
        Ok(TokenInfo {
            accessor: raw.accessor.filter(|accessor| !accessor.is_empty()).map(Accessor::new),
            policies: raw.policies.unwrap_or_default(),
            ttl: Duration::from_secs(raw.ttl),
            renewable: raw.renewable.unwrap_or_default(),
            orphan: raw.orphan,
            uses_left: raw.num_uses,
            entity_id: raw.entity_id.unwrap_or_default(),
            metadata: raw.meta.unwrap_or_default(),
            namespace: raw.namespace_path.unwrap_or_default().trim_matches('/').to_owned(),
            requested_at,
        })
    }

    /// Extends the token to `increment` from now. Vault may grant less and report success: check the duration.
    pub async fn renew_self(&self, token: &Token, increment: Option<Duration>) -> Result<Auth, VaultError> {
        let body = match increment {
            Some(increment) => Body::new().with("increment", seconds(increment)),
            None => Body::new(),
        };
        self.auth(&post(Some(token), "auth/token/renew-self", body)).await
    }

    /// Revokes the token and its children at once, and their leases some time later.
    pub async fn revoke_self(&self, token: &Token) -> Result<(), VaultError> {
        self.call(&post(Some(token), "auth/token/revoke-self", Body::new())).await.map(drop)
    }

    pub async fn create_child(
        &self,
        parent: &Token,
        child: &ChildToken,
        mint: Mint<'_>,
    ) -> Result<Auth, VaultError> {
        let path = match mint {
            Mint::Plain => "auth/token/create".to_owned(),
            Mint::Role(role) => format!("auth/token/create/{role}"),
        };
        let metadata: serde_json::Map<String, Value> =
            child.metadata.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        let mut body = Body::new()
            .with("policies", child.policies.clone())
            .with("meta", metadata)
            .with("display_name", child.display_name.as_str())
            .with("ttl", seconds(child.ttl))
            .with("renewable", child.renewable == Renewable::Yes);
        if !child.explicit_max_ttl.is_zero() {
            body = body.with("explicit_max_ttl", seconds(child.explicit_max_ttl));
        }
        self.auth(&post(Some(parent), &path, body)).await
    }

    /// Revokes a token by its accessor.
    pub async fn revoke_accessor(&self, token: &Token, accessor: &Accessor) -> Result<(), VaultError> {
        let body = Body::new().with("accessor", accessor.as_str());
        self.call(&post(Some(token), "auth/token/revoke-accessor", body)).await.map(drop)
    }
}

#[derive(Deserialize)]
struct RawTokenInfo {
    accessor: Option<String>,
    policies: Option<Vec<String>>,
    ttl: u64,
    renewable: Option<bool>,
    #[serde(default)]
    orphan: bool,
    #[serde(default)]
    num_uses: u64,
    entity_id: Option<String>,
    meta: Option<BTreeMap<String, String>>,
    namespace_path: Option<String>,
}
