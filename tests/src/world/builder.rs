//! The configuration of a test world: one sidecar with its directories, servers and secrets.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Layout, World};
use crate::process::{command, without_capabilities};
use crate::server::Server;
use crate::tools::Tool;

/// Collects the servers, secrets and settings of a world, then starts it.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) servers: BTreeMap<String, Server>,
    secrets: BTreeMap<String, Secret>,
    /// The servers of the shared socket's grant; `None`: all servers.
    granted_servers: Option<Vec<String>>,
    grant_lines: Vec<String>,
    top_lines: Vec<String>,
    relay_lines: Vec<String>,
    admin_lines: Vec<String>,
    limit_lines: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) capture: Capture,
    pub(super) state: StateDirectory,
    rights: Rights,
    /// The sidecar's program; `None`: the built one.
    pub(super) program: Option<PathBuf>,
}

/// Whether shims connect through a proxy that records what they receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Capture {
    Nothing,
    TowardsTheShim,
}

/// The privileges of the sidecar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rights {
    AsTheTest,
    /// The test's user, without capabilities.
    NoCapabilities,
}

/// Where the sidecar keeps its state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StateDirectory {
    Ordinary,
    /// A tmpfs of this many KiB, in a mount namespace of the sidecar's own.
    Tmpfs(u32),
}

