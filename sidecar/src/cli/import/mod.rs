//! `import`: moves MCP servers and their secrets from harnesses' settings to the sidecar.
//!
//! | module | what it holds |
//! |---|---|
//! | `gather` | which files, and what is in them |
//! | `projects` | projects in which `run` would refuse the new configuration |
//! | `questions` | asks about each secret |
//! | `show` | prints what was found and what will be done |
//! | `undo` | `--undo` and `--forget` |
//! | `vault_secrets` | secrets in Vault |
//!
//! What must stay true: nothing is written before everything was shown and confirmed, nor if the new configuration would not
//! pass `cofferdam check`; no value of a secret is printed.

mod gather;
mod projects;
mod questions;
mod show;
mod undo;
mod vault_secrets;

use std::error::Error;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cofferdam_import::{
    Application, ApplyError, ApplyEvent, Destination, FileState, FileVersion, FoundServer, Plan, PlanError,
    PlanInput, SettingsChange, ShimProgram, Store, StoreError, apply, plan, read_version,
};
use cofferdam_process as process;

use super::arguments::{DestinationArgument, ImportArguments};
use crate::config::{self, Config, Environment};
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};
use crate::terminal::print_line;
use crate::terminal::prompt;
use gather::ReadSettings;
use vault_secrets::{Secrets, WithoutToken};

const AGAIN: &str = "run this again: it continues where it stopped";

/// The configuration before the import.
struct Before {
    path: PathBuf,
    text: Option<String>,
    version: Option<FileVersion>,
    config: Option<Config>,
}

