//! Checks whether the policies of a grant allow what its servers' secrets need, with a token like that of a session. The
//! policies of a platform whose API key is in Vault are checked in the same way.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_secrets::{VaultOrigin, VaultPath};
use cofferdam_vault::{Auth, Kind, KvVersion, Need, Settings, VaultError, Verdict};
use relay_proto::name::Name;

use super::check_login::CheckLogin;
use super::login::{self, MayMint};
use super::report::{Report, Section, Wanted, quoted_list};
use crate::config::{Config, Grant, Platform};

/// Paths below this path work only for a token that belongs to an entity.
const ENTITY_PATH: &str = "identity/oidc/token/";
const NO_ENGINE_HINT: &str = "correct the path, or enable and configure that engine";

/// A grant, whose sessions have Vault tokens, or a platform, whose API key is read with a Vault token.
pub(super) struct TokenUser<'a> {
    /// `grant` or `platform`.
    kind: &'static str,
    name: &'a Name,
    policies: &'a [String],
    /// The phrase for the token that has the policies, as it is printed.
    token: &'static str,
    secrets: VaultSecrets<'a>,
}

impl<'a> TokenUser<'a> {
    pub(super) fn grant(config: &'a Config, grant: &'a Grant) -> Self {
        let (name, policies) = (&grant.name, grant.vault_policies.as_slice());
        let secrets = secrets_of_servers(config, grant);
        Self { kind: "grant", name, policies, token: "a session's token", secrets }
    }

    pub(super) fn platform(config: &'a Config, platform: &'a Platform) -> Self {
        let (name, policies) = (&platform.name, platform.vault_policies.as_slice());
        let mut secrets = VaultSecrets::new();
        for (secret, _) in platform.api_key.fields() {
            if let Some(origin) = config.secrets.get(secret).and_then(|source| source.origin.vault()) {
                secrets.insert(secret, (origin, "the platform's `api-key`".to_owned()));
            }
        }
        Self { kind: "platform", name, policies, token: "the token that reads its API key", secrets }
    }

    pub(super) fn policies(&self) -> &'a [String] {
        self.policies
    }

    /// A key and value for the metadata of a token.
    pub(super) fn label(&self) -> (&'static str, &'a str) {
        (self.kind, self.name.as_str())
    }
}

pub(super) async fn check(
    settings: &Settings,
    user: &TokenUser<'_>,
    check_login: &CheckLogin,
    may_mint: MayMint,
    report: &mut Report,
) -> Result<(), VaultError> {
    let TokenUser { kind, name, secrets, .. } = user;
    if secrets.is_empty() {
        return Ok(());
    }
    let policies = quoted_list(user.policies);
    report.print_line(&format!("{kind} {name}: {} has {policies}", user.token));
    if may_mint == MayMint::No {
        report.not_checked("the login cannot create such a token");
        return Ok(());
    }
    let child = match check_login.mint(user, login::mint(settings)).await {
        Ok(child) => child,
        Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid) => {
            login::report_no_token(settings, user.policies, &error, report);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if child.accessor.is_none() {
        let next = "set `token_type` of the token role to `service`";
        report.problem("the created token is a batch token, which cannot be revoked", next);
    }
    let policy = match user.policies.len() {
        1 => format!("the policy {policies} of {kind} `{name}`"),
        _ => format!("one of the policies {policies} of {kind} `{name}`"),
    };
    let namespace = settings.namespace.as_ref().map(|name| format!(", in namespace `{name}`"));
    // A session's token belongs to the configured namespace, so paths in its policies need no prefix.
    let mut section = Section::new(format!("{policy}{}", namespace.unwrap_or_default()), String::new());
    let outcome = GrantCheck { check_login, child: &child, report, section: &mut section }.run(secrets).await;
    report.close(section);
    outcome
}

struct GrantCheck<'a> {
    check_login: &'a CheckLogin,
    child: &'a Auth,
    report: &'a mut Report,
    section: &'a mut Section,
}