#[derive(Clone, Debug)]
enum Secret {
    /// The file's content, and further lines of its table.
    File(String, String),
    /// Whole lines of its table.
    Lines(String),
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            servers: BTreeMap::new(),
            secrets: BTreeMap::new(),
            granted_servers: None,
            grant_lines: Vec::new(),
            top_lines: Vec::new(),
            relay_lines: Vec::new(),
            admin_lines: Vec::new(),
            limit_lines: Vec::new(),
            environment: BTreeMap::new(),
            capture: Capture::Nothing,
            state: StateDirectory::Ordinary,
            rights: Rights::AsTheTest,
            program: None,
        }
    }

    /// The sidecar and the commands of the world are this program instead of the built one.
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = Some(program);
        self
    }

    pub fn server(mut self, name: &str, server: Server) -> Self {
        self.servers.insert(name.to_owned(), server);
        self
    }

    /// A secret in a file: a JSON object gives its fields, anything else is the field `value`.
    pub fn secret_file(self, name: &str, content: &str) -> Self {
        self.secret_file_with(name, content, "")
    }

    /// Like [`Self::secret_file`], with further lines of its table.
    pub fn secret_file_with(mut self, name: &str, content: &str, lines: &str) -> Self {
        self.secrets.insert(name.to_owned(), Secret::File(content.to_owned(), lines.to_owned()));
        self
    }

    /// A secret from the sidecar's environment.
    pub fn secret_env(mut self, name: &str, variable: &str, value: &str) -> Self {
        self.environment.insert(variable.to_owned(), value.to_owned());
        self.secrets.insert(name.to_owned(), Secret::Lines(format!("env = {variable:?}")));
        self
    }

    /// A secret that a command prints.
    pub fn secret_exec(mut self, name: &str, argv: &[&str]) -> Self {
        self.secrets.insert(name.to_owned(), Secret::Lines(format!("exec = {argv:?}")));
        self
    }

    /// A secret by the lines of its table, such as `kv = "secret/github"`.
    pub fn secret(mut self, name: &str, lines: &str) -> Self {
        self.secrets.insert(name.to_owned(), Secret::Lines(lines.to_owned()));
        self
    }

    /// A line of the shared socket's grant.
    pub fn grant(mut self, toml: &str) -> Self {
        self.grant_lines.push(toml.to_owned());
        self
    }

    /// The grant of the shared socket names only these servers; by default it names all.
    pub fn granting(mut self, servers: &[&str]) -> Self {
        self.granted_servers = Some(servers.iter().map(|server| (*server).to_owned()).collect());
        self
    }

    /// A line at the top of the configuration.
    pub fn line(mut self, toml: &str) -> Self {
        self.top_lines.push(toml.to_owned());
        self
    }

    /// A line of `[relay]`.
    pub fn relay(mut self, toml: &str) -> Self {
        self.relay_lines.push(toml.to_owned());
        self
    }

    /// A line of `[admin]`.
    pub fn admin(mut self, toml: &str) -> Self {
        self.admin_lines.push(toml.to_owned());
        self
    }

    /// A line of `[limits]`.
    pub fn limit(mut self, toml: &str) -> Self {
        self.limit_lines.push(toml.to_owned());
        self
    }

    /// Records every byte that is sent to a shim.
    pub fn capturing(mut self) -> Self {
        self.capture = Capture::TowardsTheShim;
        self
    }

    /// The state directory is a small tmpfs, which [`World::fill_the_state_directory`] can fill.
    pub fn state_on_tmpfs(mut self, kibibytes: u32) -> Self {
        self.state = StateDirectory::Tmpfs(kibibytes);
        self
    }

    /// The sidecar has no capabilities, even where the tests run as root. Cannot be combined with [`Self::state_on_tmpfs`].
    pub fn without_capabilities(mut self) -> Self {
        self.rights = Rights::NoCapabilities;
        self
    }

    /// Writes the configuration, starts the sidecar, and waits until it accepts links.
    #[track_caller]
    pub fn start(self) -> World {
        let mut world = self.prepare();
        world.start_sidecar();
        world
    }

    /// Writes the configuration and starts nothing.
    #[track_caller]
    pub fn prepare(self) -> World {
        World::with_layout(self)
    }

    /// Writes `cofferdam.toml` and the secrets' files.
    pub(super) fn write(&self, layout: &Layout) {
        for (name, secret) in &self.secrets {
            if let Secret::File(content, _) = secret {
                std::fs::write(layout.secret(name), content).expect("a temporary directory is writable");
            }
        }
        std::fs::write(&layout.config, self.toml(layout)).expect("a temporary directory is writable");
    }

    /// The command that starts the sidecar: directly, without capabilities, or in a mount namespace with a tmpfs as its
    /// state directory.
    #[track_caller]
    pub(super) fn launcher(&self, program: &Path, layout: &Layout) -> Command {
        match (self.state, self.rights) {
            (StateDirectory::Ordinary, Rights::AsTheTest) => command(program),
            (StateDirectory::Ordinary, Rights::NoCapabilities) => without_capabilities(program),
            (StateDirectory::Tmpfs(_), Rights::NoCapabilities) => {
                panic!("a tmpfs as state directory cannot be mounted without capabilities")
            }
            (StateDirectory::Tmpfs(kibibytes), Rights::AsTheTest) => {
                let unshare = Tool::Unshare.path().expect("util-linux is essential on Debian");
                let mut launcher = command(unshare);
                launcher.arg(if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" });
                let script = r#"mount -t tmpfs -o "size=$1k" none "$2" && shift 2 && exec "$@""#;
                launcher
                    .args(["sh", "-c", script, "sh"])
                    .arg(kibibytes.to_string())
                    .arg(&layout.state)
                    .arg(program);
                launcher
            }
        }
    }

    fn toml(&self, layout: &Layout) -> String {
        let mut toml = format!("state-dir = {:?}\n", layout.state);
        for line in &self.top_lines {
            let _ = writeln!(toml, "{line}");
        }
        let _ = writeln!(toml, "\n[relay]\nunix = {:?}\nunix-grant = \"dev\"", layout.relay);
        for line in &self.relay_lines {
            let _ = writeln!(toml, "{line}");
        }
        let _ = writeln!(toml, "\n[admin]\nsocket = {:?}", layout.admin);
        for line in &self.admin_lines {
            let _ = writeln!(toml, "{line}");
        }
        if !self.limit_lines.is_empty() {
            let _ = writeln!(toml, "\n[limits]\n{}", self.limit_lines.join("\n"));
        }
        for (name, secret) in &self.secrets {
            let _ = match secret {
                Secret::File(_, lines) => {
                    writeln!(toml, "\n[secrets.{name}]\nfile = {:?}\n{lines}", layout.secret(name))
                }
                Secret::Lines(lines) => writeln!(toml, "\n[secrets.{name}]\n{lines}"),
            };
        }
        for (name, server) in &self.servers {
            let _ = writeln!(toml, "\n{}", server.toml(name, &layout.records));
        }
        let all = || self.servers.keys().cloned().collect();
        let _ = writeln!(
            toml,
            "\n[grants.dev]\nservers = {:?}",
            self.granted_servers.clone().unwrap_or_else(all)
        );
        for line in &self.grant_lines {
            let _ = writeln!(toml, "{line}");
        }
        toml
    }
}
