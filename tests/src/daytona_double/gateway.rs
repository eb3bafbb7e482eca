//! The SSH gateway: a real `sshd` in the sandbox, with one account, whose name is a token.
//!
//! As Daytona's gateway, it requires no authentication but the token in the user name.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;

use super::guest::{HOME, sandbox_command, spawn_from_permanent_thread};
use crate::deadline::wait_until;
use crate::process::{Running, command, into_file, output_of};
use crate::tools::Tool;

pub(super) struct Gateway {
    listens_at: SocketAddr,
    _server: Running,
}

impl Gateway {
    pub(super) fn start(
        bubblewrap: &Path,
        root: &Path,
        account: &str,
        listens_at: SocketAddr,
    ) -> Option<Self> {
        let (keys, server) = (Tool::SshKeygen.path()?, Tool::Sshd.path()?);
        let directory = root.join("gateway").join(account);
        std::fs::create_dir_all(&directory).ok()?;
        let host_key = directory.join("host");
        let mut make = command(keys);
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&host_key);
        assert!(output_of(make, "ssh-keygen").status.success(), "ssh-keygen creates a host key");
        let id = nix::unistd::geteuid();
        // As root, the server switches to the second account before authentication.
        let accounts = format!("{account}::{id}:{id}::{HOME}:/bin/sh\nsshd:x:65533:65533::/:/bin/false\n");
        let config = format!(
            "ListenAddress {listens_at}\nHostKey /mnt/ssh/host\nAuthenticationMethods none\nPermitEmptyPasswords yes\n\
             PermitRootLogin yes\nUsePAM no\nStrictModes no\nPidFile none\n"
        );
        std::fs::write(directory.join("accounts"), accounts).ok()?;
        std::fs::write(directory.join("config"), config).ok()?;
        std::fs::create_dir_all(root.join("run/sshd")).ok()?;
        std::fs::create_dir_all(root.join("control/ssh")).ok()?;
        let mut sandbox_command = sandbox_command(bubblewrap, root);
        sandbox_command.arg("--ro-bind").arg(&directory).arg("/mnt/ssh");
        sandbox_command.arg("--ro-bind").arg(directory.join("accounts")).arg("/etc/passwd");
        // A copy, because the tools may be in a directory that is not in the sandbox.
        std::fs::copy(server, directory.join("sshd")).ok()?;
        sandbox_command.arg("/mnt/ssh/sshd").args(["-D", "-e", "-f", "/mnt/ssh/config"]);
        let log = root.join("gateway.log");
        sandbox_command.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
        let server = spawn_from_permanent_thread(sandbox_command, "sshd");
        wait_until("the SSH gateway listens", || TcpStream::connect(listens_at).is_ok());
        Some(Self { listens_at, _server: server })
    }

    pub(super) fn host(&self) -> String {
        self.listens_at.ip().to_string()
    }

    pub(super) fn port(&self) -> u16 {
        self.listens_at.port()
    }
}
