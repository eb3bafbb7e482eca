//! A double of E2B over real HTTP: the control API, the proxy in front of the sandboxes, and `envd` in each of them.
//!
//! It behaves as the real `envd` was observed to behave; the real Python and JavaScript SDKs are run against it in
//! `tests/tests/e2b`. A sandbox is a directory whose subdirectories bubblewrap mounts for real processes, which run as the
//! default user (uid 1000) or as root.
//!
//! Not implemented: terminals, watching directories, signed URLs, and lifetimes of sandboxes. A fork has the files of its
//! original, but none of its processes.
//!
//! | module | what it holds |
//! |---|---|
//! | `body` | responses: JSON, errors, streams that can be cut |
//! | `control` | the control API |
//! | `envd` | the process service |
//! | `faults` | the faults that a test can inject |
//! | `files` | upload and download |
//! | `frames` | the frames of the Connect protocol |
//! | `launch` | how a process is started in a sandbox |
//! | `process` | a running process, its listeners and its end |
//! | `sandbox` | the state of one sandbox |
//! | `server` | the two listeners, and what they record |

mod body;
mod control;
mod envd;
mod faults;
mod files;
mod frames;
mod launch;
mod process;
mod sandbox;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub use faults::{CutEvery, Fault};
pub use sandbox::{Account, AutoResume, SandboxUser};
pub use server::{Head, Side};

use crate::tools::Tool;
use sandbox::Sandbox;
use server::Shared;

/// A running double. On drop its sandboxes and all their processes are ended.
pub struct E2bDouble {
    shared: Arc<Shared>,
    api: std::net::SocketAddr,
    proxy: std::net::SocketAddr,
    runtime: Option<Runtime>,
}

/// The API key of [`Account::Own`].
pub const API_KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
/// The API key of [`Account::Other`].
pub const OTHER_API_KEY: &str = "e2b_fedcba9876543210fedcba9876543210fedcba98";

/// The time limit that the SDKs set for a command unless they are told another: after it the platform ends the stream and the
/// process.
pub const SDK_TIME_LIMIT: Duration = Duration::from_secs(60);

impl E2bDouble {
    /// `None` if bubblewrap is missing, which is reported.
    #[track_caller]
    pub fn start() -> Option<Self> {
        Self::with_speed(1)
    }

    /// As [`Self::start`], with keep-alive intervals and time limits of processes divided by `speed`.
    ///
    /// # Panics
    /// When loopback has no free port.
    #[track_caller]
    pub fn with_speed(speed: u32) -> Option<Self> {
        let bubblewrap = Tool::Bubblewrap.path()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("e2b-double")
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let shared = Arc::new(Shared::new(bubblewrap, speed));
        let api = server::listen(&shared, Side::Control, runtime.handle());
        let proxy = server::listen(&shared, Side::Envd, runtime.handle());
        Some(Self { shared, api, proxy, runtime: Some(runtime) })
    }

    pub fn api_url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The address of every sandbox's `envd`; a header names the sandbox.
    pub fn sandbox_url(&self) -> String {
        format!("http://{}", self.proxy)
    }

    /// A new running sandbox of [`Account::Own`]; returns its id.
    pub fn create(&self, user: SandboxUser) -> String {
        self.create_in(Account::Own, user)
    }

    /// A new running sandbox of this account; returns its id.
    pub fn create_in(&self, account: Account, user: SandboxUser) -> String {
        self.shared.create(account, user).id.clone()
    }

    /// Whether the sandbox exists, which it does not any more after its end.
    pub fn exists(&self, id: &str) -> bool {
        self.shared.sandbox(id).is_some()
    }

    /// Freezes the processes and cuts all streams.
    #[track_caller]
    pub fn pause(&self, id: &str) {
        self.sandbox(id).pause();
    }

    /// Freezes the processes, but leaves open streams open.
    #[track_caller]
    pub fn pause_quietly(&self, id: &str) {
        self.sandbox(id).freeze();
    }

    #[track_caller]
    pub fn resume(&self, id: &str) {
        self.sandbox(id).resume();
    }

    #[track_caller]
    pub fn is_paused(&self, id: &str) -> bool {
        self.sandbox(id).is_paused()
    }

    /// Whether a request to a paused sandbox resumes it.
    #[track_caller]
    pub fn set_auto_resume(&self, id: &str, auto_resume: AutoResume) {
        self.sandbox(id).set_auto_resume(auto_resume);
    }

    /// Disconnects all streams of a sandbox; its processes still run.
    #[track_caller]
    pub fn cut(&self, id: &str) {
        self.sandbox(id).cut();
    }

