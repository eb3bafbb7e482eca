//! The pipe over SSH: the hub is a command of the system's `ssh`, and the command's stdin and stdout are the pipe.
//!
//! What must stay true: the token, which is the user name, is in a private file that exists only while `ssh` connects, and
//! in no argument, environment variable or error; `ssh` is killed when the pipe is dropped. Of the command line that Daytona
//! reports, only the host and the port are used; it is never executed.

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cofferdam_base::random;
use cofferdam_base::text::error_chain;
use cofferdam_net::Host;
use cofferdam_process::{Launch, ProcessHandle, allowed_environment, launch};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::control::{Control, SshAccess};
use super::token::SandboxToken;
use crate::install::InstalledShim;
use crate::{HubSetup, Pipe, PlatformError};

const CONNECTING: &str = "connect to the sandbox by SSH";
/// From the start of `ssh` to the hub's first byte.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of the stderr of `ssh` is read for an error.
const MAX_STDERR: usize = 4096;

/// Starts the hub with `ssh` and returns its stdin and stdout once it has sent its first byte.
pub(super) async fn open(
    control: &Control,
    access: &SshAccess,
    shim: &InstalledShim,
    setup: &HubSetup,
    known_hosts: Option<&Path>,
) -> Result<Pipe, PlatformError> {
    let gateway = Gateway::parse(&access.ssh_command).ok_or_else(|| PlatformError::Protocol {
        action: CONNECTING,
        why: "Daytona reports no gateway in the form `ssh [-p PORT] TOKEN@HOST`".into(),
    })?;
    let failed =
        |error: io::Error| unavailable(format!("cannot write the private settings for `ssh`: {error}"));
    let address = control.permitted_address(CONNECTING, &Host::parse(gateway.host), gateway.port).await?;
    let text = settings_text(&gateway, address, &access.token, known_hosts);
    let settings = PrivateSettings::write(&text).map_err(failed)?;
    // The path needs no escaping: see `crate::install::is_plain_path`.
    let hub = format!("'{}' hub --pin {}", shim.file, setup.pin);
    let launched = launch(Launch {
        program: "ssh".into(),
        args: vec!["-F".into(), settings.file.clone().into(), "-T".into(), HOST.into(), hub.into()],
        environment: allowed_environment(Vec::new()),
        directory: None,
        walls: None,
    });
    let started = launched.await.map_err(|error| {
        let why = format!("{}; the OpenSSH client must be installed on the host", error_chain(&error));
        PlatformError::Sandbox { action: CONNECTING, why }
    })?;
    let cofferdam_process::ServerProcess { stdin, mut stdout, mut stderr, mut handle, .. } = started;
    let mut first = [0; 1];
    match timeout(CONNECT_TIMEOUT, stdout.read(&mut first)).await {
        Ok(Ok(1)) => {}
        Ok(_) => {
            let exit = handle.exited().await;
            let stderr = read_stderr(&mut stderr).await;
            if stderr.contains(CHANGED_KEY) {
                return Err(changed_key(&gateway, known_hosts));
            }
            let stderr = control.redactor().printable(&stderr);
            return Err(unavailable(format!("`ssh` exited ({exit}): {stderr}")));
        }
        Err(_) => {
            return Err(unavailable(format!("the hub sent nothing within {} s", CONNECT_TIMEOUT.as_secs())));
        }
    }
    drop(settings);
    let mut reader = JoinSet::new();
    reader.spawn(discard(stderr));
    Ok(Box::new(SshPipe { stdin, stdout, first: Some(first[0]), _process: handle, _stderr: reader }))
}

/// The name of the sandbox in the settings file of `ssh`.
const HOST: &str = "sandbox";

struct Gateway<'a> {
    host: &'a str,
    port: u16,
}

impl<'a> Gateway<'a> {
    /// Parses `ssh TOKEN@HOST` with an optional `-p PORT` before or after the target, and no other command line.
    fn parse(command: &'a str) -> Option<Self> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (port, target) = match words[..] {
            ["ssh", target] => (22, target),
            ["ssh", "-p", port, target] | ["ssh", target, "-p", port] => (port.parse().ok()?, target),
            _ => return None,
        };
        let (_, host) = target.rsplit_once('@')?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        let is_host = !host.is_empty() && !host.starts_with('-') && host.bytes().all(is_allowed);
        (port != 0 && is_host).then_some(Self { host, port })
    }

    /// The name in `known_hosts`, as `ssh` would write it without `HostKeyAlias`.
    fn known_hosts_name(&self) -> String {
        match self.port {
            22 => self.host.to_owned(),
            port => format!("[{}]:{port}", self.host),
        }
    }
}

