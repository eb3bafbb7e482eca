//! Checks what the token of the sidecar's login may do, and what its token role allows.

use cofferdam_secrets::VaultPath;
use cofferdam_vault::{Kind, Mint, Need, Settings, VaultError, Verdict};
use serde::Deserialize;

use super::check_login::{CheckLogin, Owner, describe_error};
use super::report::{Report, Section};
use crate::check::vault_needs::{LoginUse, Wanted, every_policy, login_needs, mint, quoted_list};
use crate::config::Config;

/// Whether the login can create tokens for sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MayMint {
    No,
    Yes,
}

pub(super) async fn check(
    config: &Config,
    settings: &Settings,
    check_login: &CheckLogin,
    report: &mut Report,
) -> Result<MayMint, VaultError> {
    let login = &check_login.login;
    let whose = match check_login.owner {
        Owner::Check => "revoked after this check",
        Owner::User => "your own token, which is not revoked",
    };
    report.print_line(&format!(
        "login {}: a token with {}, {whose}",
        settings.auth.method(),
        quoted_list(&login.policies)
    ));
    let (namespace, uses) = match check_login.vault.lookup_self(check_login.token()).await {
        Ok(facts) => (facts.namespace, facts.uses_left),
        // Whether `lookup-self` is allowed is checked below.
        Err(error) if error.kind() == Kind::Denied => (configured_namespace(settings).to_owned(), 0),
        Err(error) => return Err(error),
    };
    if uses > 0 {
        let what =
            format!("the login's token can be used for {uses} more requests, so it cannot create tokens");
        report.problem(&what, "log in with a token without `num_uses` (`token_num_uses` of its role)");
        return Ok(MayMint::No);
    }
    let mut uses = Vec::new();
    if login.renewable && login.expires.is_some() {
        uses.push(LoginUse::Renew);
    }
    if check_login.owner == Owner::Check {
        uses.push(LoginUse::Revoke);
    }
    let all = login_needs(settings, &uses);
    let prefix = policy_prefix(configured_namespace(settings), &namespace);
    let in_namespace = match namespace.as_str() {
        "" => String::new(),
        name => format!(", in namespace `{name}`"),
    };
    let mut section = Section::new(
        format!("a policy of the login, which has {}{in_namespace}", quoted_list(&login.policies)),
        prefix,
    );
    let needs: Vec<Need> = all.iter().map(|wanted| wanted.need.clone()).collect();
    let verdicts = match check_login.vault.verdicts(check_login.token(), &needs).await {
        Ok(verdicts) => verdicts,
        Err(error) if error.kind() == Kind::Denied => {
            let wanted = Wanted::new(
                Need::update("sys/capabilities-self"),
                "needed only by this check, to look up what is allowed",
            );
            report.need(&mut section, &wanted, Verdict::Missing);
            report.close(section);
            return Ok(MayMint::Yes);
        }
        Err(error) => return Err(error),
    };
    for (wanted, verdict) in all.iter().zip(&verdicts) {
        report.need(&mut section, wanted, *verdict);
    }
    report.close(section);
    if let Mint::Role(role) = mint(settings) {
        check_token_role(config, role, check_login, report).await?;
    }
    Ok(match verdicts[0] {
        Verdict::Allowed => MayMint::Yes,
        Verdict::Missing => MayMint::No,
    })
}

/// The command that creates a token role for all grants and platforms.
fn role_command(role: &str, config: &Config) -> String {
    format!(
        "`bao write auth/token/roles/{role} allowed_policies={} renewable=false`",
        every_policy(config).join(",")
    )
}

/// Checks the token role, if the login may read it; the sidecar itself never reads it.
async fn check_token_role(
    config: &Config,
    role: &str,
    check_login: &CheckLogin,
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
    let data = match check_login.vault.read(check_login.token(), &format!("auth/token/roles/{role}")).await {
        Ok(envelope) => envelope.data,
        Err(error) => {
            match error.kind() {
                Kind::Denied => report.print_line(&format!(
                    "token role {role}: not checked: the login may not read it, and does not need to"
                )),
                Kind::Missing => {
                    report.print_line(&format!("token role {role}:"));
                    report.problem(
                        "the token role does not exist",
                        &format!("create it: {}", role_command(role, config)),
                    );
                }
                _ => return Err(error),
            }
            return Ok(());
        }
    };
    let read = data.and_then(|data| serde_json::from_slice::<Role>(data.as_bytes()).ok());
    let Some(read) = read else {
        report.print_line(&format!("token role {role}: its format is not known to this version"));
        return Ok(());
    };
    let mut allowed = read.allowed_policies;
    allowed.extend(read.allowed_policies_glob);
    let allowed = match allowed.is_empty() {
        true => "the login's own policies".to_owned(),
        false => quoted_list(&allowed),
    };
    let orphan = match read.orphan {
        true => "; its tokens are orphans: they outlive the login and have no entity",
        false => "",
    };
    report.print_line(&format!("token role {role}: allows {allowed}{orphan}"));
    if read.token_num_uses > 0 {
        let next = format!("set it to 0: `bao write auth/token/roles/{role} token_num_uses=0`");
        report.problem(
            "its tokens can be used for a limited number of requests only (`token_num_uses`)",
            &next,
        );
    }
    Ok(())
}

/// Reports that Vault did not create a token with these policies.
pub(super) fn report_no_token(
    settings: &Settings,
    policies: &[String],
    error: &VaultError,
    report: &mut Report,
) {
    let policies = quoted_list(policies);
    let next = match mint(settings) {
        Mint::Plain => {
            let within = settings.namespace.as_ref().map(|name| format!(" within the namespace `{name}`"));
            let within = within.unwrap_or_default();
            format!(
                "log in{within} with {policies} too, or set `token-role` in [vault] to a role that allows them"
            )
        }
        Mint::Role(role) => format!("add {policies} to `allowed_policies` of the token role `{role}`"),
    };
    report.problem(&describe_error(error), &next);
}

fn configured_namespace(settings: &Settings) -> &str {
    settings.namespace.as_ref().map_or("", VaultPath::as_str)
}

/// The prefix of paths in a policy of `policy_namespace` for requests in `request_namespace`.
fn policy_prefix(request_namespace: &str, policy_namespace: &str) -> String {
    let rest = match policy_namespace {
        "" => request_namespace,
        outer => {
            request_namespace.strip_prefix(outer).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default()
        }
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
    fn paths_in_a_policy_of_an_outer_namespace_begin_with_the_inner_namespace() {
        assert_eq!(policy_prefix("", ""), "");
        assert_eq!(policy_prefix("team-a", "team-a"), "");
        assert_eq!(policy_prefix("team-a", ""), "team-a/");
        assert_eq!(policy_prefix("team-a/dev", "team-a"), "dev/");
        assert_eq!(policy_prefix("team-abc", "team-a"), "");
    }
}
