//! Bubblewrap: every namespace new, the host's system read-only, an otherwise empty root.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::{CommandLine, Network, Orphans, Prepared, SignalTarget, Stdio, with_terminal};
use crate::run::mount::{self, Access, Mount, SystemEntry};
use crate::run::plan::Plan;

pub(super) fn prepare(plan: &Plan, program: PathBuf, stdio: Stdio) -> Prepared {
    let line = |command: Vec<OsString>, stdio| {
        let mut arguments = arguments(plan, stdio);
        arguments.extend(command);
        CommandLine { program: program.clone(), arguments, environment: plan.environment.clone() }
    };
    let trial = line(vec![plan.paths.shim().into(), "--version".into()], Stdio::Pipes);
    Prepared {
        command: line(with_terminal(stdio, &plan.command), stdio),
        files: Vec::new(),
        image: None,
        trial: Some(trial),
        removal: None,
        signals: SignalTarget::GroupsInside,
        orphans: Orphans::Kill,
        advice: None,
    }
}

fn arguments(plan: &Plan, stdio: Stdio) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |options: &[&OsStr]| words.extend(options.iter().map(|word| (*word).to_owned()));
    add(&["--unshare-all".as_ref(), "--die-with-parent".as_ref()]);
    if plan.network == Network::Host {
        add(&["--share-net".as_ref()]);
    }
    if stdio == Stdio::Pipes {
        // At a terminal `setsid --ctty` does it, which also gives the command that terminal.
        add(&["--new-session".as_ref()]);
    }
    if nix::unistd::geteuid().is_root() {
        add(&["--cap-drop".as_ref(), "ALL".as_ref()]);
    }
    add(&["--hostname".as_ref(), plan.name.as_ref()]);
    add(&["--proc".as_ref(), "/proc".as_ref(), "--dev".as_ref(), "/dev".as_ref()]);
    add(&["--tmpfs".as_ref(), "/tmp".as_ref(), "--tmpfs".as_ref(), "/run".as_ref()]);
    for entry in mount::system() {
        match &entry {
            SystemEntry::Mount(mount) => add(&bind(mount)),
            SystemEntry::Link { path, target } => {
                add(&["--symlink".as_ref(), target.as_ref(), path.as_ref()])
            }
        }
    }
    for mount in &plan.files.mounts {
        add(&bind(mount));
    }
    add(&["--chdir".as_ref(), plan.directory.as_ref(), "--".as_ref()]);
    words
}

fn bind(mount: &Mount) -> [&OsStr; 3] {
    let option = match mount.access {
        Access::ReadOnly => "--ro-bind",
        Access::ReadWrite => "--bind",
    };
    [option.as_ref(), mount.source.as_ref(), mount.target.as_ref()]
}
