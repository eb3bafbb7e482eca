//! Finds what a configuration needs in Vault and this command cannot make: values, roles of engines, trusted issuers.
//!
//! What must stay true: no secret is read; what the operator's token may not look at is left out.

use std::collections::BTreeSet;

use cofferdam_base::text::shell_quoted;
use cofferdam_secrets::VaultOrigin;
use cofferdam_vault::{AuthSettings, Settings, VaultError};
use cofferdam_vault_setup::Operator;
use relay_proto::name::Name;

use super::derive::{Existing, NeededSetup};
use super::jwt_claims::Claims;
use crate::check::vault_needs::TokenUser;
use crate::config::Config;

pub(super) async fn find_remaining(
    config: &Config,
    settings: &Settings,
    operator: &Operator,
    existing: &Existing,
    setup: &mut NeededSetup<'_>,
) -> Result<(), VaultError> {
    let users: Vec<TokenUser<'_>> = TokenUser::all(config).collect();
    let secrets: BTreeSet<&Name> = users.iter().flat_map(|user| user.secrets.keys().copied()).collect();
    for secret in secrets {
        let Some(origin) = config.secrets.get(secret).and_then(|spec| spec.origin.vault()) else { continue };
        let path = origin.path().as_str();
        let serving = existing.engines.serving(path);
        match origin {
            VaultOrigin::Kv { .. } => {
                let has_value = match serving.and_then(|(mount, engine)| engine.kv_version(mount)) {
                    Some(version) => operator.has_value(path, &version).await?,
                    // The engine is made now, if it can be made.
                    None => serving.is_none().then_some(false),
                };
                if has_value == Some(false) {
                    let fields = fields_of(config, secret);
                    let what = format!("secret `{secret}`: `{path}` has no value yet");
                    setup.remain(what, writing_command(path, &fields));
                }
            }
            VaultOrigin::Generated { .. } => {
                if serving.is_none() {
                    continue;
                }
                let Some(role) = role_path(path) else { continue };
                if operator.exists(&role).await? == Some(false) {
                    setup.remain(
                        format!("secret `{secret}`: `{path}` needs the role `{role}`, which does not exist"),
                        format!("bao write {role} …"),
                    );
                }
            }
        }
    }
    find_issuer(settings, operator, existing, setup).await
}

/// A login method for tokens of another issuer has to know that issuer.
async fn find_issuer(
    settings: &Settings,
    operator: &Operator,
    existing: &Existing,
    setup: &mut NeededSetup<'_>,
) -> Result<(), VaultError> {
    let (mount, next) = match &settings.auth {
        AuthSettings::Jwt { mount, jwt_file, .. } => {
            let issuer = Claims::read(jwt_file).map(|claims| claims.issuer().to_owned()).unwrap_or_default();
            let issuer = if issuer.is_empty() { "https://ISSUER".to_owned() } else { issuer };
            (
                mount,
                format!(
                    "bao write auth/{mount}/config oidc_discovery_url={issuer}, or jwks_url=… or jwt_validation_pubkeys=…"
                ),
            )
        }
        AuthSettings::Kubernetes { mount, .. } => {
            (mount, format!("bao write auth/{mount}/config kubernetes_host=https://CLUSTER …"))
        }
        _ => return Ok(()),
    };
    let is_configured = match existing.auth_methods.at(mount.as_str()) {
        Some(_) => operator.is_auth_configured(mount.as_str()).await?,
        None => Some(false),
    };
    if is_configured == Some(false) {
        setup.remain(format!("`auth/{mount}/` has to know who issues the sidecar's token"), next);
    }
    Ok(())
}

/// The role behind a path at which common engines create credentials: `database/roles/readonly` for
/// `database/creds/readonly`.
fn role_path(path: &str) -> Option<String> {
    let (rest, role) = path.rsplit_once('/')?;
    let (mount, action) = rest.rsplit_once('/')?;
    match action {
        "creds" | "issue" | "sign" => Some(format!("{mount}/roles/{role}")),
        "static-creds" => Some(format!("{mount}/static-roles/{role}")),
        _ => None,
    }
}

/// The fields of a secret that the configuration uses.
fn fields_of<'a>(config: &'a Config, secret: &Name) -> BTreeSet<&'a str> {
    let of_servers = config.servers.values().flat_map(|server| {
        server.templates().chain(server.scopes.iter().flat_map(|scope| scope.templates()))
    });
    let of_platforms = config.platforms.values().map(|platform| &platform.api_key);
    let fields = of_servers.chain(of_platforms).flat_map(|template| template.fields());
    fields.filter(|(name, _)| *name == secret).map(|(_, field)| field).collect()
}

/// The command that writes a secret. It reads the value from stdin: an argument would be in the history of the shell, and
/// visible to other processes.
fn writing_command(path: &str, fields: &BTreeSet<&str>) -> String {
    let mut names = fields.iter();
    match (names.next(), names.next()) {
        (Some(field), None) => format!(
            "bao kv put {} {}, which reads the value from stdin: type it, then Ctrl-D twice without Enter",
            shell_quoted(path),
            shell_quoted(&format!("{field}=-"))
        ),
        _ => {
            let fields: Vec<String> = fields.iter().map(|field| format!("{field:?}: \"…\"")).collect();
            format!(
                "bao kv put {} -, which reads JSON from stdin: {{{}}}, then Enter and Ctrl-D",
                shell_quoted(path),
                fields.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_an_argument_of_the_command_that_writes_it() {
        let command = |fields: &[&str]| writing_command("team/a b", &fields.iter().copied().collect());
        assert!(command(&["token"]).starts_with("bao kv put 'team/a b' token=-, which reads"));
        let several = command(&["user", "password"]);
        let json = r#"{"password": "…", "user": "…"}"#;
        assert!(several.starts_with("bao kv put 'team/a b' -, which reads JSON") && several.contains(json));
    }

    #[test]
    fn the_role_behind_a_path_is_known_for_common_engines() {
        assert_eq!(role_path("database/creds/readonly").as_deref(), Some("database/roles/readonly"));
        assert_eq!(role_path("team/pki/issue/agent").as_deref(), Some("team/pki/roles/agent"));
        assert_eq!(role_path("db/static-creds/app").as_deref(), Some("db/static-roles/app"));
        assert_eq!(role_path("identity/oidc/token/agent"), None);
        assert_eq!(role_path("creds/x"), None);
    }
}
