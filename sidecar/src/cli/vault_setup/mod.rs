//! `vault setup`: makes in Vault what the configuration needs, with the operator's own token; `--remove` undoes it.
//!
//! | module | what it is for |
//! |---|---|
//! | `operator_token` | where the operator's token comes from |
//! | `derive`, `derive_login` | what must exist, from the configuration |
//! | `jwt_claims` | the claims that a role for JSON Web Tokens is bound to |
//! | `inspect` | what is missing in Vault and cannot be made here |
//! | `survey` | compares with what exists; looks up the permissions of the operator's token |
//! | `show` | prints the plan |
//! | `removal` | `--remove` |
//!
//! What must stay true: nothing is changed before the whole plan was shown and confirmed, nor if one permission is missing;
//! no token, role-id or secret-id is printed.

mod derive;
mod derive_login;
mod inspect;
mod jwt_claims;
pub(super) mod operator_token;
mod removal;
mod show;
mod survey;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use cofferdam_process as process;
use cofferdam_vault::{Kind, Settings};
use cofferdam_vault_setup::{
    ApplyError, Operator, Record, RecordError, SetupLock, SetupText, apply_credentials, apply_step, bao_text,
    terraform_text,
};

use super::arguments::{TextLanguage, VaultSetupArguments};
use super::commands::load;
use crate::check::online::{self, describe_health, vault_failure};
use crate::check::vault_needs::{every_policy, quoted_list};
use crate::config::Config;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::print_line;
use crate::terminal::prompt;
use derive::{Existing, derive};
use survey::Survey;

/// The name of the sidecar's policy and AppRole, unless the operator chooses another.
const DEFAULT_NAME: &str = "cofferdam";
const AGAIN: &str = "run this again: it continues where it stopped";

/// What to do after Vault was changed, or not.
enum Next {
    CheckOnline,
    Exit(ExitCode),
}

pub(super) fn run(file: Option<&Path>, arguments: &VaultSetupArguments) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let Some(settings) = &config.vault else {
        let what = "the configuration has no [vault], so there is nothing to set up";
        return Err(Failure::new(Sysexit::Configuration, what).hint("add `address` and `auth` in [vault]"));
    };
    let failed = |error: std::io::Error| Failure::new(Sysexit::OperatingSystem, error);
    process::harden().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let address = settings.address.to_string();
    let namespace = settings.namespace.as_ref().map(ToString::to_string).unwrap_or_default();
    if let Some(language) = arguments.print {
        let record = Record::open(&config.state_dir, &address, &namespace).ok();
        let recorded = record.as_ref().and_then(Record::name);
        return print_text(&config, settings, setup_name(arguments, recorded, &config)?, language);
    }
    // A dry run creates no file either.
    let _lock = match arguments.dry_run {
        true => None,
        false => Some(SetupLock::take(&config.state_dir).map_err(record_failure)?),
    };
    let mut record = Record::open(&config.state_dir, &address, &namespace).map_err(record_failure)?;
    let name = setup_name(arguments, record.name(), &config)?.to_owned();
    record.set_name(&name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let next = runtime.block_on(async {
        let operator = connect(settings).await?;
        match arguments.remove {
            true => removal::run(arguments, &operator, &mut record).await.map(Next::Exit),
            false => set_up(&config, settings, arguments, &name, &operator, &mut record).await,
        }
    })?;
    match next {
        Next::Exit(code) => Ok(code),
        Next::CheckOnline => {
            print_line("\nchecking as `cofferdam check --online` does:");
            online::run(&config)
        }
    }
}

/// Checks that Vault serves requests and that the operator's token is valid.
async fn connect(settings: &Settings) -> Result<Operator, Failure> {
    let vault =
        cofferdam_vault::client(settings).map_err(|error| Failure::new(Sysexit::Configuration, error))?;
    let health = vault.health().await.map_err(vault_failure)?;
    let address = settings.address.to_string();
    print_line(&format!("vault {}: {}", address.trim_end_matches('/'), describe_health(&health, settings)));
    if !health.initialized || health.sealed {
        let hint = match health.initialized {
            true => "unseal Vault, then run this again",
            false => "initialise Vault, then run this again",
        };
        return Err(Failure::new(Sysexit::Unavailable, "Vault does not serve requests").hint(hint));
    }
    let operator_token::OperatorToken { token, source } = operator_token::read(settings)?;
    match vault.lookup_self(&token).await {
        Ok(info) => print_line(&format!("your token: from {source}, with {}", quoted_list(&info.policies))),
        Err(error) if error.kind() == Kind::Denied => {
            let what = format!("Vault does not accept the token from {source}");
            let hint = "it has expired, is for another Vault or namespace, or may not look itself up (`auth/token/lookup-self`): log in again";
            return Err(Failure::new(Sysexit::NoPermission, what).hint(hint));
        }
        Err(error) => return Err(vault_failure(error)),
    }
    Ok(Operator { vault, token })
}

