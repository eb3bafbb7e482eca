//! What the sidecar's own token may do, and what its token role allows.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::report::{Report, Section, Wanted, listed};
use super::visit::{Owner, Visit, told};
use crate::config::{Config, Grant};
use crate::secrets::VaultPath;
use crate::vault::capabilities::{Need, Verdict};
use crate::vault::{Kind, Mint, Settings, VaultError};

/// Whether the login can make tokens for sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MayMint {
    No,
    Yes,
}

pub(super) async fn look(
    config: &Config,
    settings: &Settings,
    visit: &Visit,
    report: &mut Report,
) -> Result<MayMint, VaultError> {
    let login = &visit.login;
    let whose = match visit.owner {
        Owner::Us => "revoked after this check",
        Owner::User => "yours, and left alone",
    };
    report.say(&format!(
        "login {}: a token with {}, {whose}",
        settings.auth.method(),
        listed(&login.policies)
    ));
    let (namespace, uses) = match visit.vault.lookup_self(visit.token()).await {
        Ok(facts) => (facts.namespace, facts.uses_left),
        // It is among what is asked below.
        Err(error) if error.kind() == Kind::Denied => (configured(settings).to_owned(), 0),
        Err(error) => return Err(error),
    };
    if uses > 0 {
        let what = format!("the login's token is good for {uses} more requests, and cannot make others");
        report.problem(&what, "log in with one that has no `num_uses` (`token_num_uses` of a role)");
        return Ok(MayMint::No);
    }
    let create = match mint(settings) {
        Mint::Plain => "auth/token/create".to_owned(),
        Mint::Role(role) => format!("auth/token/create/{role}"),
    };
    let wanted = |need, because: &str| Wanted { need, because: because.to_owned() };
    let mut all = vec![
        wanted(Need::update(create), "makes the tokens of sessions"),
        wanted(Need::update("auth/token/revoke-accessor"), "revokes what a crash left behind"),
        wanted(Need::update("sys/leases/lookup"), "sees that a lease is gone"),
        wanted(Need::read("auth/token/lookup-self"), "sees whether the login lives"),
    ];
    if login.renewable && login.expires.is_some() {
        all.push(wanted(Need::update("auth/token/renew-self"), "keeps the login alive"));
    }
    if visit.owner == Owner::Us {
        all.push(wanted(Need::update("auth/token/revoke-self"), "ends the login with the sidecar"));
    }
    let within = outside_of(configured(settings), &namespace);
    let place = match namespace.as_str() {
        "" => String::new(),
        name => format!(", in namespace `{name}`"),
    };
    let mut section =
        Section::new(format!("a policy of the login, which has {}{place}", listed(&login.policies)), within);
    let needs: Vec<Need> = all.iter().map(|wanted| wanted.need.clone()).collect();
    let verdicts = match visit.vault.verdicts(visit.token(), &needs).await {
        Ok(verdicts) => verdicts,
        Err(error) if error.kind() == Kind::Denied => {
            let wanted =
                wanted(Need::update("sys/capabilities-self"), "lets this check ask, nothing else needs it");
            report.judge(&mut section, &wanted, Verdict::Lacks);
            report.close(section);
            return Ok(MayMint::Yes);
        }
        Err(error) => return Err(error),
    };
    for (wanted, verdict) in all.iter().zip(&verdicts) {
        report.judge(&mut section, wanted, *verdict);
    }
    report.close(section);
    if let Mint::Role(role) = mint(settings) {
        token_role(config, role, visit, report).await?;
    }
    Ok(match verdicts[0] {
        Verdict::Allowed => MayMint::Yes,
        Verdict::Lacks => MayMint::No,
    })
}

/// How session tokens are made.
pub(super) fn mint(settings: &Settings) -> Mint<'_> {
    settings.token_role.as_deref().map_or(Mint::Plain, Mint::Role)
}