pub(super) fn run(file: Option<&Path>, arguments: &ImportArguments) -> Result<ExitCode, Failure> {
    process::harden().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let path = configuration_path(file)?;
    let store = Store::beside(&path);
    if arguments.undo {
        return undo::undo(&store, &arguments.files);
    }
    if arguments.forget {
        return undo::forget(&store, arguments);
    }
    if !arguments.yes && !arguments.dry_run && !io::stdin().is_terminal() {
        let what = "nothing was changed: there is no terminal to ask at";
        return Err(
            Failure::new(Sysexit::Usage, what).hint("give --yes, or --dry-run to see the changes only")
        );
    }
    let before = read_configuration(path)?;
    let mut settings = gather::gather(&arguments.files, &before)?;
    settings.iter().for_each(show::show_settings);
    if settings.iter().all(|settings| settings.settings.servers().next().is_none()) {
        print_line("\nnothing to import");
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.yes && !arguments.dry_run {
        questions::ask(&mut settings)?;
    }
    let mut secrets = secrets(arguments, &before, &store)?;
    let planned = make_plan(arguments, &before, &settings, &secrets)?;
    let config = check_result(&planned, &before)?;
    let refusing = projects::refusing(&settings, &config, &before.path);
    let (changes, kept) = rewritings(arguments, &settings, &planned)?;
    show::show_plan(&before.path, before.text.as_deref().unwrap_or_default(), &planned, &settings);
    if let Some(grant) = arguments.grant.as_ref().filter(|grant| !planned.grants_before.contains(grant)) {
        show::show_new_grant(grant, &planned.grants_before);
    }
    show::show_changes(&changes, &kept, &planned);
    refusing.iter().for_each(show::show_refusing);
    let is_done = changes.is_empty()
        && planned.secrets.is_empty()
        && before.text.as_ref() == Some(&planned.configuration);
    if is_done {
        print_line("\nnothing to do");
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.dry_run {
        print_line("\nnothing was changed: this is a dry run");
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.yes {
        prompt::confirmed("Make these changes?")?;
    }
    let read: Vec<(&Path, FileVersion)> =
        settings.iter().map(|read| (read.settings.path.as_path(), read.version.clone())).collect();
    let application = Application {
        store: &store,
        plan: &planned,
        configuration: &before.path,
        configuration_version: before.version.as_ref(),
        read: &read,
        changes: &changes,
    };
    apply(&application, &mut secrets, &mut print_event).map_err(apply_failure)?;
    let named = file.is_some().then_some(before.path.as_path());
    show::show_next(named, &planned, &changes, &refusing);
    Ok(ExitCode::SUCCESS)
}

/// The file that is extended, or created.
fn configuration_path(file: Option<&Path>) -> Result<PathBuf, Failure> {
    let environment = Environment::of_process();
    let path = match config::find(file, &environment) {
        Ok(path) => path,
        Err(error) => environment
            .user_configuration()
            .ok_or_else(|| Failure::new(Sysexit::NoInput, error).hint("name a new one with `-c FILE`"))?,
    };
    let path = std::path::absolute(&path).map_err(|error| Failure::new(Sysexit::NoInput, error))?;
    // A configuration that is managed as a symbolic link stays one.
    Ok(path.canonicalize().unwrap_or(path))
}

fn read_configuration(path: PathBuf) -> Result<Before, Failure> {
    let unreadable = |error: Box<dyn Error>| {
        let what = format!("cannot read the configuration `{}`: {error}", path.display());
        Failure::new(Sysexit::NoInput, what).hint("name another file with `-c FILE`")
    };
    match read_version(&path).map_err(|error| unreadable(error.into()))? {
        FileState::Absent => Ok(Before { path, text: None, version: None, config: None }),
        FileState::Present { version, bytes } => {
            let text = String::from_utf8(bytes.to_vec()).map_err(|_| unreadable("it is not UTF-8".into()))?;
            let config = config::check_text(&text, &path).map_err(|problems| {
                Failure::new(Sysexit::Configuration, problems)
                    .hint("nothing was changed: correct the configuration first")
            })?;
            Ok(Before { path, text: Some(text), version: Some(version), config: Some(config) })
        }
    }
}

fn secrets(arguments: &ImportArguments, before: &Before, store: &Store) -> Result<Secrets, Failure> {
    match arguments.to {
        DestinationArgument::File => Ok(Secrets::in_files(store)),
        DestinationArgument::Vault => {
            let settings = before.config.as_ref().and_then(|config| config.vault.as_ref());
            let settings = settings.ok_or_else(|| {
                Failure::new(Sysexit::Configuration, "the configuration has no [vault] to store secrets in")
                    .hint("add `address` and `auth` in [vault] first, or leave out `--to vault`")
            })?;
            let without_token = match (arguments.dry_run, arguments.yes) {
                (true, _) => WithoutToken::GoOn,
                (_, true) => WithoutToken::Refuse,
                _ => WithoutToken::Ask,
            };
            Secrets::in_vault(store, settings, without_token)
        }
    }
}

fn make_plan(
    arguments: &ImportArguments,
    before: &Before,
    settings: &[ReadSettings],
    secrets: &Secrets,
) -> Result<Plan, Failure> {
    let destination = match arguments.to {
        DestinationArgument::File => Destination::Files,
        DestinationArgument::Vault => Destination::Vault { prefix: arguments.kv_path.clone() },
    };
    let input = PlanInput {
        configuration: before.text.as_deref(),
        destination: &destination,
        grant: arguments.grant.as_deref(),
        stored: secrets,
    };
    let servers: Vec<(&Path, &FoundServer)> = settings
        .iter()
        .flat_map(|read| read.settings.servers().map(|server| (read.settings.path.as_path(), server)))
        .collect();
    plan(&input, &servers).map_err(|error| match &error {
        PlanError::SeveralGrants(_) => {
            Failure::new(Sysexit::Usage, error).hint("choose the one that gets the servers with --grant NAME")
        }
        PlanError::Held { .. } => {
            let hint = "check the path of `--kv-path` and the permissions of your token; `bao secrets enable -path=PATH kv-v2` makes an engine";
            Failure::new(Sysexit::Unavailable, error).hint(hint)
        }
        PlanError::Configuration { .. } | PlanError::Form(_) => Failure::new(Sysexit::Configuration, error)
            .hint("nothing was changed: write it as tables, such as [servers.NAME]"),
    })
}

/// The new configuration is checked before anything is written.
fn check_result(planned: &Plan, before: &Before) -> Result<Config, Failure> {
    match config::check_text(&planned.configuration, &before.path) {
        Ok(config) => Ok(config),
        Err(problems) => {
            let what = format!("nothing was changed: the configuration would not be valid\n{problems}");
            let hint = "change what is named there in the settings, or import the other files alone";
            Err(Failure::new(Sysexit::Data, what).hint(hint))
        }
    }
}

/// The settings files that are rewritten, and those that cannot be, each with the reason.
fn rewritings(
    arguments: &ImportArguments,
    settings: &[ReadSettings],
    planned: &Plan,
) -> Result<(Vec<SettingsChange>, Vec<String>), Failure> {
    let (mut changes, mut kept) = (Vec::new(), Vec::new());
    if !arguments.rewrite {
        return Ok((changes, kept));
    }
    let shim = ShimProgram { program: &arguments.shim.shim, relay: arguments.shim.relay.as_deref() };
    let mut names = planned.servers.iter().map(|server| server.name.as_str());
    for ReadSettings { settings, version, bytes } in settings {
        let names: Vec<&str> = names.by_ref().take(settings.servers().count()).collect();
        let path = &settings.path;
        if names.is_empty() {
            continue;
        }
        if !settings.can_be_rewritten() {
            kept.push(format!(
                "{}: not rewritten: it is an argument of E2B's SDKs; leave it out there and use `cofferdam attach e2b`",
                path.display()
            ));
            continue;
        }
        let (rewritten, entries) = settings.rewritten(&names, shim).map_err(|error| {
            let what = format!("nothing was changed: `{}` cannot be rewritten: {error}", path.display());
            Failure::new(Sysexit::Data, what)
                .hint("import it without --rewrite, and change its entries by hand")
        })?;
        changes.push(SettingsChange {
            path: path.clone(),
            before: version.clone(),
            original: bytes.clone(),
            rewritten,
            entries,
        });
    }
    Ok((changes, kept))
}

fn print_event(event: ApplyEvent<'_>) {
    print_line(&match event {
        ApplyEvent::BackedUp(path) => format!("backed up: {}", path.display()),
        ApplyEvent::ConfigurationWritten(path) => format!("written: {}", path.display()),
        ApplyEvent::Rewritten(path) => format!("rewritten: {}", path.display()),
        ApplyEvent::Stored(place) => format!("stored: {place}"),
    });
}

fn apply_failure(error: ApplyError) -> Failure {
    let code = creation_exit_code(&error);
    match error {
        ApplyError::Changed(_) => Failure::new(Sysexit::Unavailable, error)
            .hint("that file was left as it is; run this again with its new content"),
        ApplyError::NotWritable(_) => Failure::new(Sysexit::NoPermission, error)
            .hint("nothing was changed: run this as the owner of the files"),
        ApplyError::Vault { .. } => Failure::new(Sysexit::Unavailable, error).hint(AGAIN),
        ApplyError::Store(error @ (StoreError::Busy { .. } | StoreError::Newer { .. })) => {
            undo::store_failure(error)
        }
        ApplyError::Replace { .. } | ApplyError::Store(_) => {
            let hint = format!("nothing is lost: make room or the directory writable, then {AGAIN}");
            Failure::new(code, error).hint(hint)
        }
    }
}
