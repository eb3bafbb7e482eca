//! `check --online`: checks that Vault can be reached, that the login works, and that the policies suffice.
//!
//! | module | what it is for |
//! |---|---|
//! | `check_login` | one login for the check, tokens that live sixty seconds, and their revocation |
//! | `login` | what the token of the sidecar's login may do, and what its token role allows |
//! | `grants` | for each grant, whether its policies allow what its servers' secrets need; likewise for platforms |
//! | `report` | prints findings, then the policy lines to add |
//!
//! What must stay true: no secret is read or created; every token that the check creates is revoked, also when it is
//! interrupted (a login or a token that is being created is awaited first); a user's own token is not revoked; a wrapped
//! secret-id is not unwrapped.

mod check_login;
mod grants;
mod login;
mod report;

use std::pin::pin;
use std::process::ExitCode;

use cofferdam_process as process;
use cofferdam_vault::login::{SingleLogin, UnwrapRecords};
use cofferdam_vault::{Health, Kind, Problem, Settings, Vault, VaultError};

use super::interruption::interruption;
use super::vault_needs::TokenUser;
use crate::config::Config;
use crate::terminal::failure::{Failure, Sysexit};
use check_login::CheckLogin;
use report::Report;

pub(super) fn run(config: &Config) -> Result<ExitCode, Failure> {
    let mut report = Report::default();
    let Some(settings) = &config.vault else {
        report.print_line("vault: none is configured, so there is nothing to check");
        return Ok(ExitCode::SUCCESS);
    };
    let failed = |error: std::io::Error| Failure::new(Sysexit::OperatingSystem, error);
    process::harden().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let stop = interruption().map_err(failed)?;
        check_vault(config, settings, &mut report, stop).await?;
        report.finish()
    })
}

async fn check_vault(
    config: &Config,
    settings: &Settings,
    report: &mut Report,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let mut stop = pin!(stop);
    let vault =
        cofferdam_vault::client(settings).map_err(|error| Failure::new(Sysexit::Configuration, error))?;
    let health = tokio::select! {
        health = vault.health() => health.map_err(vault_failure)?,
        () = &mut stop => return Err(interrupted_failure()),
    };
    let address = settings.address.to_string();
    report.print_line(&format!(
        "vault {}: {}",
        address.trim_end_matches('/'),
        describe_health(&health, settings)
    ));
    if !health.initialized || health.sealed {
        let hint = match health.initialized {
            true => "unseal Vault, then run this again",
            false => "initialise Vault, then run this again",
        };
        return Err(Failure::new(Sysexit::Unavailable, "Vault does not serve requests").hint(hint));
    }
    let unwraps = UnwrapRecords::in_state(&config.state_dir);
    let Some(check_login) = log_in(vault, settings, &unwraps, report).await? else { return Ok(()) };
    // The tokens are revoked whatever the outcome is.
    let outcome = {
        let mut checks = pin!(check_all(config, settings, &check_login, report));
        tokio::select! {
            outcome = &mut checks => outcome.map_err(vault_failure),
            () = &mut stop => {
                // A token that is being created has to arrive before it can be revoked; after that no more are created.
                let _no_new_tokens = tokio::select! {
                    guard = check_login.stop_creating() => Some(guard),
                    _ = checks => None,
                };
                Err(interrupted_failure())
            }
        }
    };
    check_login.end(report).await;
    outcome
}

fn interrupted_failure() -> Failure {
    Failure::new(Sysexit::Unavailable, "interrupted before every check was done")
}

/// Logs in. `None` if that would use up a wrapped secret-id: then the policies cannot be checked.
async fn log_in(
    vault: Vault,
    settings: &Settings,
    unwraps: &UnwrapRecords,
    report: &mut Report,
) -> Result<Option<CheckLogin>, Failure> {
    let method = settings.auth.method();
    let login = SingleLogin::log_in(&vault, cofferdam_vault::method(&settings.auth), unwraps);
    let login = login.await.map_err(|error| {
        let hint = match &error.problem {
            Problem::WrapSpent { .. } => {
                "if a sidecar is running with it, that sidecar has unwrapped it, and needs a new one at its next start; \
                 otherwise another party has unwrapped it. In both cases deliver a new wrapping token before the next start"
            }
            _ => error.next_step(),
        };
        let code = sysexit(&error);
        Failure::new(code, error).hint(hint)
    })?;
    Ok(match login {
        SingleLogin::SidecarToken(token) => Some(CheckLogin::new(vault, token, check_login::Owner::Check)),
        SingleLogin::UserToken(token) => Some(CheckLogin::new(vault, token, check_login::Owner::User)),
        SingleLogin::Wrapped { creation_path } => {
            report.print_line(&format!(
                "login {method}: the secret-id is wrapped, and was created by `{creation_path}` as expected"
            ));
            report.not_checked(
                "what the policies allow: the wrapping token works once, so it was not unwrapped; use another login to check",
            );
            None
        }
    })
}

async fn check_all(
    config: &Config,
    settings: &Settings,
    check_login: &CheckLogin,
    report: &mut Report,
) -> Result<(), VaultError> {
    let may_mint = login::check(config, settings, check_login, report).await?;
    for user in TokenUser::all(config) {
        grants::check(settings, &user, check_login, may_mint, report).await?;
    }
    Ok(())
}

pub(super) fn describe_health(health: &Health, settings: &Settings) -> String {
    let seal = match (health.initialized, health.sealed) {
        (false, _) => "not initialised",
        (true, true) => "sealed",
        (true, false) => "unsealed",
    };
    let standby = match health.standby {
        true => ", a standby",
        false => "",
    };
    let namespace = settings.namespace.as_ref().map(|name| format!(", namespace `{name}`"));
    let version = if health.version.is_empty() { "unknown" } else { &health.version };
    format!("version {version}, {seal}{standby}{}", namespace.unwrap_or_default())
}

pub(super) fn vault_failure(error: VaultError) -> Failure {
    let (code, hint) = (sysexit(&error), error.next_step());
    Failure::new(code, error).hint(hint)
}

pub(super) fn sysexit(error: &VaultError) -> Sysexit {
    match error.kind() {
        Kind::Alert | Kind::Denied => Sysexit::NoPermission,
        Kind::Credential => Sysexit::NoInput,
        Kind::Invalid | Kind::Missing => Sysexit::Configuration,
        _ => Sysexit::Unavailable,
    }
}
