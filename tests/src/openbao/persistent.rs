//! Servers whose state survives their process, and a second node: for tests that kill and restart OpenBao, or that use
//! a standby.

use std::path::Path;

use serde_json::{Value, json};

use super::operator::{Headers, request};
use super::{OpenBao, killed_with_parent, spawn};
use crate::port::free_address;
use crate::tools::Tool;

impl OpenBao {
    /// Starts a server with its state on disk that unseals itself: after a kill and a restart its state is unchanged.
    #[track_caller]
    pub fn persistent() -> Option<Self> {
        let mut server = Self::node(None)?;
        server.wait_for_health(501);
        let wanted = json!({"recovery_shares": 1, "recovery_threshold": 1});
        let initialised = server.call("PUT", "sys/init", None, &wanted);
        server.root_token =
            initialised.body["root_token"].as_str().expect("a new server gives its token").to_owned();
        server.wait_for_health(200);
        Some(server)
    }

    /// A second node of a persistent server, as its standby.
    #[track_caller]
    pub fn standby(&self) -> Option<Self> {
        let mut server = Self::node(Some(self))?;
        server.root_token.clone_from(&self.root_token);
        server.wait_for_health(429);
        Some(server)
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts a persistent server again, at the same address.
    #[track_caller]
    pub fn start_again(&mut self) {
        let program = Tool::OpenBao.path().expect("it ran before");
        self.process = start_server(&program, self.directory.path());
        self.wait_for_health(200);
    }

    /// The status of the health endpoint; `None` without a response.
    pub fn health(&self) -> Option<u16> {
        let answer = request(self.listens_at, "GET", "sys/health", None, &Value::Null, Headers::default());
        answer.ok().map(|answer| answer.status)
    }

    #[track_caller]
    fn node(leader: Option<&Self>) -> Option<Self> {
        let program = Tool::OpenBao.path()?;
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (listens_at, cluster) = (free_address(), free_address());
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).expect("a temporary directory is writable");
            path
        };
        // The same key for every node; it protects nothing.
        let key = write("seal.key", &[7; 32]);
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("a temporary directory is writable");
        let join = leader.map_or_else(String::new, |leader| {
            format!("  retry_join {{\n    leader_api_addr = \"{}\"\n  }}\n", leader.address())
        });
        let configuration = format!(
            "storage \"raft\" {{\n  path = {data:?}\n  node_id = \"{listens_at}\"\n  performance_multiplier = \"1\"\n{join}}}\n\
             listener \"tcp\" {{\n  address = \"{listens_at}\"\n  cluster_address = \"{cluster}\"\n  tls_disable = true\n}}\n\
             seal \"static\" {{\n  current_key_id = \"1\"\n  current_key = \"file://{}\"\n}}\n\
             api_addr = \"http://{listens_at}\"\ncluster_addr = \"https://{cluster}\"\n",
            key.display()
        );
        write("openbao.hcl", configuration.as_bytes());
        let process = start_server(&program, directory.path());
        Some(Self { process, directory, listens_at, tls: None, root_token: String::new(), unseal_key: None })
    }
}

#[track_caller]
fn start_server(program: &Path, directory: &Path) -> crate::process::Running {
    let mut command = killed_with_parent(program);
    command.arg("server").arg("-config").arg(directory.join("openbao.hcl"));
    spawn(command, directory)
}