/// The command that makes a token role for all grants.
fn role_command(role: &str, config: &Config) -> String {
    let policies: BTreeSet<&str> =
        config.grants.values().flat_map(|grant| &grant.vault_policies).map(String::as_str).collect();
    let policies: Vec<&str> = policies.into_iter().collect();
    format!("`bao write auth/token/roles/{role} allowed_policies={} renewable=false`", policies.join(","))
}

/// What the role says of itself, where the login may read it. Nothing needs that but this.
async fn token_role(
    config: &Config,
    role: &str,
    visit: &Visit,
    report: &mut Report,
) -> Result<(), VaultError> {
    #[derive(Deserialize)]
    struct Role {
        #[serde(default)]
        allowed_policies: Vec<String>,
        #[serde(default)]
        allowed_policies_glob: Vec<String>,
        #[serde(default)]
        orphan: bool,
        #[serde(default)]
        token_num_uses: u64,
    }
    let data = match visit.vault.read(visit.token(), &format!("auth/token/roles/{role}")).await {
        Ok(envelope) => envelope.data,
        Err(error) => {
            match error.kind() {
                Kind::Denied => {
                    report.say(&format!("token role {role}: the login may not read it, and need not"))
                }
                Kind::Missing => {
                    report.say(&format!("token role {role}:"));
                    report.problem(
                        "there is no such token role",
                        &format!("make it: {}", role_command(role, config)),
                    );
                }
                _ => return Err(error),
            }
            return Ok(());
        }
    };
    let read = data.and_then(|data| serde_json::from_slice::<Role>(data.as_bytes()).ok());
    let Some(read) = read else {
        report.say(&format!("token role {role}: it has a form that is not known"));
        return Ok(());
    };
    let mut allowed = read.allowed_policies;
    allowed.extend(read.allowed_policies_glob);
    let allowed = match allowed.is_empty() {
        true => "the login's own policies".to_owned(),
        false => listed(&allowed),
    };
    let orphan = match read.orphan {
        true => ", orphans: their leases outlive the login, and they have no entity",
        false => "",
    };
    report.say(&format!("token role {role}: gives {allowed}{orphan}"));
    if read.token_num_uses > 0 {
        let next = format!("set it to 0: `bao write auth/token/roles/{role} token_num_uses=0`");
        report.problem("its tokens are good for a few requests only (`token_num_uses`)", &next);
    }
    Ok(())
}

/// A token that Vault does not make for a grant: why, and what to do.
pub(super) fn no_token(settings: &Settings, grant: &Grant, error: &VaultError, report: &mut Report) {
    let policies = listed(&grant.vault_policies);
    let next = match mint(settings) {
        Mint::Plain => {
            let within = settings.namespace.as_ref().map(|name| format!(" within the namespace `{name}`"));
            let within = within.unwrap_or_default();
            format!(
                "log in{within} with {policies} too, or set `token-role` in [vault] to a role that may give them"
            )
        }
        Mint::Role(role) => format!("add {policies} to `allowed_policies` of the token role `{role}`"),
    };
    report.problem(&told(error), &next);
}

fn configured(settings: &Settings) -> &str {
    settings.namespace.as_ref().map_or("", VaultPath::as_str)
}

/// What stands before a path in a policy of the namespace `of`, for a request in the namespace `at`.
fn outside_of(at: &str, of: &str) -> String {
    let rest = match of {
        "" => at,
        of => at.strip_prefix(of).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default(),
    };
    match rest {
        "" => String::new(),
        rest => format!("{rest}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_of_an_outer_namespace_names_the_inner_one() {
        assert_eq!(outside_of("", ""), "");
        assert_eq!(outside_of("team-a", "team-a"), "");
        assert_eq!(outside_of("team-a", ""), "team-a/");
        assert_eq!(outside_of("team-a/dev", "team-a"), "dev/");
        assert_eq!(outside_of("team-abc", "team-a"), "");
    }
}
