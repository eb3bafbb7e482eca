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

use crate::check::vault_needs::TokenUser;
use crate::config::Config;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::interruption;
use check_login::CheckLogin;
use report::Report;
pub(crate) use report::{Clocks, OnlineFinding};

pub(crate) fn run(config: &Config) -> Result<ExitCode, Failure> {
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
        check_vault(config, settings, &mut report, stop).await.map_err(|stopped| stopped.failure)?;
        report.finish()
    })
}

/// What [`collect`] found.
pub(crate) struct Collected {
    pub(crate) found: Vec<OnlineFinding>,
    /// `None` if Vault did not tell its time.
    pub(crate) clocks: Option<Clocks>,
    /// Why not everything was checked.
    pub(crate) stopped: Option<Stopped>,
}

/// The check could not go on.
pub(crate) struct Stopped {
    pub(crate) stage: Stage,
    pub(crate) failure: Failure,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// Reaching Vault.
    Connect,
    /// Vault can be reached and serves no requests.
    Sealed,
    Login,
    /// Comparing the policies with what is needed.
    Policies,
}

/// Checks Vault without printing anything, until `stop` resolves.
pub(crate) async fn collect(
    config: &Config,
    settings: &Settings,
    stop: impl Future<Output = ()>,
) -> Collected {
    let mut report = Report::collecting();
    let stopped = check_vault(config, settings, &mut report, stop).await.err();
    Collected { found: report.found, clocks: report.clocks, stopped }
}

async fn check_vault(
    config: &Config,
    settings: &Settings,
    report: &mut Report,
    stop: impl Future<Output = ()>,
) -> Result<(), Stopped> {
    let at = |stage: Stage| move |failure: Failure| Stopped { stage, failure };
    let mut stop = pin!(stop);
    let vault = cofferdam_vault::client(settings)
        .map_err(|error| at(Stage::Connect)(Failure::new(Sysexit::Configuration, error)))?;
    let health = tokio::select! {
        health = vault.health() => health.map_err(vault_failure).map_err(at(Stage::Connect))?,
        () = &mut stop => return Err(at(Stage::Connect)(interrupted_failure())),
    };
    report.clocks = health.date.map(|vault| Clocks { vault, host: cofferdam_base::clock::now() });
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
        let failure = Failure::new(Sysexit::Unavailable, "Vault does not serve requests").hint(hint);
        return Err(at(Stage::Sealed)(failure));
    }
    let unwraps = UnwrapRecords::in_state(&config.state_dir);
    let login = log_in(vault, settings, &unwraps, report).await.map_err(at(Stage::Login))?;
    let Some(check_login) = login else { return Ok(()) };
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
    outcome.map_err(at(Stage::Policies))
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

pub(crate) fn describe_health(health: &Health, settings: &Settings) -> String {
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

pub(crate) fn vault_failure(error: VaultError) -> Failure {
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
