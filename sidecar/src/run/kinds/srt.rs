//! Anthropic's sandbox runtime: the file tree of the host, in which the home and Cofferdam's files are hidden, and a proxy to
//! listed hosts.
//!
//! Its filter allows either all Unix sockets or none. The relay needs one, so all are allowed, and the sandbox could connect to
//! every socket of the host that it can see: so the home, `/run`, temporary files and the sidecar's files are hidden.
//! Directories are hidden rather than the files in them: a hidden file that is replaced on the host would become visible.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    CommandLine, FileContent, GeneratedFile, Network, Orphans, Prepared, SignalTarget, Stdio, Trial,
    with_terminal,
};
use crate::run::host::Host;
use crate::run::mount::{Access, Mount};
use crate::run::plan::Plan;
use crate::run::shell_quoting;

/// Returns why srt cannot mount this, if so: in the sandbox every file has the same path as on the host. The shim is copied
/// instead of mounted.
pub(super) fn refuse_mount(mount: &Mount) -> Option<String> {
    let is_shim = mount.target.ends_with("bin/cofferdam-shim");
    let is_elsewhere = mount.source != mount.target && !is_shim;
    is_elsewhere.then(|| format!("srt cannot mount {:?} at another path", mount.source))
}

pub(super) fn prepare(
    plan: &Plan,
    host: &Host,
    program: PathBuf,
    run_directory: &Path,
    stdio: Stdio,
) -> Prepared {
    let hosts: &[&str] = match plan.network {
        Network::Hosts(hosts) => hosts,
        Network::None | Network::Host => &[],
    };
    let literal = |path: &Path| json!({"path": path, "literal": true});
    let visible = plan.files.mounts.iter();
    // `allowRead` makes a hidden path visible again, but cannot move it, so the shim is copied to its directory.
    let programs = std::iter::once(literal(&plan.paths.programs));
    let readable: Vec<_> = programs.chain(visible.clone().map(|mount| literal(&mount.target))).collect();
    let writable: Vec<_> = visible
        .filter(|mount| mount.access == Access::ReadWrite)
        .map(|mount| literal(&mount.target))
        .collect();
    let mut hidden =
        vec![literal(&host.home), literal(Path::new("/etc/cofferdam")), literal(Path::new("/run"))];
    hidden.extend(plan.files.hidden.iter().map(|path| literal(path)));
    let settings = json!({
        "network": {"allowedDomains": hosts, "deniedDomains": [], "allowAllUnixSockets": true},
        "filesystem": {"denyRead": hidden, "allowRead": readable, "allowWrite": writable, "denyWrite": []},
    });
    let file = run_directory.join("srt-settings.json");
    let shim = plan.files.mounts.iter().find(|mount| mount.target == plan.paths.shim());
    let files = vec![
        GeneratedFile::text(&file, settings.to_string()),
        GeneratedFile {
            path: plan.paths.shim(),
            content: FileContent::Program(shim.map(|mount| mount.source.clone()).unwrap_or_default()),
        },
    ];
    let command_line = |command: Vec<OsString>| {
        let quoted = shell_quoting::command_line(command.iter().map(OsString::as_os_str));
        let shell_command = format!("exec {quoted}");
        let arguments = vec!["--settings".into(), file.clone().into(), "-c".into(), shell_command.into()];
        CommandLine { program: program.clone(), arguments, environment: plan.environment.clone() }
    };
    Prepared {
        command: command_line(with_terminal(stdio, &plan.command)),
        files,
        image: None,
        trial: Some(Trial { command: command_line(plan.trial_command()), removal: None }),
        left: None,
        signals: SignalTarget::GroupsInside,
        orphans: Orphans::Kill,
        start_check: None,
        advice: None,
    }
}