async fn set_up(
    config: &Config,
    settings: &Settings,
    arguments: &VaultSetupArguments,
    name: &str,
    operator: &Operator,
    record: &mut Record,
) -> Result<Next, Failure> {
    let Survey { steps, unknown, credentials, missing, setup } =
        survey::survey(config, settings, name, operator, record).await.map_err(vault_failure)?;
    print_line("");
    steps.iter().for_each(show::show_step);
    for id in &unknown {
        print_line(&format!("{id}: cannot be read"));
    }
    if let Some(plan) = &credentials {
        show::show_credentials(plan);
    }
    show::show_remaining(&setup);
    if !missing.is_empty() {
        show::show_missing(&missing);
        let what = format!("nothing was changed: your token lacks {} permissions", missing.len());
        let hint = "add the lines to a policy of your token, use another token, or give `--print bao` to an administrator";
        return Err(Failure::new(Sysexit::NoPermission, what).hint(hint));
    }
    let changes = steps.iter().filter(|step| step.changes_vault()).count();
    let writes_files = credentials.as_ref().is_some_and(|plan| plan.writes_files());
    if changes == 0 && !writes_files {
        print_line("\nnothing to do");
        return Ok(if arguments.dry_run { Next::Exit(ExitCode::SUCCESS) } else { Next::CheckOnline });
    }
    if arguments.dry_run {
        print_line("\nnothing was changed: this is a dry run");
        return Ok(Next::Exit(ExitCode::SUCCESS));
    }
    if !arguments.yes {
        prompt::confirmed("Make these changes?")?;
    }
    for step in steps.iter().filter(|step| step.changes_vault()) {
        apply_step(step, operator, record).await.map_err(apply_failure)?;
        print_line(&format!("made: {}", step.object.id()));
    }
    if let Some(plan) = &credentials {
        let written = apply_credentials(plan, operator, record).await.map_err(apply_failure)?;
        for file in &written {
            print_line(&format!("written: {}", file.display()));
        }
        if let Some(owner) = other_owner(&config.state_dir).filter(|_| !written.is_empty()) {
            print_line(&format!(
                "note: `state-dir` belongs to another user, who has to read these files: `chown {owner} FILE`"
            ));
        }
    }
    Ok(Next::CheckOnline)
}

/// The owner of the state directory, if it is not the user who runs this.
fn other_owner(state_dir: &Path) -> Option<u32> {
    let owner = std::fs::metadata(state_dir).ok()?.uid();
    (owner != nix::unistd::geteuid().as_raw()).then_some(owner)
}

/// Prints the set-up for a Vault of which nothing is known.
fn print_text(
    config: &Config,
    settings: &Settings,
    name: &str,
    language: TextLanguage,
) -> Result<ExitCode, Failure> {
    let setup = derive(config, settings, name, &Existing::default());
    let remaining: Vec<String> = setup
        .remaining
        .iter()
        .map(|remaining| format!("{}. Next: {}", remaining.what, remaining.next))
        .chain(setup.notes.iter().cloned())
        .collect();
    let address = settings.address.to_string();
    let namespace = settings.namespace.as_ref().map(ToString::to_string);
    let text = SetupText {
        address: address.trim_end_matches('/'),
        namespace: namespace.as_deref(),
        objects: &setup.objects,
        files: setup.files,
        remaining: &remaining,
    };
    let text = match language {
        TextLanguage::Bao => bao_text(&text),
        TextLanguage::Terraform => terraform_text(&text),
    };
    print_line(text.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// The name of the sidecar's policy and AppRole.
fn setup_name<'a>(
    arguments: &'a VaultSetupArguments,
    recorded: Option<&'a str>,
    config: &Config,
) -> Result<&'a str, Failure> {
    let name = arguments.name.as_deref().or(recorded).unwrap_or(DEFAULT_NAME);
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if !(1..=128).contains(&name.len()) || !name.bytes().all(is_allowed) || name == "root" {
        let what = "the name must have 1 to 128 of a-z, 0-9, `-`, `_` and `.`, and must not be `root`";
        return Err(Failure::new(Sysexit::Usage, what));
    }
    if let Some(recorded) = recorded.filter(|recorded| *recorded != name) {
        let what = format!("this configuration was set up with the name `{recorded}`");
        let hint = "leave --name out, or undo that set-up first: `cofferdam vault setup --remove`";
        return Err(Failure::new(Sysexit::Usage, what).hint(hint));
    }
    if every_policy(config).contains(&name) {
        let what = format!(
            "`{name}` is a policy of sessions (`vault-policies`), and would also be the policy of the sidecar's login"
        );
        return Err(Failure::new(Sysexit::Usage, what).hint("choose another name for the login: --name NAME"));
    }
    Ok(name)
}

fn apply_failure(error: ApplyError) -> Failure {
    match error {
        ApplyError::Vault(error) => {
            let hint = format!("{}; then {AGAIN}", error.next_step());
            vault_failure(error).hint(hint)
        }
        ApplyError::Record(error) => record_failure(error),
        ApplyError::ChangedMeanwhile { .. } => {
            Failure::new(Sysexit::Unavailable, error).hint("run this again, and look at the difference")
        }
        ApplyError::File { .. } => {
            let code = crate::terminal::failure::creation_exit_code(&error);
            Failure::new(code, error).hint(format!("make the directory writable for this user, then {AGAIN}"))
        }
    }
}

fn record_failure(error: RecordError) -> Failure {
    let (code, hint) = match &error {
        RecordError::Busy => (Sysexit::Unavailable, "wait until it has ended, then run this again"),
        RecordError::OtherVault { .. } => (
            Sysexit::Configuration,
            "undo that set-up with the configuration that it was made with (`cofferdam vault setup --remove`), or move the record away if that Vault is gone",
        ),
        RecordError::Newer { .. } => {
            (Sysexit::Data, "run this with the newer version, which knows what it has made and can remove it")
        }
        RecordError::Read { .. } => (Sysexit::NoInput, "run this as the sidecar's user, or restore the file"),
        RecordError::Write { .. } => (
            crate::terminal::failure::creation_exit_code(&error),
            "run this as the sidecar's user, and make `state-dir` writable",
        ),
    };
    Failure::new(code, error).hint(hint)
}