/// The settings file of `ssh`. The gateway needs only the token, so no other authentication is offered. The gateway's key is
/// stored under its name at the first connection; the pipe is also encrypted between the sidecar and the hub.
fn settings_text(
    gateway: &Gateway<'_>,
    address: IpAddr,
    token: &SandboxToken,
    known_hosts: Option<&Path>,
) -> Zeroizing<String> {
    // For a path that cannot be quoted, `ssh` uses the user's `known_hosts`.
    let is_quotable = |path: &&str| !path.contains(['"', '\n', '\\', '%']);
    let known_hosts = known_hosts.and_then(Path::to_str).filter(is_quotable);
    let known_hosts = known_hosts.map_or_else(String::new, |path| format!("UserKnownHostsFile \"{path}\"\n"));
    Zeroizing::new(format!(
        "Host {HOST}\n\
         HostName {address}\n\
         HostKeyAlias {}\n\
         CheckHostIP no\n\
         Port {}\n\
         User {}\n\
         BatchMode yes\n\
         ClearAllForwardings yes\n\
         ConnectTimeout 15\n\
         ControlPath none\n\
         ForwardAgent no\n\
         LogLevel ERROR\n\
         PreferredAuthentications none\n\
         PubkeyAuthentication no\n\
         RequestTTY no\n\
         ServerAliveInterval 20\n\
         ServerAliveCountMax 3\n\
         StrictHostKeyChecking accept-new\n\
         {known_hosts}",
        gateway.known_hosts_name(),
        gateway.port,
        token.text(),
    ))
}

/// A file that only this user can read, in a new directory; both are removed on drop.
struct PrivateSettings {
    directory: PathBuf,
    file: PathBuf,
}

impl PrivateSettings {
    fn write(text: &str) -> io::Result<Self> {
        let directory = private_directory().join(random::id("cofferdam-ssh-"));
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let written = Self { file: directory.join("config"), directory };
        let mut file =
            std::fs::File::options().write(true).create_new(true).mode(0o600).open(&written.file)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        Ok(written)
    }
}

impl Drop for PrivateSettings {
    fn drop(&mut self) {
        // Nothing else is in the directory.
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// The directory for private files, in memory if possible, so that the token is not written to a disk.
fn private_directory() -> PathBuf {
    let runtime_directory =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let shared_memory = || Some(Path::new("/dev/shm").to_owned()).filter(|path| path.is_dir());
    runtime_directory.or_else(shared_memory).unwrap_or_else(std::env::temp_dir)
}

/// The pipe. On drop `ssh` is killed.
struct SshPipe {
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    /// The hub's first byte, which was read while connecting.
    first: Option<u8>,
    _process: ProcessHandle,
    _stderr: JoinSet<()>,
}

impl AsyncRead for SshPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buf.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stdout).poll_read(context, buf)
    }
}

impl AsyncWrite for SshPipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stdin).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdin).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdin).poll_shutdown(context)
    }
}

/// Reads stderr to its end, within limits of size and time.
async fn read_stderr(stderr: &mut pipe::Receiver) -> String {
    let mut bytes = Vec::new();
    let mut limited = stderr.take(MAX_STDERR as u64);
    // The time is limited because another process may have the pipe open.
    let _ = timeout(Duration::from_secs(1), limited.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads and discards stderr, because a full pipe would block `ssh`. It is not logged, because the sandbox controls its content.
async fn discard(mut stderr: pipe::Receiver) {
    let mut buffer = [0; 1024];
    while matches!(stderr.read(&mut buffer).await, Ok(1..)) {}
}

/// What `ssh` prints when the key of a host differs from the one in `known_hosts`.
const CHANGED_KEY: &str = "Host key verification failed";

fn changed_key(gateway: &Gateway<'_>, known_hosts: Option<&Path>) -> PlatformError {
    let name = gateway.known_hosts_name();
    let file = known_hosts.map_or_else(|| "~/.ssh/known_hosts".into(), Path::to_string_lossy);
    let why = format!(
        "the key of the SSH gateway `{name}` has changed, so the connection may be intercepted; if \
         Daytona has announced a new key, remove the old one with `ssh-keygen -R '{name}' -f '{file}'`"
    );
    PlatformError::Sandbox { action: CONNECTING, why }
}

fn unavailable(why: String) -> PlatformError {
    PlatformError::Unavailable { action: CONNECTING, why, retry_after: None }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_the_documented_command_lines_are_parsed() {
        let gateway = |text| Gateway::parse(text).map(|gateway| (gateway.host, gateway.port));
        assert_eq!(gateway("ssh t0k@ssh.app.daytona.io"), Some(("ssh.app.daytona.io", 22)));
        assert_eq!(gateway("ssh -p 2222 t0k@127.0.0.1"), Some(("127.0.0.1", 2222)));
        for bad in [
            "ssh -o ProxyCommand=x t0k@host",
            "sh -c x",
            "ssh t0k@-oProxyCommand=x",
            "ssh t0k@host;x",
            "ssh -p 0 t0k@host",
            "ssh host",
            "ssh t0k@",
            "",
        ] {
            assert_eq!(gateway(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_settings_are_private_and_are_removed() {
        let settings = PrivateSettings::write("User t0k\n").unwrap();
        let (file, directory) = (settings.file.clone(), settings.directory.clone());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory)), (0o600, 0o700));
        drop(settings);
        assert!(!directory.exists());
    }
}
