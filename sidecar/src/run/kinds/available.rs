//! Which kinds work on this machine.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::Kind;
use crate::run::executable;
use crate::run::host::Host;
use crate::terminal::failure::{Failure, Sysexit};

/// For a program to show that it works.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The path of a kind's program on this machine.
pub(in crate::run) async fn find_program(kind: Kind, host: &Host) -> Result<PathBuf, Failure> {
    if let Some(program) = executable::find(kind.program().as_ref(), &host.search_path, &host.directory) {
        return Ok(program);
    }
    let why = format!("`{}` is not on the PATH, and {} needs it", kind.program(), kind.name());
    Err(Failure::new(Sysexit::Unavailable, why).hint(advise_other_kind(kind, host).await))
}

/// A hint for when a kind does not work: how to install it, and another kind that works on this machine.
pub(in crate::run) async fn advise_other_kind(kind: Kind, host: &Host) -> String {
    let install = match kind {
        Kind::Bwrap => "install `bubblewrap`, and allow unprivileged user namespaces",
        Kind::Podman => "install `podman`",
        Kind::Docker => "install docker, and start its daemon",
        Kind::Gvisor => "install `runsc`",
        Kind::Srt => "install `srt` (npm: @anthropic-ai/sandbox-runtime)",
    };
    for other in [Kind::Bwrap, Kind::Podman, Kind::Docker, Kind::Gvisor] {
        if other != kind && works(other, host).await {
            let image = if other == Kind::Docker { " --image IMAGE" } else { "" };
            return format!("{install}; or use `--sandbox {}{image}`, which works here", other.argument());
        }
    }
    format!("{install}; no other kind of sandbox works here either")
}

/// Whether the kind's program is installed and succeeds in a simple command.
async fn works(kind: Kind, host: &Host) -> bool {
    let arguments: &[&str] = match kind {
        Kind::Bwrap => &["--unshare-all", "--ro-bind", "/", "/", "--", "/bin/true"],
        Kind::Podman | Kind::Docker => &["info"],
        Kind::Gvisor | Kind::Srt => &["--version"],
    };
    let Some(program) = executable::find(kind.program().as_ref(), &host.search_path, &host.directory) else {
        return false;
    };
    let mut command = cofferdam_process::user_command(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut command = Command::from(command);
    let status = timeout(CHECK_TIMEOUT, command.kill_on_drop(true).status()).await;
    status.is_ok_and(|status| status.is_ok_and(|status| status.success()))
}