/// Secrets in Vault by name, each with what uses it.
type VaultSecrets<'a> = BTreeMap<&'a Name, (&'a VaultOrigin, String)>;

impl GrantCheck<'_> {
    async fn run(mut self, secrets: &VaultSecrets<'_>) -> Result<(), VaultError> {
        let mut has_leases = false;
        for (name, (origin, users)) in secrets {
            let reason = format!("secret `{name}` of {users}");
            match origin {
                VaultOrigin::Kv { path, .. } => self.check_kv(path, reason).await?,
                VaultOrigin::Generated { path, write } => {
                    has_leases = true;
                    let need = match write {
                        Some(_) => Need::update(path.as_str()),
                        None => Need::read(path.as_str()),
                    };
                    self.check_generated(path, Wanted { need, reason }).await?;
                }
            }
        }
        // `renew-self` is not needed: a session's token is replaced, not renewed.
        let wanted = |need, reason: &str| Wanted { need, reason: reason.to_owned() };
        let mut token_needs = vec![
            wanted(Need::read("auth/token/lookup-self"), "checks that the session's token is still valid"),
            wanted(Need::update("auth/token/revoke-self"), "revokes the session's token"),
        ];
        if has_leases {
            token_needs.push(wanted(Need::update("sys/leases/renew"), "renews the session's leases"));
        }
        for wanted in token_needs {
            self.report_need(wanted).await?;
        }
        Ok(())
    }

    /// Checks a path at which Vault creates a credential, without creating one.
    async fn check_generated(&mut self, path: &VaultPath, wanted: Wanted) -> Result<(), VaultError> {
        if self.report_need(wanted).await? == Verdict::Missing {
            return Ok(());
        }
        match self.check_login.vault.mount(&self.child.token, path.as_str()).await {
            Err(error) if is_refusal(&error) => {
                let what = format!("nothing is mounted at `{path}`");
                self.report.problem(&what, NO_ENGINE_HINT);
            }
            Err(error) => return Err(error),
            Ok(_) if path.as_str().starts_with(ENTITY_PATH) && self.child.entity_id.is_empty() => {
                let what = format!("`{path}` needs a token with an entity, but the session's token has none");
                let next = "log in with a method that gives one (`token-file` may not), and not through an orphan token role";
                self.report.problem(&what, next);
            }
            Ok(_) => {}
        }
        Ok(())
    }

    /// Checks a path in a KV engine, whose version decides the path of the API.
    async fn check_kv(&mut self, path: &VaultPath, reason: String) -> Result<(), VaultError> {
        let path = path.as_str();
        let mut found = None;
        for token in [&self.child.token, self.check_login.token()] {
            match self.check_login.vault.mount(token, path).await {
                Ok(mount) => {
                    found = Some(mount);
                    break;
                }
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(mount) = found else { return self.report_unknown_kv(path, reason).await };
        let kind = mount.kind.clone();
        let Some(version) = mount.kv_version(path) else {
            let what = format!("`kv = \"{path}\"` ({reason}) is in an engine of type `{kind}`");
            self.report.problem(&what, "use `vault` instead of `kv` for credentials that an engine creates");
            return Ok(());
        };
        self.report_need(Wanted { need: Need::read(version.api_path(path)), reason }).await.map(drop)
    }

    /// Reports a path whose engine Vault shows neither to the session's token nor to the login: either the session may read
    /// nothing there, or no engine is mounted. Most engines have version 2 and are mounted at the first segment, so a policy
    /// line for this case is proposed first. If the session has that line already, a line for the path without `data/` is
    /// proposed: with this line Vault shows the engine, whatever its version.
    async fn report_unknown_kv(&mut self, path: &str, reason: String) -> Result<(), VaultError> {
        let first = path.split('/').next().unwrap_or_default();
        let version_2 = Need::read(KvVersion::V2 { mount: format!("{first}/") }.api_path(path));
        let version_1 = Need::read(path);
        for (need, comment) in [
            (
                version_2,
                format!("if the engine of `{path}` has version 1, use this path instead: \"{path}\""),
            ),
            (
                version_1,
                format!(
                    "the engine of `{path}` is not mounted at `{first}/`, or has version 1: with this line the check can find out which"
                ),
            ),
        ] {
            if self.verdict(&need).await? != Some(Verdict::Allowed) {
                self.section.comment(comment);
                return self.report_need(Wanted { need, reason }).await.map(drop);
            }
        }
        self.report.problem(&format!("nothing is mounted at `{path}` ({reason})"), NO_ENGINE_HINT);
        Ok(())
    }

    async fn report_need(&mut self, wanted: Wanted) -> Result<Verdict, VaultError> {
        let (wanted, verdict) = match self.verdict(&wanted.need).await? {
            Some(verdict) => (wanted, verdict),
            None => {
                let reason = format!(
                    "needed only by this check, to look up the capabilities on `{}`",
                    wanted.need.path
                );
                (Wanted { need: Need::update("sys/capabilities-self"), reason }, Verdict::Missing)
            }
        };
        self.report.need(self.section, &wanted, verdict);
        Ok(verdict)
    }

    /// `None` if the session's token may not look up its own capabilities.
    async fn verdict(&self, need: &Need) -> Result<Option<Verdict>, VaultError> {
        match self.check_login.vault.verdicts(&self.child.token, std::slice::from_ref(need)).await {
            Ok(verdicts) => Ok(verdicts.first().copied()),
            Err(error) if error.kind() == Kind::Denied => Ok(None),
            Err(error) => Err(error),
        }
    }
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

/// Whether Vault refused the request. Its error is the same if the token may not read the path and if nothing is mounted
/// there.
fn is_refusal(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}
