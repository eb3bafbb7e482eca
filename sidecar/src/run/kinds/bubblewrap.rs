//! Bubblewrap: new namespaces, the host's system directories mounted read-only, and otherwise an empty root directory.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::{CommandLine, Network, Orphans, Prepared, SignalTarget, Stdio, Trial, with_terminal};
use crate::run::mount::{self, Access, Mount, SystemEntry};
use crate::run::plan::Plan;

pub(super) fn prepare(plan: &Plan, program: PathBuf, stdio: Stdio) -> Prepared {
    let command_line = |command: Vec<OsString>, stdio| {
        let mut arguments = arguments(plan, stdio);
        arguments.extend(command);
        CommandLine { program: program.clone(), arguments, environment: plan.environment.clone() }
    };
    let trial = Trial { command: command_line(plan.trial_command(), Stdio::Inherited), removal: None };
    Prepared {
        command: command_line(with_terminal(stdio, &plan.command), stdio),
        files: Vec::new(),
        image: None,
        trial: Some(trial),
        left: None,
        signals: SignalTarget::GroupsInside,
        orphans: Orphans::Kill,
        start_check: None,
        advice: None,
    }
}

fn arguments(plan: &Plan, stdio: Stdio) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |options: &[&OsStr]| arguments.extend(options.iter().map(|option| (*option).to_owned()));
    add(&["--unshare-all".as_ref(), "--die-with-parent".as_ref()]);
    if plan.network == Network::Host {
        add(&["--share-net".as_ref()]);
    }
    if stdio == Stdio::Inherited {
        // At a terminal `setsid --ctty` starts the new session, and makes that terminal its controlling terminal.
        add(&["--new-session".as_ref()]);
    }
    if nix::unistd::geteuid().is_root() {
        add(&["--cap-drop".as_ref(), "ALL".as_ref()]);
    }
    add(&["--hostname".as_ref(), plan.name.as_ref()]);
    add(&["--proc".as_ref(), "/proc".as_ref(), "--dev".as_ref(), "/dev".as_ref()]);
    add(&["--tmpfs".as_ref(), "/tmp".as_ref(), "--tmpfs".as_ref(), "/run".as_ref()]);
    for entry in mount::system_entries() {
        match &entry {
            SystemEntry::Mount(mount) => add(&bind_options(mount)),
            SystemEntry::Link { path, target } => {
                add(&["--symlink".as_ref(), target.as_ref(), path.as_ref()])
            }
        }
    }
    for mount in &plan.files.mounts {
        add(&bind_options(mount));
    }
    add(&["--chdir".as_ref(), plan.directory.as_ref(), "--".as_ref()]);
    arguments
}

fn bind_options(mount: &Mount) -> [&OsStr; 3] {
    let option = match mount.access {
        Access::ReadOnly => "--ro-bind",
        Access::ReadWrite => "--bind",
    };
    [option.as_ref(), mount.source.as_ref(), mount.target.as_ref()]
}
