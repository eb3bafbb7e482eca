//! Anthropic's sandbox runtime: the file tree of the host, of which the home and our own files are hidden, and a proxy to
//! single hosts.
//!
//! Its filter forbids Unix sockets altogether or not at all; the relay needs one, so it allows them. What hides a socket
//! of the host is then only its file: the home, `/run`, temporary files and every place of the sidecar's files are hidden.
//! Directories are hidden rather than the files in them: a file that is replaced on the host would appear.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    CommandLine, FileContent, GeneratedFile, Network, Orphans, Prepared, SignalTarget, Stdio, with_terminal,
};
use crate::run::host::Host;
use crate::run::mount::{Access, Mount};
use crate::run::plan::Plan;
use crate::run::words;

/// Why a mount cannot be made: srt shows everything where it is on the host. The shim is copied to its place instead.
pub(super) fn refuse_mount(mount: &Mount) -> Option<String> {
    let is_shim = mount.target.ends_with("bin/cofferdam-shim");
    let is_elsewhere = mount.source != mount.target && !is_shim;
    is_elsewhere.then(|| format!("srt cannot show {:?} at another place", mount.source))
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
    let shown = plan.files.mounts.iter();
    // What is hidden is shown again where it really is, so the shim is copied to a directory of its own.
    let programs = std::iter::once(literal(&plan.paths.programs));
    let readable: Vec<_> = programs.chain(shown.clone().map(|mount| literal(&mount.target))).collect();
    let writable: Vec<_> =
        shown.filter(|mount| mount.access == Access::ReadWrite).map(|mount| literal(&mount.target)).collect();
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
    let command = with_terminal(stdio, &plan.command);
    let line = format!("exec {}", words::line(command.iter().map(OsString::as_os_str)));
    let arguments = vec!["--settings".into(), file.into(), "-c".into(), line.into()];
    Prepared {
        command: CommandLine { program, arguments, environment: plan.environment.clone() },
        files,
        image: None,
        trial: None,
        removal: None,
        signals: SignalTarget::Program,
        orphans: Orphans::Kill,
        advice: None,
    }
}
