//! What must exist in Vault for a configuration: engines, policies, the token role; the login is in `derive_login`.
//!
//! What must stay true: a policy allows exactly what the grants that name it need; nothing is guessed: what the configuration
//! does not determine is left to the operator, with the next step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cofferdam_secrets::VaultOrigin;
use cofferdam_vault::{AuthSettings, KvVersion, Need, Settings};
use cofferdam_vault_setup::{
    AuthMethods, CredentialFiles, Engines, PolicyNeed, TokenRole, VaultObject, policy_text,
};

use crate::check::vault_needs::{
    LoginUse, TokenUser, Wanted, every_policy, generated_need, login_needs, quoted_list,
};
use crate::config::Config;

/// The engines and login methods that exist; none of either if that is not known.
#[derive(Default)]
pub(super) struct Existing {
    pub(super) engines: Engines,
    pub(super) auth_methods: AuthMethods,
}

/// What a configuration needs.
#[derive(Default)]
pub(super) struct NeededSetup<'a> {
    /// In the order in which they are made.
    pub(super) objects: Vec<VaultObject>,
    pub(super) files: Option<CredentialFiles<'a>>,
    pub(super) remaining: Vec<Remaining>,
    /// What an operator should know before confirming.
    pub(super) notes: Vec<String>,
}

/// What is left to the operator.
pub(super) struct Remaining {
    pub(super) what: String,
    pub(super) next: String,
}

/// `name` is the name of the sidecar's policy, and of its AppRole if the configuration names none.
pub(super) fn derive<'a>(
    config: &'a Config,
    settings: &'a Settings,
    name: &'a str,
    existing: &Existing,
) -> NeededSetup<'a> {
    let mut setup = NeededSetup::default();
    let users: Vec<TokenUser<'_>> = TokenUser::all(config).filter(|user| !user.secrets.is_empty()).collect();
    let mut engines = BTreeSet::new();
    let mut needs: Vec<Vec<PolicyNeed>> = Vec::new();
    for user in &users {
        needs.push(setup.needs_of(user, existing, &mut engines));
    }
    setup.objects.extend(engines.into_iter().map(|path| VaultObject::KvEngine { path }));
    setup.add_policies(&users, &needs);
    setup.add_sidecar_policy(settings, name);
    let allowed: Vec<String> = every_policy(config).into_iter().map(str::to_owned).collect();
    // A role without policies would allow all policies of the login.
    if let Some(role) = settings.token_role.as_ref().filter(|_| !allowed.is_empty()) {
        let role = TokenRole { name: role.clone(), allowed_policies: allowed.clone() };
        setup.objects.push(VaultObject::TokenRole(role));
    }
    let mut login_policies = vec![name.to_owned()];
    if settings.token_role.is_none() {
        // The policies of a plain child are a subset of its parent's.
        login_policies.extend(allowed);
    }
    setup.add_login(&settings.auth, name, login_policies, existing);
    setup
}

impl<'a> NeededSetup<'a> {
    /// What the token of a grant or platform needs. Adds the engines that are missing.
    fn needs_of(
        &mut self,
        user: &TokenUser<'_>,
        existing: &Existing,
        engines: &mut BTreeSet<String>,
    ) -> Vec<PolicyNeed> {
        let mut needs = Vec::new();
        for (secret, (origin, users)) in &user.secrets {
            let path = origin.path().as_str();
            let need = match origin {
                VaultOrigin::Generated { write, .. } => {
                    if existing.engines.serving(path).is_none() {
                        self.add_missing_engine(secret.as_str(), path);
                    }
                    Some(generated_need(path, write.as_ref()))
                }
                VaultOrigin::Kv { .. } => self.kv_need(secret.as_str(), path, existing, engines),
            };
            needs.extend(
                need.map(|need| PolicyNeed { need, reason: format!("secret `{secret}` of {users}") }),
            );
        }
        let mut own = user.token_needs();
        if user.has_leases() {
            let reason = "notices that a lease was revoked by another party";
            own.push(Wanted::new(Need::update("sys/leases/lookup"), reason));
        }
        own.push(capabilities_need());
        needs.extend(own.into_iter().map(policy_need));
        needs.retain(|PolicyNeed { need, .. }| {
            let is_pattern = need.path.contains('*') || need.path.split('/').any(|part| part == "+");
            if is_pattern {
                self.remain(
                    format!(
                        "`{}` would stand for many paths in a policy, so no policy is written for it",
                        need.path
                    ),
                    "write the policy by hand, or rename the secret in Vault".to_owned(),
                );
            }
            !is_pattern
        });
        needs
    }

    /// `None` if the path is in no key-value engine and cannot be in a new one.
    fn kv_need(
        &mut self,
        secret: &str,
        path: &str,
        existing: &Existing,
        engines: &mut BTreeSet<String>,
    ) -> Option<Need> {
        if let Some((mount, engine)) = existing.engines.serving(path) {
            let version = engine.kv_version(mount);
            if version.is_none() {
                self.remain(
                    format!(
                        "`kv = \"{path}\"` of secret `{secret}` is in an engine of type `{}`",
                        engine.kind
                    ),
                    "use `vault` instead of `kv` for credentials that an engine creates".to_owned(),
                );
            }
            return version.map(|version| Need::read(version.api_path(path)));
        }
        let Some((mount, _)) = path.split_once('/') else {
            let what = format!("`kv = \"{path}\"` of secret `{secret}` names an engine and no secret in it");
            self.remain(what, format!("write a path such as `{path}/{secret}`"));
            return None;
        };
        engines.insert(mount.to_owned());
        Some(Need::read(KvVersion::V2 { mount: format!("{mount}/") }.api_path(path)))
    }

