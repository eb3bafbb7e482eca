//! A sidecar in a temporary directory: its configuration, its processes, its audit, its log.
//!
//! ```ignore
//! let world = World::new().server("github", Server::fixture().allow(&["list_*"])).start();
//! let mut shim = world.shim("github");
//! ```
//!
//! What must stay true: a world that goes out of scope leaves no process running, and shows its logs if the test
//! failed.

mod builder;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::deadline::{PATIENCE, holds_within, wait_until};
use crate::harness::Harness;
use crate::process::{Running, built, command, command_line, into_file, output_of, read, send};
use crate::recording_proxy::RecordingProxy;

pub use builder::Builder;
use builder::{Capture, StateDirectory};

/// One sidecar and everything around it.
#[derive(Debug)]
pub struct World {
    builder: Builder,
    layout: Layout,
    sidecar: Option<Running>,
    proxy: Option<RecordingProxy>,
}

/// The paths of a world's files.
#[derive(Debug)]
pub struct Layout {
    root: tempfile::TempDir,
    pub config: PathBuf,
    pub state: PathBuf,
    pub relay: PathBuf,
    pub admin: PathBuf,
    pub records: PathBuf,
    pub log: PathBuf,
    secrets: PathBuf,
}

/// One tool call that a fixture executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    pub tool: String,
    pub arguments: Value,
}

impl World {
    #[expect(clippy::new_ret_no_self, reason = "a world is built, then started")]
    pub fn new() -> Builder {
        Builder::new()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Starts a shim for this server, with a harness connected to its stdio.
    #[track_caller]
    pub fn shim(&self, server: &str) -> Harness {
        let mut command = self.shim_command();
        command.args(["--server", server]);
        Harness::start(command, "cofferdam-shim")
    }

    /// Like [`Self::shim`], with the legacy handshake made.
    #[track_caller]
    pub fn connected(&self, server: &str) -> Harness {
        self.shim(server).initialized()
    }

    /// The command of a shim with the relay's address and an empty environment.
    #[track_caller]
    pub fn shim_command(&self) -> Command {
        let mut command = self.bare_shim_command();
        command.arg("--relay").arg(self.link());
        command
    }

    /// The command of a shim without a relay address, for a test that sets one itself.
    #[track_caller]
    pub fn bare_shim_command(&self) -> Command {
        let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
        command.env_clear();
        command
    }

    /// The address for a shim's `--relay`: `unix:PATH`.
    pub fn link(&self) -> String {
        let path = self.proxy.as_ref().map_or(self.layout.relay.as_path(), RecordingProxy::path);
        format!("unix:{}", path.display())
    }

    /// Runs a `cofferdam` command with this world's configuration.
    #[track_caller]
    pub fn cofferdam(&self, arguments: &[&str]) -> Output {
        let mut command = self.cofferdam_command();
        command.args(arguments).arg("-c").arg(&self.layout.config);
        output_of(command, &format!("cofferdam {}", arguments.join(" ")))
    }

    /// Runs a `cofferdam` command that must succeed; returns its standard output.
    #[track_caller]
    pub fn cofferdam_text(&self, arguments: &[&str]) -> String {
        let output = self.cofferdam(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}\n{}", output.status, text(&output.stderr));
        text(&output.stdout)
    }

    /// The output of `sessions --json`.
    #[track_caller]
    pub fn sessions_json(&self) -> Value {
        let text = self.cofferdam_text(&["sessions", "--json"]);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("sessions --json is not JSON: {error} in {text}"))
    }

    /// The links of `sessions --json`, then its attached sandboxes without links.
    #[track_caller]
    pub fn sessions(&self) -> Value {
        let all = self.sessions_json();
        let list = |key: &str| all[key].as_array().cloned().unwrap_or_default();
        Value::Array([list("sessions"), list("attached")].concat())
    }

    /// Every record of the audit, oldest first; a torn last line is left out.
    pub fn audit(&self) -> Vec<Value> {
        let text = String::from_utf8_lossy(&self.audit_bytes()).into_owned();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The records of decisions about `tools/call`.
    pub fn decisions(&self) -> Vec<Value> {
        let is_call = |record: &Value| record["method"] == "tools/call" && record.get("verdict").is_some();
        self.audit().into_iter().filter(is_call).collect()
    }

    /// The records of outcomes of `tools/call`.
    ///
    /// They are written soon after the response, so this waits up to a second for as many outcomes as allowed calls.
    pub fn outcomes(&self) -> Vec<Value> {
        let is_call = |record: &Value| record["method"] == "tools/call" && record.get("result").is_some();
        let outcomes = || -> Vec<Value> { self.audit().into_iter().filter(is_call).collect() };
        let allowed = self.decisions().iter().filter(|record| record["verdict"] == "allow").count();
        // The result is ignored: calls in progress have no outcome yet.
        let _ = holds_within(Duration::from_secs(1), || outcomes().len() >= allowed);
        outcomes()
    }

    /// The audit files' bytes, one file after the other.
    pub fn audit_bytes(&self) -> Vec<u8> {
        self.audit_files().iter().flat_map(|path| read(path)).collect()
    }

    pub fn audit_files(&self) -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(self.state_path_on_host().join("audit")).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
            .collect();
        files.sort();
        files
    }