    /// The open streams of a sandbox stay open, but carry no more output or keep-alives.
    #[track_caller]
    pub fn stall(&self, id: &str) {
        self.sandbox(id).stall();
    }

    /// Every stream that is opened from now on is disconnected after this many bytes or this time.
    pub fn cut_every(&self, every: Option<CutEvery>) {
        self.shared.faults.cut_every(every);
    }

    /// From now on streams and processes whose request has no time limit have the SDKs' default, [`SDK_TIME_LIMIT`].
    pub fn limit_like_sdks(&self) {
        self.shared.faults.limit_time(Some(SDK_TIME_LIMIT));
    }

    /// Restarts `envd`, which then knows none of the processes; their pipes are closed.
    #[track_caller]
    pub fn restart_envd(&self, id: &str) {
        self.sandbox(id).restart_envd();
    }

    /// Ends the sandbox when an upload into it has this many bytes.
    #[track_caller]
    pub fn die_during_upload(&self, id: &str, bytes: usize) {
        self.sandbox(id).die_during_upload(bytes);
    }

    /// The sandbox stores at most this many bytes of each uploaded file, and reports success, as with a full disk that is noticed
    /// late.
    #[track_caller]
    pub fn truncate_uploads(&self, id: &str, bytes: usize) {
        self.sandbox(id).truncate_uploads(bytes);
    }

    /// From now on `sandbox_url` leads straight to this sandbox's `envd`, as if it ran without E2B: requests need no sandbox id
    /// and no token.
    #[track_caller]
    pub fn serve_alone(&self, id: &str) {
        self.shared.serve_alone(&self.sandbox(id));
    }

    /// While this file exists, the control API does not respond. So a test's script in another process decides when it does.
    pub fn hold_while_exists(&self, file: &Path) {
        self.shared.faults.hold_while_exists(file);
    }

    /// Injects this fault into the next `times` requests whose path or query contains `path`.
    pub fn plan(&self, side: Side, path: &str, fault: Fault, times: usize) {
        self.shared.faults.plan(side, path, fault, times);
    }

    /// Injects this fault into one request to this side, after this many other requests to it.
    pub fn plan_after(&self, side: Side, requests: usize, fault: Fault) {
        self.shared.faults.plan_after(side, requests, fault);
    }

    /// Requests are served normally from now on.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// Deletes a sandbox, as its owner can at any time.
    #[track_caller]
    pub fn delete(&self, id: &str) {
        self.sandbox(id).end();
    }

    /// What the platform would log: request lines, requests to start processes, unary requests, paths of files. Input streams are
    /// not logged.
    pub fn log(&self) -> Vec<String> {
        self.shared.log()
    }

    /// The heads of all requests.
    pub fn heads(&self) -> Vec<Head> {
        self.shared.heads()
    }

    /// The path on this machine of a path in a sandbox.
    #[track_caller]
    pub fn path(&self, id: &str, inside: &str) -> PathBuf {
        self.sandbox(id).root().join(inside.trim_start_matches('/'))
    }

    /// A command that runs a program in the sandbox as its usual processes run, but with stdin and stdout of this machine.
    #[track_caller]
    pub fn command(&self, id: &str, program: &str, arguments: &[&str]) -> Command {
        let process = json!({"cmd": program, "args": arguments});
        let sandbox = self.sandbox(id);
        launch::bubblewrap_command(&self.shared.bubblewrap, sandbox.root(), sandbox.user, &process)
    }

    /// The process ids, on this machine, of the processes that `envd` knows.
    #[track_caller]
    pub fn processes(&self, id: &str) -> Vec<u32> {
        self.sandbox(id).processes().iter().map(|process| process.pid).collect()
    }

    /// The `process` objects of the requests that started these processes.
    #[track_caller]
    pub fn process_configs(&self, id: &str) -> Vec<Value> {
        self.sandbox(id).processes().iter().map(|process| process.config.clone()).collect()
    }

    #[track_caller]
    pub fn token(&self, id: &str) -> String {
        self.sandbox(id).token()
    }

    #[track_caller]
    fn sandbox(&self, id: &str) -> Arc<Sandbox> {
        self.shared.sandbox(id).unwrap_or_else(|| panic!("there is no sandbox {id}"))
    }
}

impl Drop for E2bDouble {
    fn drop(&mut self) {
        self.shared.end_all();
        if let Some(runtime) = self.runtime.take() {
            // Not awaited, because a test may drop this inside a runtime.
            runtime.shutdown_background();
        }
        if std::thread::panicking() {
            eprintln!("=== log of the E2B double\n{}", self.log().join("\n"));
        }
    }
}
