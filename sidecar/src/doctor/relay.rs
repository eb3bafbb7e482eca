//! The running sidecar and its sockets: whether it answers, whether sandboxes can reach the relay and their own sockets, and
//! whether the relay's directory is protected.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use cofferdam_base::clock;
use cofferdam_base::text::{error_chain, shell_quoted};
use nix::unistd::geteuid;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::finding::Findings;
use super::ports;
use crate::config::Config;
use crate::daemon::admin::client::{self, AdminError};
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::daemon::{own_socket_path, path_isolation};
use crate::enrolment;

/// A local socket answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sidecar {
    NotRunning,
    Running,
    Unknown,
}

pub(super) async fn probe(config: &Config, file: &Path, findings: &mut Findings) {
    let sidecar = probe_admin_socket(config, file, findings).await;
    if let Err(error) = path_isolation::check_relay_directories(config) {
        let next = "give `relay.unix` and `relay.vsock-dir` directories that hold nothing else";
        findings.error("relay-not-isolated", "relay", error_chain(&error), next);
    }
    if let Some(unix) = &config.relay.unix {
        if let Some(directory) = unix.path.parent() {
            probe_directory(directory, findings);
        }
        probe_relay_socket(&unix.path, file, sidecar, findings).await;
    }
    match sidecar {
        Sidecar::Running => {
            probe_own_sockets(config, findings).await;
            ports::probe_served(config, findings).await;
        }
        Sidecar::NotRunning => ports::probe_free(config, findings),
        // The ports that another user's sidecar serves may be those of another configuration.
        Sidecar::Unknown => {}
    }
}

async fn probe_admin_socket(config: &Config, file: &Path, findings: &mut Findings) -> Sidecar {
    let socket = &config.admin.socket;
    let about = format!("sidecar at {}", socket.display());
    let start = format!("cofferdam serve -c {}", shell_quoted(&file.display().to_string()));
    let request = AdminRequest::Sessions;
    let answer = timeout(ANSWER_TIMEOUT, client::exchange(socket, &request)).await;
    match answer {
        Ok(Ok(AdminResponse::Sessions { sessions, .. })) => {
            findings.good("serve-running", about, format!("it runs, with {} open links", sessions.len()));
            Sidecar::Running
        }
        Ok(Err(AdminError::Connect { source, .. })) => match source.kind() {
            io::ErrorKind::PermissionDenied => {
                let next = "run this as the sidecar's user";
                findings.warning("serve-denied", about, "this user may not open its admin socket", next);
                Sidecar::Unknown
            }
            io::ErrorKind::ConnectionRefused => {
                let what = "no sidecar answers at its admin socket, which one has left behind";
                findings.warning("serve-not-running", about, what, start);
                Sidecar::NotRunning
            }
            _ => {
                findings.warning(
                    "serve-not-running",
                    about,
                    "no sidecar runs with this configuration",
                    start,
                );
                Sidecar::NotRunning
            }
        },
        Ok(Ok(_) | Err(AdminError::Io(_) | AdminError::Response(_))) => {
            let next = "restart the sidecar; is it of the same version as this program?";
            findings.error("serve-no-answer", about, "it does not answer as this version expects", next);
            Sidecar::Running
        }
        Err(_) => {
            let next = "look at the sidecar's log, then restart it";
            let what =
                format!("it accepts a connection and does not answer within {} s", ANSWER_TIMEOUT.as_secs());
            findings.error("serve-no-answer", about, what, next);
            Sidecar::Running
        }
    }
}

async fn probe_relay_socket(path: &Path, file: &Path, sidecar: Sidecar, findings: &mut Findings) {
    let about = format!("relay unix:{}", path.display());
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    match (connect(path).await, sidecar) {
        (Ok(()), _) => findings.good("relay-ok", about, "the socket accepts connections"),
        (Err(error), Sidecar::NotRunning)
            if is_socket && error.kind() == io::ErrorKind::ConnectionRefused =>
        {
            let next = format!(
                "cofferdam serve -c {}\nIt replaces the socket. Mount the socket's directory into sandboxes, not the socket itself.",
                shell_quoted(&file.display().to_string())
            );
            findings.error("relay-socket-dead", about, "the socket belongs to a sidecar that is gone", next);
        }
        (Err(_), Sidecar::NotRunning) => {}
        (Err(error), Sidecar::Running | Sidecar::Unknown) => {
            let next = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "add this user to `relay.unix-uids`, or run this as the sidecar's user"
                }
                _ => {
                    "restart the sidecar: `relay.unix` takes effect at restart, and a removed socket is not made again"
                }
            };
            findings.error("relay-unreachable", about, format!("cannot connect: {error}"), next);
        }
    }
}

/// Connects to the sockets of single sandboxes, which a running sidecar keeps open for as long as their enrolments last.
async fn probe_own_sockets(config: &Config, findings: &mut Findings) {
    let enrolled = match enrolment::read_socket_directories(&config.state_dir, clock::now()) {
        Ok(enrolled) => enrolled,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            let about = format!("enrolments in {}", config.state_dir.display());
            let what = format!("whether their sockets accept connections was not tried: {error}");
            findings.warning("relay-not-tried", about, what, "run this as the sidecar's user");
            return;
        }
    };
    let mut open = 0_usize;
    for (enrolment, directory) in enrolled {
        let path = own_socket_path(&config.relay, &directory);
        let Err(error) = connect(&path).await else {
            open += 1;
            continue;
        };
        let name = enrolment.name.as_deref().unwrap_or(&enrolment.id);
        let next = format!(
            "restart the sidecar: it makes the sockets of its enrolments again; or `cofferdam kill {}` if that sandbox is gone",
            enrolment.id
        );
        let about = format!("socket of sandbox {name}, unix:{}", path.display());
        findings.error("relay-unreachable", about, format!("cannot connect: {error}"), next);
    }
    if open > 0 {
        findings.good("relay-ok", "sockets of single sandboxes", format!("{open} accept connections"));
    }
}

async fn connect(path: &Path) -> io::Result<()> {
    timeout(ANSWER_TIMEOUT, UnixStream::connect(path)).await.map_err(io::Error::from).flatten().map(drop)
}

/// Checks that only this user and root can put a socket into the directory, as shims do.
fn probe_directory(directory: &Path, findings: &mut Findings) {
    let Ok(metadata) = fs::metadata(directory) else { return };
    let about = format!("directory {}", directory.display());
    let path = shell_quoted(&directory.display().to_string()).into_owned();
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != 0 && owner != geteuid().as_raw() {
        let what = format!("it belongs to user {owner}, who is neither this user nor root");
        let next = format!("chown {} {path}", geteuid());
        findings.error("relay-directory-foreign", about.clone(), what, next);
    }
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
        let what = format!("other users can write to it (mode {:o})", mode & 0o7777);
        findings.error("relay-directory-writable", about, what, format!("chmod 755 {path}"));
    }
}
