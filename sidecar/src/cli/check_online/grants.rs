//! Whether the policies of a grant allow what its servers' secrets need. Asked with a token as a session would have it.

use std::collections::{BTreeMap, BTreeSet};

use relay_proto::name::Name;

use super::login::{self, MayMint};
use super::report::{Report, Section, Wanted, listed};
use super::visit::Visit;
use crate::config::{Config, Grant};
use crate::secrets::{Origin, VaultPath};
use crate::vault::capabilities::{Need, Verdict};
use crate::vault::{Auth, Kind, KvVersion, Settings, VaultError};

/// What asks for a token with an entity behind it.
const OF_ENTITIES: &str = "identity/oidc/token/";
const NOWHERE: &str = "correct the path, or enable and configure that engine";

pub(super) async fn look(
    config: &Config,
    settings: &Settings,
    grant: &Grant,
    visit: &Visit,
    may_mint: MayMint,
    report: &mut Report,
) -> Result<(), VaultError> {
    let secrets = secrets(config, grant);
    if secrets.is_empty() {
        return Ok(());
    }
    let policies = listed(&grant.vault_policies);
    report.say(&format!("grant {}: a session's token has {policies}", grant.name));
    if may_mint == MayMint::No {
        report.unasked("the login cannot make such a token");
        return Ok(());
    }
    let child = match visit.mint(grant, login::mint(settings)).await {
        Ok(child) => child,
        Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid) => {
            login::no_token(settings, grant, &error, report);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if child.accessor.is_none() {
        let next = "set `token_type` of the token role to `service`";
        report.problem("it is a batch token, which cannot be revoked", next);
    }
    let whose = match grant.vault_policies.len() {
        1 => format!("the policy {policies} of grant `{}`", grant.name),
        _ => format!("one of the policies {policies} of grant `{}`", grant.name),
    };
    let place = settings.namespace.as_ref().map(|name| format!(", in namespace `{name}`"));
    // A session's token is of the namespace that is configured, so paths in its policies are as we ask for them.
    let mut section = Section::new(format!("{whose}{}", place.unwrap_or_default()), String::new());
    let outcome = Questions { visit, child: &child, report, section: &mut section }.ask(&secrets).await;
    report.close(section);
    outcome
}

struct Questions<'a> {
    visit: &'a Visit,
    child: &'a Auth,
    report: &'a mut Report,
    section: &'a mut Section,
}

/// A secret of Vault's, and the servers of a grant that use it.
type Used<'a> = BTreeMap<&'a Name, (&'a Origin, BTreeSet<&'a Name>)>;

