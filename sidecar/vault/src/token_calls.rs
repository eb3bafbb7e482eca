//! Calls about tokens: looking at one's own, renewing, revoking, making children.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::{Vault, get, malformed, post};
use crate::body::Body;
use crate::envelope::{Auth, end};
use crate::error::VaultError;
use crate::token::{Accessor, Token};

/// What Vault knows of a token.
#[derive(Clone, Debug)]
pub struct TokenFacts {
    pub accessor: Option<Accessor>,
    pub policies: Vec<String>,
    /// Zero means that it does not expire.
    pub ttl: Duration,
    pub renewable: bool,
    pub orphan: bool,
    /// Zero means as many as one likes. Every call counts, this one too.
    pub uses_left: u64,
    pub entity_id: String,
    pub metadata: BTreeMap<String, String>,
    /// The namespace that the token and its policies are of, without slashes around it; empty for the outermost.
    pub namespace: String,
    pub asked_at: Instant,
}

/// A token to be made. The policies are always sent: left out, a role gives all that it may.
#[derive(Clone, Debug, Default)]
pub struct ChildToken {
    pub policies: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    pub display_name: String,
    pub ttl: Duration,
    /// Beyond which no renewal goes; zero leaves it to Vault.
    pub explicit_max_ttl: Duration,
    pub renewable: Renewable,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Renewable {
    No,
    #[default]
    Yes,
}

/// How a child is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mint<'a> {
    /// `auth/token/create`: its policies are a part of its parent's.
    Plain,
    /// `auth/token/create/ROLE`: its policies are a part of what the role allows.
    Role(&'a str),
}

impl TokenFacts {
    /// When the token ends; none if it does not.
    pub fn expires(&self) -> Option<Instant> {
        end(self.asked_at, self.ttl)
    }
}

impl Vault {
    pub async fn lookup_self(&self, token: &Token) -> Result<TokenFacts, VaultError> {
        let asked_at = Instant::now();
        let request = get(token, "auth/token/lookup-self");
        let (data, _) = self.data(&request).await?;
        let raw: RawFacts = data.read().map_err(|why| malformed(&request, why))?;
        Ok(TokenFacts {
            accessor: raw.accessor.filter(|accessor| !accessor.is_empty()).map(Accessor::new),
            policies: raw.policies.unwrap_or_default(),
            ttl: Duration::from_secs(raw.ttl),
            renewable: raw.renewable.unwrap_or_default(),
            orphan: raw.orphan,
            uses_left: raw.num_uses,
            entity_id: raw.entity_id.unwrap_or_default(),
            metadata: raw.meta.unwrap_or_default(),
            namespace: raw.namespace_path.unwrap_or_default().trim_matches('/').to_owned(),
            asked_at,
        })
    }

    /// Asks for `increment` from now. Vault may give less and call that a success: look at what it gave.
    pub async fn renew_self(&self, token: &Token, increment: Option<Duration>) -> Result<Auth, VaultError> {
        let body = match increment {
            Some(increment) => Body::new().with("increment", seconds(increment)),
            None => Body::new(),
        };
        self.auth(&post(Some(token), "auth/token/renew-self", body)).await
    }

    /// Ends the token, its children and, in Vault's own time, their leases.
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

    /// Ends a token without having it.
    pub async fn revoke_accessor(&self, token: &Token, accessor: &Accessor) -> Result<(), VaultError> {
        let body = Body::new().with("accessor", accessor.as_str());
        self.call(&post(Some(token), "auth/token/revoke-accessor", body)).await.map(drop)
    }
}

/// As Vault reads durations. Never "0s" for something short: that would mean "the default".
pub(crate) fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs().max(1))
}

#[derive(Deserialize)]
struct RawFacts {
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
