//! What a configuration needs in Vault: `check --online` compares it with what Vault allows, and `vault setup` makes it.
//!
//! What must stay true: each request that the sidecar sends for a session or with its login is allowed by these
//! capabilities, and by no fewer.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_secrets::VaultOrigin;
use cofferdam_vault::{Mint, Need, Settings};
use relay_proto::name::Name;

use crate::config::{Config, Grant, Platform};

/// A capability that is needed, and what for.
pub(crate) struct Wanted {
    pub(crate) need: Need,
    pub(crate) reason: String,
}

/// Secrets in Vault by name, each with what uses it.
pub(crate) type VaultSecrets<'a> = BTreeMap<&'a Name, (&'a VaultOrigin, String)>;

/// A grant, whose sessions have Vault tokens, or a platform, whose API key is read with a Vault token.
pub(crate) struct TokenUser<'a> {
    /// `grant` or `platform`.
    pub(crate) kind: &'static str,
    pub(crate) name: &'a Name,
    pub(crate) policies: &'a [String],
    /// The phrase for the token that has the policies, as it is printed.
    pub(crate) token: &'static str,
    pub(crate) secrets: VaultSecrets<'a>,
}

/// What the sidecar does with the token of its own login, beside creating and revoking the tokens of sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LoginUse {
    Renew,
    /// When the sidecar stops.
    Revoke,
}

impl<'a> TokenUser<'a> {
    /// Every grant and platform.
    pub(crate) fn all(config: &'a Config) -> impl Iterator<Item = Self> {
        let grants = config.grants.values().map(|grant| Self::grant(config, grant));
        let platforms = config.platforms.values().map(|platform| Self::platform(config, platform));
        grants.chain(platforms)
    }

    fn grant(config: &'a Config, grant: &'a Grant) -> Self {
        let (name, policies) = (&grant.name, grant.vault_policies.as_slice());
        let secrets = secrets_of_servers(config, grant);
        Self { kind: "grant", name, policies, token: "a session's token", secrets }
    }

    fn platform(config: &'a Config, platform: &'a Platform) -> Self {
        let (name, policies) = (&platform.name, platform.vault_policies.as_slice());
        let mut secrets = VaultSecrets::new();
        for (secret, _) in platform.api_key.fields() {
            if let Some(origin) = config.secrets.get(secret).and_then(|source| source.origin.vault()) {
                secrets.insert(secret, (origin, "the platform's `api-key`".to_owned()));
            }
        }
        Self { kind: "platform", name, policies, token: "the token that reads its API key", secrets }
    }

    /// A key and value for the metadata of a token.
    pub(crate) fn label(&self) -> (&'static str, &'a str) {
        (self.kind, self.name.as_str())
    }

    /// Whether Vault creates one of the secrets, so that it has a lease.
    pub(crate) fn has_leases(&self) -> bool {
        self.secrets.values().any(|(origin, _)| matches!(origin, VaultOrigin::Generated { .. }))
    }

    /// What the token needs for itself and for its leases, beside its secrets.
    pub(crate) fn token_needs(&self) -> Vec<Wanted> {
        // `renew-self` is not needed: a session's token is replaced, not renewed.
        let mut needs = vec![
            Wanted::new(
                Need::read("auth/token/lookup-self"),
                "checks that the session's token is still valid",
            ),
            Wanted::new(Need::update("auth/token/revoke-self"), "revokes the session's token"),
        ];
        if self.has_leases() {
            needs.push(Wanted::new(Need::update("sys/leases/renew"), "renews the session's leases"));
        }
        needs
    }
}

impl Wanted {
    pub(crate) fn new(need: Need, reason: impl Into<String>) -> Self {
        Self { need, reason: reason.into() }
    }
}

/// The need to read or create a secret at a path where Vault creates credentials.
pub(crate) fn generated_need(path: &str, write: Option<&BTreeMap<String, serde_json::Value>>) -> Need {
    match write {
        Some(_) => Need::update(path),
        None => Need::read(path),
    }
}

/// What the token of the sidecar's login needs. The first is the creation of tokens for sessions.
pub(crate) fn login_needs(settings: &Settings, uses: &[LoginUse]) -> Vec<Wanted> {
    let create = match mint(settings) {
        Mint::Plain => "auth/token/create".to_owned(),
        Mint::Role(role) => format!("auth/token/create/{role}"),
    };
    let mut needs = vec![
        Wanted::new(Need::update(create), "creates the tokens of sessions"),
        Wanted::new(Need::update("auth/token/revoke-accessor"), "revokes tokens that remain after a crash"),
        Wanted::new(Need::update("sys/leases/lookup"), "checks that a lease is revoked"),
        Wanted::new(Need::read("auth/token/lookup-self"), "checks that the login is still valid"),
    ];
    if uses.contains(&LoginUse::Renew) {
        needs.push(Wanted::new(Need::update("auth/token/renew-self"), "renews the login"));
    }
    if uses.contains(&LoginUse::Revoke) {
        needs.push(Wanted::new(
            Need::update("auth/token/revoke-self"),
            "revokes the login when the sidecar stops",
        ));
    }
    needs
}

/// How session tokens are created.
pub(crate) fn mint(settings: &Settings) -> Mint<'_> {
    settings.token_role.as_deref().map_or(Mint::Plain, Mint::Role)
}

/// The policies of all grants and platforms, which the token role has to allow.
pub(crate) fn every_policy(config: &Config) -> Vec<&str> {
    let of_grants = config.grants.values().flat_map(|grant| &grant.vault_policies);
    let of_platforms = config.platforms.values().flat_map(|platform| &platform.vault_policies);
    let policies: BTreeSet<&str> = of_grants.chain(of_platforms).map(String::as_str).collect();
    policies.into_iter().collect()
}

/// The Vault secrets of a grant's servers, including those of scopes.
fn secrets_of_servers<'a>(config: &'a Config, grant: &'a Grant) -> VaultSecrets<'a> {
    let mut secrets: BTreeMap<&Name, (&VaultOrigin, BTreeSet<&Name>)> = BTreeMap::new();
    for server in grant.servers.iter().filter_map(|name| config.servers.get(name)) {
        for secret in server.every_secret() {
            if let Some(origin) = config.secrets.get(secret).and_then(|source| source.origin.vault()) {
                secrets.entry(secret).or_insert((origin, BTreeSet::new())).1.insert(&server.name);
            }
        }
    }
    let described = secrets.into_iter().map(|(secret, (origin, servers))| {
        let servers: Vec<&str> = servers.iter().map(|server| server.as_str()).collect();
        let noun = if servers.len() == 1 { "server" } else { "servers" };
        (secret, (origin, format!("{noun} {}", quoted_list(&servers))))
    });
    described.collect()
}

/// Joins names, each in backquotes.
pub(crate) fn quoted_list<T: AsRef<str>>(names: &[T]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}