impl Questions<'_> {
    async fn ask(mut self, secrets: &Used<'_>) -> Result<(), VaultError> {
        let mut leases = false;
        for (name, (origin, servers)) in secrets {
            let servers: Vec<&str> = servers.iter().map(|server| server.as_str()).collect();
            let noun = if servers.len() == 1 { "server" } else { "servers" };
            let because = format!("secret `{name}` of {noun} {}", listed(&servers));
            match origin {
                Origin::Kv { path, .. } => self.kv(path, because).await?,
                Origin::Vault { path, write } => {
                    leases = true;
                    let need = match write {
                        Some(_) => Need::update(path.as_str()),
                        None => Need::read(path.as_str()),
                    };
                    self.made(path, Wanted { need, because }).await?;
                }
                Origin::Env(_) | Origin::Exec { .. } | Origin::File(_) => {}
            }
        }
        // Not `renew-self`: a session's token is replaced, not renewed.
        let wanted = |need, because: &str| Wanted { need, because: because.to_owned() };
        let mut own = vec![
            wanted(Need::read("auth/token/lookup-self"), "sees whether the session's token lives"),
            wanted(Need::update("auth/token/revoke-self"), "ends the session's token"),
        ];
        if leases {
            own.push(wanted(Need::update("sys/leases/renew"), "keeps the session's leases alive"));
        }
        for wanted in own {
            self.judge(wanted).await?;
        }
        Ok(())
    }

    /// A credential that Vault makes at a path; it is not made here.
    async fn made(&mut self, path: &VaultPath, wanted: Wanted) -> Result<(), VaultError> {
        if self.judge(wanted).await? == Verdict::Lacks {
            return Ok(());
        }
        match self.visit.vault.mount(&self.child.token, path.as_str()).await {
            Err(error) if is_refusal(&error) => {
                let what = format!("nothing is mounted at `{path}`");
                self.report.problem(&what, NOWHERE);
            }
            Err(error) => return Err(error),
            Ok(_) if path.as_str().starts_with(OF_ENTITIES) && self.child.entity_id.is_empty() => {
                let what = format!("`{path}` needs a token with an entity, and the session's has none");
                let next = "log in with a method that gives one (`token-file` may not), and not through an orphan token role";
                self.report.problem(&what, next);
            }
            Ok(_) => {}
        }
        Ok(())
    }

    /// A secret in a key-value engine, whose version decides where the API has it.
    async fn kv(&mut self, path: &VaultPath, because: String) -> Result<(), VaultError> {
        let path = path.as_str();
        let mut found = None;
        for token in [&self.child.token, self.visit.token()] {
            match self.visit.vault.mount(token, path).await {
                Ok(mount) => {
                    found = Some(mount);
                    break;
                }
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(mount) = found else { return self.unknown_kv(path, because).await };
        let kind = mount.kind.clone();
        let Some(version) = mount.kv_version(path) else {
            let what = format!("`kv = \"{path}\"` ({because}) leads to an engine of type `{kind}`");
            self.report.problem(&what, "use `vault` instead of `kv` for what an engine makes");
            return Ok(());
        };
        self.judge(Wanted { need: Need::read(version.api_path(path)), because }).await.map(drop)
    }

    /// Vault shows the engine to none of our tokens, so nothing there is allowed to the session either; or nothing is
    /// mounted there. Most engines are of the second version and mounted at the first segment; if that line is
    /// allowed and shows nothing, the plain path does, whatever the version.
    async fn unknown_kv(&mut self, path: &str, because: String) -> Result<(), VaultError> {
        let first = path.split('/').next().unwrap_or_default();
        let likely = Need::read(KvVersion::V2 { mount: format!("{first}/") }.api_path(path));
        let plain = Need::read(path);
        for (need, comment) in [
            (likely, format!("if the engine of `{path}` is of version 1, it is: path \"{path}\"")),
            (plain, format!("the engine of `{path}` is not at `{first}/`, or of version 1: this shows it")),
        ] {
            if self.verdict(&need).await? != Some(Verdict::Allowed) {
                self.section.comment(comment);
                return self.judge(Wanted { need, because }).await.map(drop);
            }
        }
        self.report.problem(&format!("nothing is mounted at `{path}` ({because})"), NOWHERE);
        Ok(())
    }

    async fn judge(&mut self, wanted: Wanted) -> Result<Verdict, VaultError> {
        let (wanted, verdict) = match self.verdict(&wanted.need).await? {
            Some(verdict) => (wanted, verdict),
            None => {
                let because =
                    format!("lets this check ask about `{}`; nothing else needs it", wanted.need.path);
                (Wanted { need: Need::update("sys/capabilities-self"), because }, Verdict::Lacks)
            }
        };
        self.report.judge(self.section, &wanted, verdict);
        Ok(verdict)
    }

    /// None where the session's token may not even ask.
    async fn verdict(&self, need: &Need) -> Result<Option<Verdict>, VaultError> {
        match self.visit.vault.verdicts(&self.child.token, std::slice::from_ref(need)).await {
            Ok(verdicts) => Ok(verdicts.first().copied()),
            Err(error) if error.kind() == Kind::Denied => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What comes from Vault by way of a grant's servers, scopes and all.
fn secrets<'a>(config: &'a Config, grant: &'a Grant) -> Used<'a> {
    let mut used = Used::new();
    for server in grant.servers.iter().filter_map(|name| config.servers.get(name)) {
        for secret in server.every_secret() {
            if let Some(source) = config.secrets.get(secret).filter(|source| source.origin.is_in_vault()) {
                used.entry(secret).or_insert((&source.origin, BTreeSet::new())).1.insert(&server.name);
            }
        }
    }
    used
}

/// To a token that is allowed nothing there, and where nothing is, Vault says the same.
fn is_refusal(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}
