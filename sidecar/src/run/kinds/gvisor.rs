//! gVisor: `runsc` without a container engine, with an OCI bundle in the run's directory.
//!
//! `--host-uds=open` lets the sandbox connect to Unix sockets in mounted directories, as the relay's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::container_removal::container_name;
use super::root_tree::{home_mount_points, root_tree};
use super::{
    CommandLine, GeneratedFile, LeftContainer, Network, Orphans, Prepared, SignalTarget, Stdio, Trial,
};
use crate::run::mount::{Access, Mount};
use crate::run::plan::Plan;

pub(super) fn prepare(plan: &Plan, program: PathBuf, run_directory: &Path, stdio: Stdio) -> Prepared {
    let bundle = run_directory.join("bundle");
    let root = bundle.join("root");
    let (mut files, mounts) = root_tree(plan, &root);
    files.extend(home_mount_points(plan, run_directory));
    let trial_bundle = run_directory.join("trial-bundle");
    for (bundle, command, stdio) in
        [(&bundle, &plan.command, stdio), (&trial_bundle, &plan.trial_command(), Stdio::Inherited)]
    {
        let configuration = configuration(plan, command, &root, &mounts, stdio);
        files.push(GeneratedFile::text(bundle.join("config.json"), configuration.to_string()));
    }
    files.push(GeneratedFile::directory(run_directory.join("runsc")));
    let command_line = |subcommand: &[&OsStr]| {
        let mut arguments = global_arguments(run_directory, plan.network);
        arguments.extend(subcommand.iter().map(Into::into));
        arguments.push(container_name(&plan.name).into());
        CommandLine { program: program.clone(), arguments, environment: environment() }
    };
    let run = |bundle: &Path| command_line(&["run".as_ref(), "--bundle".as_ref(), bundle.as_ref()]);
    Prepared {
        command: run(&bundle),
        files,
        image: None,
        trial: Some(Trial {
            command: run(&trial_bundle),
            removal: Some(command_line(&["delete".as_ref(), "--force".as_ref()])),
        }),
        left: LeftContainer::of(plan.kind, &plan.name),
        signals: SignalTarget::Command(command_line(&["kill".as_ref(), "--all".as_ref()])),
        orphans: Orphans::Leave,
        start_check: None,
        advice: None,
    }
}

/// The arguments before the subcommand of `runsc`.
pub(super) fn global_arguments(run_directory: &Path, network: Network) -> Vec<OsString> {
    let mut arguments = vec!["--root".into(), run_directory.join("runsc").into_os_string()];
    let network = if network == Network::Host { "--network=host" } else { "--network=none" };
    arguments.extend([network, "--ignore-cgroups", "--host-uds=open"].map(Into::into));
    if !nix::unistd::geteuid().is_root() {
        arguments.push("--rootless".into());
    }
    arguments
}

/// The environment of `runsc`; the command's environment is in the bundle.
pub(super) fn environment() -> BTreeMap<OsString, OsString> {
    std::env::var_os("PATH").map(|path| ("PATH".into(), path)).into_iter().collect()
}

fn configuration(plan: &Plan, command: &[OsString], root: &Path, mounts: &[Mount], stdio: Stdio) -> Value {
    let text = |value: &OsStr| value.to_string_lossy().into_owned();
    let arguments: Vec<String> = command.iter().map(|argument| text(argument)).collect();
    let environment: Vec<String> =
        plan.environment.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
    let mut mounted = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}),
    ];
    mounted.extend(mounts.iter().map(|mount| {
        let mode = if mount.access == Access::ReadOnly { "ro" } else { "rw" };
        json!({"destination": mount.target, "source": mount.source, "type": "bind", "options": ["rbind", mode]})
    }));
    let namespaces: &[&str] = match plan.network {
        Network::Host => &["ipc", "mount", "pid", "uts"],
        Network::None | Network::Hosts(_) => &["ipc", "mount", "network", "pid", "uts"],
    };
    let namespaces: Vec<Value> = namespaces.iter().map(|kind| json!({"type": kind})).collect();
    json!({
        "ociVersion": "1.0.0",
        "hostname": plan.name,
        "process": {
            "terminal": stdio == Stdio::Terminal,
            // With `--rootless` the sandbox knows this user as root, and no other user.
            "user": {"uid": 0, "gid": 0},
            "args": arguments,
            "env": environment,
            "cwd": plan.directory,
            "noNewPrivileges": true,
        },
        "root": {"path": root, "readonly": false},
        "mounts": mounted,
        "linux": {"namespaces": namespaces},
    })
}
