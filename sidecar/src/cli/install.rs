//! `install`: resolves, locks and installs the packages of servers.
//!
//! What must stay true: the lock changes only after a confirmation or `--yes`, and only once everything that it says is installed;
//! an interruption at any time leaves the lock and all installed packages as they were.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use cofferdam_packages::{
    Difference, InstallError, Installer, LockError, LockFile, LockedServer, PackageKind, PackageSource,
    Problem, Resolved, Store, Surroundings, lock_path,
};
use cofferdam_process as process;

use super::arguments::InstallArguments;
use super::commands::load;
use crate::check::findings::count;
use crate::config::Config;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::print_line;
use crate::terminal::progress::{Output, Progress};
use crate::terminal::prompt::{self, Answer};

/// What is to be done for one server.
struct Step<'a> {
    source: &'a PackageSource,
    locked: LockedServer,
    /// What changes in the lock.
    difference: Difference,
    /// Packages that want to run a program while they are installed.
    with_scripts: Vec<String>,
}

pub(super) fn run(file: Option<&Path>, arguments: &InstallArguments) -> Result<ExitCode, Failure> {
    let (path, config) = load(file)?;
    let sources = wanted(&config, arguments.server.as_deref())?;
    let lock_file = lock_path(&std::path::absolute(&path).unwrap_or_else(|_| path.clone()));
    let lock = LockFile::read(&lock_file).map_err(lock_failure)?;
    let gone = match arguments.server {
        Some(_) => Vec::new(),
        None => without_package(&config, &lock),
    };
    if sources.is_empty() && gone.is_empty() {
        print_line("no server has a `package`, so there is nothing to install");
        return Ok(ExitCode::SUCCESS);
    }
    let failed = |error: std::io::Error| Failure::new(Sysexit::OperatingSystem, error);
    process::harden().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let progress = Progress::new("cofferdam install", Output::Lines);
    let installer = runtime.block_on(open(&path, &config, &sources)).map_err(install_failure)?;
    let steps = runtime.block_on(plan(&installer, &sources, &lock, arguments, &progress));
    progress.clear();
    let steps = steps?;
    print_changes(&steps, &gone, &lock);
    if arguments.diff {
        return Ok(ExitCode::SUCCESS);
    }
    let changes_lock = !gone.is_empty() || steps.iter().any(|step| !step.difference.is_empty());
    if changes_lock && !arguments.yes {
        confirm()?;
    }
    let installed = runtime.block_on(install(&installer, &steps, &progress));
    progress.clear();
    let installed = installed?;
    if changes_lock {
        let mut lock = lock;
        lock.servers.retain(|server, _| !gone.contains(server));
        lock.servers.extend(steps.iter().map(|step| (step.source.server.clone(), step.locked.clone())));
        lock.write(&lock_file).map_err(lock_failure)?;
    }
    for step in &steps {
        installer.ready(step.source).map_err(|error| Failure::new(Sysexit::Configuration, error))?;
    }
    let lock = if changes_lock { format!("; wrote {}", lock_file.display()) } else { String::new() };
    print_line(&format!("{} installed, {} unchanged{lock}", installed, steps.len() - installed));
    Ok(ExitCode::SUCCESS)
}

/// The packages of all servers, or of this one.
fn wanted<'a>(config: &'a Config, server: Option<&str>) -> Result<Vec<&'a PackageSource>, Failure> {
    let Some(server) = server else {
        return Ok(config.servers.values().filter_map(|spec| spec.kind.package()).collect());
    };
    let Some((_, spec)) = config.servers.iter().find(|(name, _)| name.as_str() == server) else {
        return Err(Failure::new(
            Sysexit::NoInput,
            format!("there is no server `{server}` in the configuration"),
        ));
    };
    match spec.kind.package() {
        Some(source) => Ok(vec![source]),
        None => Err(Failure::new(Sysexit::Usage, format!("`servers.{server}` has no `package`"))
            .hint("only packages are installed; a server with `command` or `url` needs nothing")),
    }
}

/// The servers of the lock that have no package any more.
fn without_package(config: &Config, lock: &LockFile) -> Vec<String> {
    let has_package = |server: &str| {
        config.servers.iter().any(|(name, spec)| name.as_str() == server && spec.kind.package().is_some())
    };
    lock.servers.keys().filter(|server| !has_package(server)).cloned().collect()
}

async fn open(path: &Path, config: &Config, sources: &[&PackageSource]) -> Result<Installer, InstallError> {
    let private = config.private_paths(path).into_iter().map(|(_, path)| path).collect();
    let kinds: BTreeSet<PackageKind> = sources.iter().map(|source| source.spec.kind()).collect();
    let kinds: Vec<PackageKind> = kinds.into_iter().collect();
    let variable = |name: &str| std::env::var_os(name);
    let store = Store::in_state(&config.state_dir);
    Installer::open(store, private, &kinds, Surroundings { variable: &variable }).await
}

