//! A host that is reached with a real `ssh`: OpenSSH's server, in a sandbox that has its own processes, accounts and
//! temporary files, and the host's other files read-only.
//!
//! The server is not that of the machine: the test creates its keys and its configuration, chooses a loopback port, and
//! starts it. It ends with its sandbox, together with everything that it started.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Guest, Sandbox, if_usable, shim, text_of_success, write_program};
use crate::deadline::wait_until;
use crate::port::free_address;
use crate::process::{Running, children_of, command, into_file, read};
use crate::tools::Tool;

#[derive(Debug)]
pub struct Ssh {
    client: PathBuf,
    listens_at: SocketAddr,
    server: Running,
    directory: tempfile::TempDir,
}

/// The path of the shim in the sandbox.
const SHIM: &str = "/run/cofferdam-shim";
/// The only account there: the test's own user, with a shell.
const USER: &str = "box";

impl Ssh {
    #[track_caller]
    pub fn open() -> Option<Self> {
        let (bubblewrap, client) = (Tool::Bubblewrap.path()?, Tool::Ssh.path()?);
        let (keys, server) = (Tool::SshKeygen.path()?, Tool::Sshd.path()?);
        let directory = tempfile::Builder::new().prefix("ssh-").tempdir();
        let directory = directory.expect("a temporary directory can be made");
        let listens_at = free_address();
        write_files(directory.path(), &keys, listens_at);
        let server = start(&bubblewrap, &server, directory.path());
        let started = Self { client, listens_at, server, directory };
        wait_until("the SSH server listens", || TcpStream::connect(listens_at).is_ok());
        if_usable(started)
    }

    /// Writes a program that runs `ssh` with its own arguments, and knows this sandbox as `host`.
    #[track_caller]
    pub fn write_program(&self, path: &Path, host: &str) {
        let file = |name: &str| self.directory.path().join(name);
        let settings = format!(
            "Host {host}\nHostName {}\nPort {}\nUser {USER}\nBatchMode yes\nHostKeyAlias sandbox\nIdentityFile {}\n\
             IdentitiesOnly yes\nLogLevel ERROR\nUserKnownHostsFile {}\n",
            self.listens_at.ip(),
            self.listens_at.port(),
            file("user").display(),
            file("known").display()
        );
        std::fs::write(file("client"), settings).expect("a temporary directory is writable");
        write_program(path, &[self.client.clone().into(), "-F".into(), file("client").into()]);
    }

    /// A command line that runs these words in the sandbox.
    pub fn line(&self, words: &[&str]) -> Vec<OsString> {
        let file = |name: &str| self.directory.path().join(name).display().to_string();
        let options = [
            "BatchMode=yes".to_owned(),
            "HostKeyAlias=sandbox".to_owned(),
            format!("IdentityFile={}", file("user")),
            "IdentitiesOnly=yes".to_owned(),
            "LogLevel=ERROR".to_owned(),
            format!("Port={}", self.listens_at.port()),
            "StrictHostKeyChecking=yes".to_owned(),
            format!("UserKnownHostsFile={}", file("known")),
        ];
        let mut line: Vec<OsString> =
            vec![self.client.clone().into(), "-T".into(), "-F".into(), "none".into()];
        line.extend(options.into_iter().flat_map(|option| ["-o".into(), option.into()]));
        line.push(format!("{USER}@{}", self.listens_at.ip()).into());
        line.extend(words.iter().map(OsString::from));
        line
    }

    /// A command line that runs the shim in the sandbox.
    pub fn shim_line(&self, arguments: &[&str]) -> Vec<OsString> {
        self.line(&[&[SHIM], arguments].concat())
    }

    /// A process in the sandbox.
    #[track_caller]
    pub fn process(&self) -> u32 {
        *children_of(self.server.id()).first().expect("the sandbox has a first process")
    }
}

impl Sandbox for Ssh {
    fn name(&self) -> &'static str {
        "ssh"
    }

    /// The environment of the guest is ignored: `ssh` does not pass one on.
    fn command(&self, guest: &Guest) -> Command {
        let arguments: Vec<&str> = guest.arguments.iter().map(String::as_str).collect();
        let line = self.shim_line(&arguments);
        let mut command = command(&line[0]);
        command.env_clear().args(&line[1..]);
        command
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = read(&self.directory.path().join("log"));
            eprintln!("=== the SSH server\n{}", String::from_utf8_lossy(&log));
        }
    }
}

fn write_files(directory: &Path, keys: &Path, listens_at: SocketAddr) {
    let file = |name: &str| directory.join(name);
    let write = |name: &str, text: String| {
        std::fs::write(file(name), text).expect("a temporary directory is writable");
    };
    for name in ["host", "user"] {
        let mut make = command(keys);
        make.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(file(name));
        text_of_success(make, "ssh-keygen");
    }
    let public = |name: &str| String::from_utf8_lossy(&read(&file(name).with_extension("pub"))).into_owned();
    write("authorized", public("user"));
    write("known", format!("sandbox {}", public("host")));
    let lines = [
        format!("ListenAddress {listens_at}"),
        format!("HostKey {}", file("host").display()),
        format!("AuthorizedKeysFile {}", file("authorized").display()),
        // The files are below a world-writable directory, which strict mode refuses.
        "StrictModes no".to_owned(),
        "AuthenticationMethods publickey".to_owned(),
        "UsePAM no".to_owned(),
        // The PATH includes the shim's directory.
        "SetEnv PATH=/usr/local/bin:/usr/bin:/bin:/run".to_owned(),
        "PidFile none\n".to_owned(),
    ];
    write("config", lines.join("\n"));
    let id = nix::unistd::geteuid();
    // As root, the server switches to the second account before authentication.
    write("accounts", format!("{USER}:x:{id}:{id}::/:/bin/sh\nsshd:x:65533:65533::/:/bin/false\n"));
    std::fs::create_dir(file("relay")).expect("a temporary directory is writable");
}

fn start(bubblewrap: &Path, server: &Path, directory: &Path) -> Running {
    let mut boxed = command(bubblewrap);
    boxed.args(["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--clearenv"]);
    boxed.args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
    boxed.arg("--tmpfs").arg(std::env::temp_dir()).arg("--ro-bind").args([directory, directory]);
    boxed.arg("--ro-bind").arg(directory.join("accounts")).arg("/etc/passwd");
    boxed.args(["--tmpfs", "/run", "--dir", "/run/sshd", "--ro-bind"]).arg(shim()).arg(SHIM);
    boxed.arg("--bind").arg(directory.join("relay")).arg(super::RELAY_INSIDE);
    boxed.arg(server).args(["-D", "-e", "-f"]).arg(directory.join("config"));
    let log = directory.join("log");
    boxed.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
    Running::spawn(boxed, "sshd")
}
