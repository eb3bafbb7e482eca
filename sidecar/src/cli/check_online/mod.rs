//! `check --online`: asks Vault whether it is there, whether the login works, and what the policies lack.
//!
//! | module | what it asks |
//! |---|---|
//! | `visit` | one login for the time of the check, tokens of sixty seconds, and the end of all of them |
//! | `login` | what the sidecar's own token may do, and what its token role allows |
//! | `grants` | for each grant, whether its policies allow what its servers' secrets need |
//! | `report` | what is told: findings as they come, then the lines to add |
//!
//! What must stay true: no secret is read and none is made; what is made here is revoked here, also when the check is
//! interrupted (a login or a token on its way just then is waited for); a user's own token is not revoked, a wrapped
//! secret-id not opened.

mod grants;
mod login;
mod report;
mod visit;

use std::pin::pin;
use std::process::ExitCode;

use super::interruption::interruption;
use crate::config::Config;
use crate::process;
use crate::terminal::failure::{Failure, Sysexit};
use crate::vault::access;
use crate::vault::login::Once;
use crate::vault::{Health, Kind, Problem, Settings, Vault, VaultError};
use report::Report;
use visit::Visit;

pub(super) fn run(config: &Config) -> Result<ExitCode, Failure> {
    let mut report = Report::default();
    let Some(settings) = &config.vault else {
        report.say("vault: none is configured, so there is nothing to ask");
        return Ok(ExitCode::SUCCESS);
    };
    let failed = |error: std::io::Error| Failure::new(Sysexit::Software, error);
    process::harden().map_err(|error| Failure::new(Sysexit::Software, error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let stop = interruption().map_err(failed)?;
        ask(config, settings, &mut report, stop).await?;
        report.finish()
    })
}

async fn ask(
    config: &Config,
    settings: &Settings,
    report: &mut Report,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let mut stop = pin!(stop);
    let vault = access::client(settings).map_err(|error| Failure::new(Sysexit::Configuration, error))?;
    let health = tokio::select! {
        health = vault.health() => health.map_err(failure)?,
        () = &mut stop => return Err(interrupted()),
    };
    let address = settings.address.to_string();
    report.say(&format!("vault {}: {}", address.trim_end_matches('/'), described(&health, settings)));
    if !health.initialized || health.sealed {
        let hint = match health.initialized {
            true => "unseal it, then run this again",
            false => "initialise it, then run this again",
        };
        return Err(Failure::new(Sysexit::Unavailable, "Vault does not serve").hint(hint));
    }
    let Some(visit) = enter(vault, settings, report).await? else { return Ok(()) };
    // Whatever comes of it, what was made is revoked.
    let outcome = {
        let mut looking = pin!(look_around(config, settings, &visit, report));
        tokio::select! {
            outcome = &mut looking => outcome.map_err(failure),
            () = &mut stop => {
                // A token that is being created has to arrive before it can be revoked; after that no more are created.
                let _no_more = tokio::select! {
                    no_more = visit.no_more() => Some(no_more),
                    _ = looking => None,
                };
                Err(interrupted())
            }
        }
    };
    visit.end(report).await;
    outcome
}

fn interrupted() -> Failure {
    Failure::new(Sysexit::Unavailable, "interrupted before every check was done")
}

/// Logs in. None where a login would use up a one-time credential: then Vault cannot be asked.
async fn enter(vault: Vault, settings: &Settings, report: &mut Report) -> Result<Option<Visit>, Failure> {
    let method = settings.auth.method();
    let once = Once::log_in(&vault, access::method(&settings.auth)).await.map_err(|error| {
        let hint = match &error.problem {
            Problem::WrapSpent { .. } => {
                "if a sidecar runs with it, that sidecar has unwrapped it, which is fine until its next start; if none \
                 does, the wrap was used by another party. Either way deliver a new wrap before the next start"
            }
            _ => error.next_step(),
        };
        let code = sysexit(&error);
        Failure::new(code, error).hint(hint)
    })?;
    Ok(match once {
        Once::Ours(token) => Some(Visit::new(vault, token, visit::Owner::Us)),
        Once::TheUsers(token) => Some(Visit::new(vault, token, visit::Owner::User)),
        Once::Wrapped { made_by } => {
            report.say(&format!("login {method}: the secret-id is wrapped, by `{made_by}` as it should be"));
            report.unasked(
                "what the policies allow, for the wrap is good for one login and was not opened; log in another way to ask",
            );
            None
        }
    })
}

async fn look_around(
    config: &Config,
    settings: &Settings,
    visit: &Visit,
    report: &mut Report,
) -> Result<(), VaultError> {
    let may_mint = login::look(config, settings, visit, report).await?;
    for grant in config.grants.values() {
        grants::look(config, settings, grant, visit, may_mint, report).await?;
    }
    Ok(())
}

fn described(health: &Health, settings: &Settings) -> String {
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

fn failure(error: VaultError) -> Failure {
    let (code, hint) = (sysexit(&error), error.next_step());
    Failure::new(code, error).hint(hint)
}

fn sysexit(error: &VaultError) -> Sysexit {
    match error.kind() {
        Kind::Alert | Kind::Denied => Sysexit::NoPermission,
        Kind::Credential => Sysexit::NoInput,
        Kind::Invalid | Kind::Missing => Sysexit::Configuration,
        _ => Sysexit::Unavailable,
    }
}
