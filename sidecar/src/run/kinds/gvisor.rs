//! gVisor: `runsc` without a container engine, with an OCI bundle in the run's directory.
//!
//! `--host-uds=open` lets the sandbox connect to Unix sockets in mounted directories, as the relay's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::root_tree::root_tree;
use super::{CommandLine, GeneratedFile, Network, Orphans, Prepared, SignalTarget, Stdio};
use crate::run::mount::{Access, Mount};
use crate::run::plan::Plan;

pub(super) fn prepare(plan: &Plan, program: PathBuf, run_directory: &Path, stdio: Stdio) -> Prepared {
    let bundle = run_directory.join("bundle");
    let (mut files, mounts) = root_tree(plan, &bundle.join("root"));
    files.push(GeneratedFile::text(
        bundle.join("config.json"),
        configuration(plan, &mounts, stdio).to_string(),
    ));
    files.push(GeneratedFile::directory(run_directory.join("runsc")));
    let command_line = |subcommand: &[&str], bundle: Option<&Path>| {
        let mut arguments = vec!["--root".into(), run_directory.join("runsc").into_os_string()];
        let network = if plan.network == Network::Host { "--network=host" } else { "--network=none" };
        arguments.extend([network, "--ignore-cgroups", "--host-uds=open"].map(Into::into));
        if !nix::unistd::geteuid().is_root() {
            arguments.push("--rootless".into());
        }
        arguments.extend(subcommand.iter().map(Into::into));
        if let Some(bundle) = bundle {
            arguments.extend(["--bundle".into(), bundle.into()]);
        }
        arguments.push(format!("cofferdam-{}", plan.name).into());
        // The environment of `runsc`; the command's environment is in the bundle.
        let environment = std::env::var_os("PATH").map(|path| ("PATH".into(), path));
        let environment: BTreeMap<_, _> = environment.into_iter().collect();
        CommandLine { program: program.clone(), arguments, environment }
    };
    Prepared {
        command: command_line(&["run"], Some(&bundle)),
        files,
        image: None,
        trial: None,
        removal: Some(command_line(&["delete", "--force"], None)),
        signals: SignalTarget::Program,
        orphans: Orphans::Leave,
        advice: None,
    }
}

fn configuration(plan: &Plan, mounts: &[Mount], stdio: Stdio) -> Value {
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    let arguments: Vec<String> = plan.command.iter().map(|argument| text(argument)).collect();
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
    let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    json!({
        "ociVersion": "1.0.0",
        "hostname": plan.name,
        "process": {
            "terminal": stdio == Stdio::Terminal,
            "user": {"uid": user, "gid": group},
            "args": arguments,
            "env": environment,
            "cwd": plan.directory,
            "noNewPrivileges": true,
        },
        "root": {"path": "root", "readonly": false},
        "mounts": mounted,
        "linux": {"namespaces": namespaces},
    })
}