    fn add_missing_engine(&mut self, secret: &str, path: &str) {
        let mount = path.split('/').next().unwrap_or_default();
        let role = path.rsplit('/').next().unwrap_or_default();
        let next = match path.split('/').nth_back(1) {
            Some("creds" | "static-creds") => format!(
                "enable and configure the engine: for a database, `bao secrets enable -path={mount} database`, then `bao write {mount}/config/NAME …` with the database's own password, and `bao write {mount}/roles/{role} …`"
            ),
            Some("issue" | "sign") => format!(
                "enable and configure the engine: for certificates, `bao secrets enable -path={mount} pki`, then make or import an authority, and `bao write {mount}/roles/{role} …`"
            ),
            _ => format!("enable the engine at `{mount}/` and configure what it needs"),
        };
        self.remain(format!("secret `{secret}` needs an engine that serves `{path}`"), next);
    }

    /// One policy for each name in `vault-policies`. A need goes into a policy whose grants all share it, if there is one: into
    /// that of the most grants.
    fn add_policies(&mut self, users: &[TokenUser<'_>], needs: &[Vec<PolicyNeed>]) {
        let has = |index: usize, need: &Need| needs[index].iter().any(|other| other.need == *need);
        let named_by = |policy: &String| -> Vec<usize> {
            (0..users.len()).filter(|index| users[*index].policies.contains(policy)).collect()
        };
        let mut policies: BTreeMap<&str, BTreeSet<PolicyNeed>> = BTreeMap::new();
        for (user, wanted) in users.iter().zip(needs) {
            for need in wanted {
                let excess = |policy: &&String| {
                    let all = named_by(policy);
                    (all.iter().filter(|index| !has(**index, &need.need)).count(), Reverse(all.len()))
                };
                let Some(policy) = user.policies.iter().min_by_key(excess) else { continue };
                let others: Vec<String> = named_by(policy)
                    .into_iter()
                    .filter(|index| !has(*index, &need.need))
                    .map(|index| format!("{} `{}`", users[index].kind, users[index].name))
                    .collect();
                if !others.is_empty() {
                    self.notes.push(format!(
                        "`{}` will be allowed to {} too, which does not need it, because it has the policy `{policy}` of {} `{}`; give each its own policy to avoid this",
                        need.need.path, others.join(" and "), user.kind, user.name
                    ));
                }
                policies.entry(policy).or_default().insert(need.clone());
            }
        }
        for (policy, needs) in policies {
            let of: Vec<&TokenUser<'_>> =
                users.iter().filter(|user| user.policies.iter().any(|name| name == policy)).collect();
            let list = |kind: &str| {
                let names: Vec<&str> =
                    of.iter().filter(|user| user.kind == kind).map(|user| user.name.as_str()).collect();
                quoted_list(&names)
            };
            let title = match (list("grant").as_str(), list("platform").as_str()) {
                ("", platforms) => format!("What the sidecar may do for the platform {platforms}."),
                (grants, "") => format!("What sessions of the grant {grants} may do."),
                (grants, platforms) => {
                    format!(
                        "What sessions of the grant {grants} may do, and the sidecar for the platform {platforms}."
                    )
                }
            };
            let needs: Vec<PolicyNeed> = needs.into_iter().collect();
            let text = policy_text(&title, &needs);
            self.objects.push(VaultObject::Policy { name: policy.to_owned(), text });
        }
    }

    fn add_sidecar_policy(&mut self, settings: &Settings, name: &str) {
        let uses: &[LoginUse] = match settings.auth {
            // The sidecar does not revoke an operator's token.
            AuthSettings::TokenFile { .. } => &[LoginUse::Renew],
            _ => &[LoginUse::Renew, LoginUse::Revoke],
        };
        let mut needs = login_needs(settings, uses);
        needs.push(capabilities_need());
        let needs: Vec<PolicyNeed> = needs.into_iter().map(policy_need).collect();
        let title = "What the sidecar's own login may do: create and revoke the tokens of sessions. It reads no secret.";
        self.objects.push(VaultObject::Policy { name: name.to_owned(), text: policy_text(title, &needs) });
    }

    pub(super) fn remain(&mut self, what: String, next: String) {
        if !self.remaining.iter().any(|remaining| remaining.what == what) {
            self.remaining.push(Remaining { what, next });
        }
    }
}

fn capabilities_need() -> Wanted {
    let reason = "lets `cofferdam check --online` look up what is allowed";
    Wanted::new(Need::update("sys/capabilities-self"), reason)
}

fn policy_need(Wanted { need, reason }: Wanted) -> PolicyNeed {
    PolicyNeed { need, reason }
}