    /// The sidecar's stderr and stdout.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&read(&self.layout.log)).into_owned()
    }

    /// The calls that a fixture executed.
    pub fn executions(&self, server: &str) -> Vec<Execution> {
        let text =
            String::from_utf8_lossy(&read(&self.layout.records.join(format!("{server}.count")))).into_owned();
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let execution = |record: Value| Execution {
            tool: record["tool"].as_str().unwrap_or_default().to_owned(),
            arguments: record["arguments"].clone(),
        };
        records.map(execution).collect()
    }

    /// How often a tool was executed.
    pub fn times_executed(&self, server: &str, tool: &str) -> usize {
        self.executions(server).iter().filter(|execution| execution.tool == tool).count()
    }

    /// Every process id that a fixture ever had, including its daemons.
    pub fn fixture_processes(&self, server: &str) -> Vec<u32> {
        let text =
            String::from_utf8_lossy(&read(&self.layout.records.join(format!("{server}.pids")))).into_owned();
        text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }

    /// The messages that each process of a fixture received, in the order of their starts: `id`, `method` and `params`.
    pub fn received(&self, server: &str) -> Vec<Vec<Value>> {
        let text = String::from_utf8_lossy(&read(&self.layout.records.join(format!("{server}.received"))))
            .into_owned();
        let all: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |id: u32| all.iter().filter(|message| message["process"] == id).cloned().collect();
        self.fixture_processes(server).into_iter().map(of).collect()
    }

    /// Every byte that was sent to a shim.
    ///
    /// # Panics
    /// When the world was not built with [`Builder::capturing`].
    #[track_caller]
    pub fn bytes_towards_shims(&self) -> Vec<u8> {
        self.proxy.as_ref().expect("the world was built with `capturing`").towards_the_shim()
    }

    /// Cuts the connections of all shims, as a network failure would; the shims and the sidecar keep running.
    ///
    /// # Panics
    /// When the world was not built with [`Builder::capturing`].
    #[track_caller]
    pub fn cut_connections(&self) {
        self.proxy.as_ref().expect("the world was built with `capturing`").cut();
    }

    /// Cuts only the shims' side of the connections: the sidecar's side stays open, as with a NAT that dropped its
    /// state.
    ///
    /// # Panics
    /// When the world was not built with [`Builder::capturing`].
    #[track_caller]
    pub fn half_cut_connections(&self) {
        self.proxy.as_ref().expect("the world was built with `capturing`").half_cut();
    }

    /// Asserts that no encoding of a secret is in the log, in the audit, or, in a world built with
    /// [`Builder::capturing`], in the bytes sent to shims.
    #[track_caller]
    pub fn assert_secret_not_leaked(&self, secret: &str) {
        if let Some(proxy) = &self.proxy {
            let recorded = proxy.towards_the_shim();
            assert!(!recorded.is_empty(), "the proxy recorded nothing");
            crate::encodings::assert_absent("the bytes sent to the shim", &recorded, secret);
        }
        crate::encodings::assert_absent("the log", self.log().as_bytes(), secret);
        crate::encodings::assert_absent("the audit", &self.audit_bytes(), secret);
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        wait_until(what, condition);
    }

    /// The sidecar's process.
    ///
    /// # Panics
    /// When none was started.
    #[track_caller]
    pub fn sidecar(&mut self) -> &mut Running {
        self.sidecar.as_mut().expect("the sidecar was started")
    }

    /// Starts the sidecar and waits until it accepts links and admin requests.
    #[track_caller]
    pub fn start_sidecar(&mut self) {
        self.launch();
        let (socket, admin) = (self.layout.relay.clone(), self.layout.admin.clone());
        let running = self.sidecar.as_mut().expect("it was just launched");
        let mut has_exited = false;
        wait_until("the sidecar accepts links", || {
            has_exited = !running.is_running();
            has_exited || UnixStream::connect(&socket).is_ok() && admin.exists()
        });
        assert!(!has_exited, "the sidecar exited at once:\n{}", self.log());
    }

    /// Starts the sidecar and does not wait for it.
    #[track_caller]
    pub fn launch(&mut self) {
        let program = self.program();
        let mut command = self.builder.launcher(&program, &self.layout);
        command.args(["serve", "-c"]).arg(&self.layout.config);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("HOME", self.layout.root.path())
            .env("COFFERDAM_LOG", "cofferdam=debug")
            .envs(&self.builder.environment);
        command.stdin(Stdio::null()).stdout(into_file(&self.layout.log)).stderr(into_file(&self.layout.log));
        self.sidecar = Some(Running::spawn(command, "cofferdam serve"));
    }

    /// Sends SIGTERM to the sidecar and waits until it has exited.
    #[track_caller]
    pub fn stop_sidecar(&mut self) {
        self.sidecar().signal(Signal::SIGTERM);
        let status = self.sidecar().wait(PATIENCE);
        assert!(status.success(), "the sidecar failed after SIGTERM: {status}");
    }

    /// `kill -9`.
    #[track_caller]
    pub fn kill9_sidecar(&mut self) {
        self.sidecar().kill9();
    }

    /// Writes another configuration; `cofferdam reload` or SIGHUP applies it.
    pub fn rewrite(&mut self, change: impl FnOnce(Builder) -> Builder) {
        self.builder = change(self.builder.clone());
        self.builder.write(&self.layout);
    }

    /// What the commands promise that need no sidecar.
    #[track_caller]
    pub fn assert_nothing_is_in_the_state_directory(&self) {
        let found: Vec<_> = std::fs::read_dir(&self.layout.state).into_iter().flatten().flatten().collect();
        assert!(found.is_empty(), "{found:?}");
    }

    /// Fills the tmpfs of the state directory (see [`Builder::state_on_tmpfs`]) to the last byte.
    #[track_caller]
    pub fn fill_the_state_directory(&self) {
        use std::io::Write;
        let path = self.state_path_on_host().join("filler");
        let mut file =
            std::fs::File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for size in [4096, 512, 64, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    /// Removes the file that fills the state directory.
    pub fn empty_the_state_directory(&self) {
        let _ = std::fs::remove_file(self.state_path_on_host().join("filler"));
    }

    fn with_layout(builder: Builder) -> Self {
        let layout = Layout::new();
        builder.write(&layout);
        let proxy = match builder.capture {
            Capture::Nothing => None,
            Capture::TowardsTheShim => {
                Some(RecordingProxy::start(&layout.root.path().join("proxy.sock"), &layout.relay))
            }
        };
        Self { builder, layout, sidecar: None, proxy }
    }

    /// A `cofferdam` command with this world's environment, for a test that does not wait for its end.
    pub fn cofferdam_command(&self) -> Command {
        self.command_of(&self.program())
    }

    #[track_caller]
    fn program(&self) -> PathBuf {
        self.builder.program.clone().unwrap_or_else(|| built("COFFERDAM_BIN", "cofferdam"))
    }

    /// This program in the environment of the world.
    pub fn command_of(&self, program: &Path) -> Command {
        let mut command = command(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.layout.root.path()).envs(&self.builder.environment);
        command
    }

    /// The state directory; one on a tmpfs in the sidecar's mount namespace is reached through `/proc`.
    fn state_path_on_host(&self) -> PathBuf {
        match (self.builder.state, &self.sidecar) {
            (StateDirectory::Tmpfs(_), Some(sidecar)) => {
                let inside = self.layout.state.strip_prefix("/").expect("the path is absolute");
                Path::new(&format!("/proc/{}/root", sidecar.id())).join(inside)
            }
            _ => self.layout.state.clone(),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("=== configuration\n{}", String::from_utf8_lossy(&read(&self.layout.config)));
            eprintln!("=== sidecar's log (end)\n{}", tail(&self.log(), 8000));
            eprintln!("=== audit (end)\n{}", tail(&String::from_utf8_lossy(&self.audit_bytes()), 4000));
        }
        if let Some(mut sidecar) = self.sidecar.take() {
            sidecar.signal(Signal::SIGTERM);
            let has_exited =
                crate::deadline::holds_within(std::time::Duration::from_secs(10), || !sidecar.is_running());
            if !has_exited {
                eprintln!("the sidecar outlived SIGTERM by 10 s and is killed");
            }
        }
        // A broken sidecar may leave servers running; they must not disturb the next test.
        for id in self.builder.servers.keys().flat_map(|server| self.fixture_processes(server)) {
            if command_line(id).contains("fixture-server") {
                send(id, Signal::SIGKILL);
            }
        }
    }
}

impl Layout {
    fn new() -> Self {
        let root = tempfile::Builder::new()
            .prefix("cofferdam-")
            .tempdir()
            .expect("a temporary directory can be made");
        let path = |name: &str| root.path().join(name);
        for directory in ["state", "relay", "admin", "records", "secrets"] {
            std::fs::create_dir(path(directory)).expect("a temporary directory is writable");
        }
        Self {
            config: path("cofferdam.toml"),
            state: path("state"),
            relay: path("relay/relay.sock"),
            admin: path("admin/admin.sock"),
            records: path("records"),
            log: path("sidecar.log"),
            secrets: path("secrets"),
            root,
        }
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    fn secret(&self, name: &str) -> PathBuf {
        self.secrets.join(name)
    }
}

fn tail(text: &str, characters: usize) -> String {
    let skipped = text.chars().count().saturating_sub(characters);
    text.chars().skip(skipped).collect()
}