/// Takes from the lock what it has, and resolves the rest.
async fn plan<'a>(
    installer: &Installer,
    sources: &[&'a PackageSource],
    lock: &LockFile,
    arguments: &InstallArguments,
    progress: &Progress,
) -> Result<Vec<Step<'a>>, Failure> {
    let mut steps = Vec::new();
    for &source in sources {
        let old = lock.servers.get(&source.server);
        let is_current = |locked: &&LockedServer| {
            source.is_locked_by(locked) && locked.platform == installer.platform(source.spec.kind())
        };
        let Resolved { locked, with_scripts } = match old.filter(is_current) {
            Some(locked) if !arguments.update => {
                Resolved { locked: locked.clone(), with_scripts: Vec::new() }
            }
            _ => {
                progress.step(&format!("{}: resolving {}", source.server, source.spec));
                installer
                    .resolve(&source.spec, source.install_scripts)
                    .await
                    .map_err(|error| of_server(source, error))?
            }
        };
        let difference = Difference::between(old, &locked);
        steps.push(Step { source, locked, difference, with_scripts });
    }
    Ok(steps)
}

fn print_changes(steps: &[Step<'_>], gone: &[String], lock: &LockFile) {
    for Step { source, locked, difference, with_scripts } in steps {
        let packages = count(locked.packages.len(), "package");
        let state = if difference.is_empty() { "as locked" } else { "changes the lock" };
        print_line(&format!("{}: {}, {packages}, {state}", source.server, source.spec));
        for change in &difference.changes {
            print_line(&format!("  {change}"));
        }
        if !with_scripts.is_empty() {
            let what = match source.install_scripts {
                cofferdam_packages::InstallScripts::Allow => "run install scripts, without a network",
                cofferdam_packages::InstallScripts::Deny => "have install scripts, which are not run",
            };
            print_line(&format!("  these {what}: {}", with_scripts.join(", ")));
        }
    }
    for server in gone {
        let package = lock.servers.get(server).map(|locked| locked.package.as_str()).unwrap_or_default();
        print_line(&format!("{server}: {package} leaves the lock, as the server has no `package` any more"));
    }
}

fn confirm() -> Result<(), Failure> {
    match prompt::confirm("Change the lock and install this?")
        .map_err(|error| Failure::new(Sysexit::Io, error))?
    {
        Some(Answer::Yes) => Ok(()),
        Some(Answer::No) => Err(Failure::new(Sysexit::Unavailable, "not confirmed: nothing was changed")),
        None => {
            let what = "nothing was changed: there is no terminal to ask for a confirmation";
            Err(Failure::new(Sysexit::Usage, what).hint("give --yes, or --diff to see the changes only"))
        }
    }
}

/// Installs what is not installed, and returns how many were.
async fn install(installer: &Installer, steps: &[Step<'_>], progress: &Progress) -> Result<usize, Failure> {
    let mut installed = 0;
    for Step { source, locked, .. } in steps {
        if installer.is_installed(locked) {
            continue;
        }
        progress.step(&format!("{}: installing {}", source.server, source.spec));
        installer.install(source, locked).await.map_err(|error| of_server(source, error))?;
        installed += 1;
    }
    Ok(installed)
}

fn of_server(source: &PackageSource, error: InstallError) -> Failure {
    let (code, hint) = (exit_code(&error), error.hint());
    let server = source.server.clone();
    Failure::new(code, ServerError { server, source: error }).hint(hint)
}

/// Which server an error is about.
#[derive(Debug, thiserror::Error)]
#[error("the package of `servers.{server}` is not installed")]
struct ServerError {
    server: String,
    source: InstallError,
}

fn install_failure(error: InstallError) -> Failure {
    let (code, hint) = (exit_code(&error), error.hint());
    Failure::new(code, error).hint(hint)
}

fn lock_failure(error: LockError) -> Failure {
    let code = match &error {
        LockError::Damaged { .. } | LockError::Digest { .. } | LockError::Version { .. } => Sysexit::Data,
        LockError::Read { .. } => Sysexit::NoInput,
        LockError::Write { .. } => Sysexit::CannotCreate,
    };
    let hint = error.hint();
    Failure::new(code, error).hint(hint)
}

fn exit_code(error: &InstallError) -> Sysexit {
    match error {
        InstallError::Failed { problem: Problem::OtherContent, .. }
        | InstallError::Report(_)
        | InstallError::Tree(_)
        | InstallError::Lock(_) => Sysexit::Data,
        InstallError::Failed { problem: Problem::Unauthorized, .. } => Sysexit::NoPermission,
        InstallError::Failed { .. } | InstallError::Confined { .. } | InstallError::Tool(_) => {
            Sysexit::Unavailable
        }
        InstallError::Platform { .. } | InstallError::Program(_) | InstallError::Settings(_) => {
            Sysexit::Configuration
        }
        InstallError::Files(_) | InstallError::Store(_) => Sysexit::CannotCreate,
    }
}
