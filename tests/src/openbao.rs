//! A real OpenBao server, which offers Vault's API; never a mock.
//!
//! Each test has its own server, on its own loopback address. It is killed by its process id when the test is over, and
//! by the kernel if the test itself is killed and `setpriv` is installed. The thread that starts a server has to
//! outlive it: for the kernel, that thread is the parent, and when it ends, the kernel kills the server.

mod operator;
mod persistent;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use vaultrs::sys;

use crate::certificates::Authority;
use crate::deadline::{PATIENCE, holds_within, wait_until};
use crate::port::free_address;
use crate::process::{Running, command, into_file, is_stopped, read};
use crate::tools::{Tool, on_path};

pub use operator::{Answer, AppRole, Headers, KvEngine, NewToken, TokenRole};

/// A running server, unsealed.
#[derive(Debug)]
pub struct OpenBao {
    pub process: Running,
    pub directory: TempDir,
    /// Plain HTTP on loopback.
    pub listens_at: SocketAddr,
    /// Its TLS listener, if it has one.
    pub tls: Option<Tls>,
    pub root_token: String,
    unseal_key: Option<String>,
}

/// The TLS side of a server.
#[derive(Debug)]
pub struct Tls {
    pub listens_at: SocketAddr,
    /// The authority of its certificate.
    pub authority: Authority,
    pub ca_file: PathBuf,
}

impl OpenBao {
    /// A development server: in memory, unsealed, versioned key-value secrets at `secret/`.
    #[track_caller]
    pub fn dev() -> Option<Self> {
        let program = Tool::OpenBao.path()?;
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let listens_at = free_address();
        let mut command = killed_with_parent(&program);
        command
            .args(["server", "-dev", "-dev-root-token-id=root", "-dev-no-store-token"])
            .arg(format!("-dev-listen-address={listens_at}"));
        let process = spawn(command, directory.path());
        let server =
            Self { process, directory, listens_at, tls: None, root_token: "root".into(), unseal_key: None };
        server.wait_for_health(200);
        Some(server)
    }

    /// A server from a configuration file: in memory, plain and with TLS, with an audit log, initialised and unsealed.
    #[track_caller]
    pub fn configured() -> Option<Self> {
        let program = Tool::OpenBao.path()?;
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (listens_at, secure) = (free_address(), free_address());
        let authority = Authority::new();
        let ca_file = authority.write(directory.path(), "ca");
        let (certificate, key) = authority.server(&secure.ip().to_string()).write(directory.path(), "server");
        let configuration = format!(
            "storage \"inmem\" {{}}\nlistener \"tcp\" {{\n  address = \"{listens_at}\"\n  tls_disable = true\n}}\n\
             listener \"tcp\" {{\n  address = \"{secure}\"\n  tls_cert_file = \"{}\"\n  tls_key_file = \"{}\"\n}}\n\
             audit \"file\" \"file\" {{\n  options {{\n    file_path = \"{}\"\n  }}\n}}\napi_addr = \"http://{listens_at}\"\n",
            certificate.display(),
            key.display(),
            directory.path().join("audit.jsonl").display(),
        );
        let file = directory.path().join("openbao.hcl");
        std::fs::write(&file, configuration).expect("the configuration can be written");
        let mut command = killed_with_parent(&program);
        command.arg("server").arg("-config").arg(file);
        let process = spawn(command, directory.path());
        let tls = Some(Tls { listens_at: secure, authority, ca_file });
        let mut server =
            Self { process, directory, listens_at, tls, root_token: String::new(), unseal_key: None };
        server.wait_for_health(501);
        let mut initialised = server.operator("initialise the server", async |client| {
            sys::start_initialization(client, 1, 1, None).await
        });
        server.root_token = initialised.root_token;
        server.unseal_key = initialised.keys.pop();
        server.unseal();
        Some(server)
    }

    /// Its URL, for configurations.
    pub fn address(&self) -> String {
        format!("http://{}", self.listens_at)
    }

    pub fn tls_address(&self) -> String {
        format!("https://{}", self.tls.as_ref().expect("this server has a TLS listener").listens_at)
    }

    #[track_caller]
    pub fn seal(&self) {
        self.operator("seal the server", async |client| sys::seal(client).await);
        self.wait_for_health(503);
    }

    #[track_caller]
    pub fn unseal(&self) {
        let key = self.unseal_key.clone().expect("a server from a configuration has a key");
        self.operator("unseal the server", async |client| sys::unseal(client, Some(key), None, None).await);
        self.wait_for_health(200);
    }

    /// Suspends the server so that it looks hung: connections open, and nothing responds.
    pub fn freeze(&self) {
        self.process.signal(Signal::SIGSTOP);
        wait_until("every thread of the server stopped", || is_stopped(self.process.id()));
    }

    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Its audit log, line by line.
    pub fn audit(&self) -> Vec<Value> {
        let text = read(&self.directory.path().join("audit.jsonl"));
        text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&read(&self.directory.path().join("log"))).into_owned()
    }

    #[track_caller]
    fn wait_for_health(&self, status: u16) {
        let is_reached = holds_within(PATIENCE, || self.health() == Some(status));
        assert!(is_reached, "OpenBao's health never was {status}:\n{}", self.log());
    }
}

/// SIGKILL also ends a frozen server.
impl Drop for OpenBao {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGKILL);
    }
}

#[track_caller]
fn spawn(mut command: Command, directory: &Path) -> Running {
    let log = directory.join("log");
    // The machine's own Vault settings must not reach this server.
    command.env_clear().env("HOME", directory).stdin(std::process::Stdio::null());
    command.stdout(into_file(&log)).stderr(into_file(&log));
    Running::spawn(command, "OpenBao")
}

/// A command whose process, if `setpriv` is installed, the kernel kills when the thread that started it exits.
pub(crate) fn killed_with_parent(program: &Path) -> Command {
    match on_path("setpriv") {
        Some(setpriv) => {
            let mut killed_with_parent = command(setpriv);
            killed_with_parent.args(["--pdeathsig", "KILL", "--"]).arg(program);
            killed_with_parent
        }
        None => command(program),
    }
}
