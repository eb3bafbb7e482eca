//! The state of one sandbox: its files, its token, its processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::process::Process;
use super::server::{lock, random_hex};
use super::{API_KEY, OTHER_API_KEY};
use crate::process::{command, output_of};

/// The default user of a template.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SandboxUser {
    Root,
    /// uid 1000.
    Usual,
}

/// An account of the platform. A sandbox of one account does not exist for the API keys of the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Account {
    Other,
    Own,
}

/// Whether a request to a paused sandbox resumes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AutoResume {
    No,
    Yes,
}

pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) account: Account,
    pub(super) user: SandboxUser,
    directory: TempDir,
    inner: Mutex<Inner>,
}

struct Inner {
    lifecycle: Lifecycle,
    auto_resume: AutoResume,
    token: String,
    /// Cancelled to disconnect all streams, and then replaced.
    streams: CancellationToken,
    /// Cancelled to stall all streams that are open, and then replaced.
    stall: CancellationToken,
    processes: BTreeMap<u32, Arc<Process>>,
    /// The last events of processes that have exited.
    ended: BTreeMap<u32, Value>,
    /// The sandbox ends when an upload into it has this many bytes.
    dies_at_upload_size: Option<usize>,
    /// Of an upload at most this many bytes are stored.
    stored_upload_size: Option<usize>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Lifecycle {
    Dead,
    Paused,
    Running,
}

impl Account {
    /// The account's API key.
    pub fn api_key(self) -> &'static str {
        match self {
            Self::Other => OTHER_API_KEY,
            Self::Own => API_KEY,
        }
    }

    pub(super) fn of_key(key: &[u8]) -> Option<Self> {
        [Self::Other, Self::Own].into_iter().find(|account| account.api_key().as_bytes() == key)
    }
}

impl SandboxUser {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "root" => Some(Self::Root),
            "user" => Some(Self::Usual),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Usual => "user",
        }
    }

    pub(super) fn home(self) -> &'static str {
        match self {
            Self::Root => "/root",
            Self::Usual => "/home/user",
        }
    }
}

impl Sandbox {
    pub(super) fn new(id: String, account: Account, user: SandboxUser) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        for inside in ["home/user", "root", "run/e2b", "tmp", "usr/local/bin", "usr/local/lib"] {
            fs::create_dir_all(directory.path().join(inside)).expect("the directory is writable");
        }
        let inner = Inner {
            lifecycle: Lifecycle::Running,
            auto_resume: AutoResume::No,
            token: String::new(),
            streams: CancellationToken::new(),
            stall: CancellationToken::new(),
            processes: BTreeMap::new(),
            ended: BTreeMap::new(),
            dies_at_upload_size: None,
            stored_upload_size: None,
        };
        let sandbox = Self { id, account, user, directory, inner: Mutex::new(inner) };
        sandbox.init();
        sandbox
    }

    /// A new sandbox with a copy of this one's files.
    pub(super) fn fork(&self, id: String) -> Self {
        let fork = Self::new(id, self.account, self.user);
        let mut copy = command("cp");
        copy.args(["-a", "--"]).arg(self.root().join(".")).arg(fork.root());
        assert!(output_of(copy, "cp").status.success(), "the files of a sandbox can be copied");
        fork.init();
        fork
    }

    /// Sets a new token and writes the id file, as the platform does at each start and resume.
    fn init(&self) {
        lock(&self.inner).token = format!("ea_{}", random_hex());
        let file = self.root().join("run/e2b/.E2B_SANDBOX_ID");
        fs::write(file, &self.id).expect("the directory is writable");
    }

    pub(super) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn token(&self) -> String {
        lock(&self.inner).token.clone()
    }

    pub(super) fn pause(&self) {
        self.freeze();
        self.cut();
    }

    pub(super) fn freeze(&self) {
        lock(&self.inner).lifecycle = Lifecycle::Paused;
        self.processes().iter().for_each(|process| process.signal_group(Signal::SIGSTOP));
    }

    pub(super) fn resume(&self) {
        lock(&self.inner).lifecycle = Lifecycle::Running;
        self.init();
        self.processes().iter().for_each(|process| process.signal_group(Signal::SIGCONT));
    }

    pub(super) fn end(&self) {
        lock(&self.inner).lifecycle = Lifecycle::Dead;
        self.processes().iter().for_each(|process| process.signal_group(Signal::SIGKILL));
        self.cut();
    }

    pub(super) fn is_paused(&self) -> bool {
        lock(&self.inner).lifecycle == Lifecycle::Paused
    }

    pub(super) fn is_dead(&self) -> bool {
        lock(&self.inner).lifecycle == Lifecycle::Dead
    }

    pub(super) fn set_auto_resume(&self, auto_resume: AutoResume) {
        lock(&self.inner).auto_resume = auto_resume;
    }

    /// Resumes a paused sandbox that resumes by itself, and returns whether a request reaches `envd`.
    pub(super) fn resume_if_needed(&self) -> bool {
        let resumes = {
            let inner = lock(&self.inner);
            inner.lifecycle == Lifecycle::Paused && inner.auto_resume == AutoResume::Yes
        };
        if resumes {
            self.resume();
        }
        lock(&self.inner).lifecycle == Lifecycle::Running
    }

    pub(super) fn cut(&self) {
        let streams = std::mem::replace(&mut lock(&self.inner).streams, CancellationToken::new());
        streams.cancel();
    }

    /// Open streams stay open, but carry no more data.
    pub(super) fn stall(&self) {
        std::mem::replace(&mut lock(&self.inner).stall, CancellationToken::new()).cancel();
    }

    /// Cancelled when the streams that are open now are stalled.
    pub(super) fn stalled(&self) -> CancellationToken {
        lock(&self.inner).stall.clone()
    }

    /// Cancelled when the streams that are open now are disconnected.
    pub(super) fn streams(&self) -> CancellationToken {
        lock(&self.inner).streams.clone()
    }

    pub(super) fn restart_envd(&self) {
        self.cut();
        let forgotten = std::mem::take(&mut lock(&self.inner).processes);
        forgotten.values().for_each(|process| process.forget());
        lock(&self.inner).ended.clear();
    }

    pub(super) fn die_during_upload(&self, bytes: usize) {
        lock(&self.inner).dies_at_upload_size = Some(bytes);
    }

    pub(super) fn truncate_uploads(&self, bytes: usize) {
        lock(&self.inner).stored_upload_size = Some(bytes);
    }

    /// The part of an uploaded file that is stored.
    pub(super) fn stored_part<'content>(&self, content: &'content [u8]) -> &'content [u8] {
        let size = lock(&self.inner).stored_upload_size.unwrap_or(content.len());
        &content[..size.min(content.len())]
    }

    pub(super) fn dies_at_upload_size(&self) -> Option<usize> {
        lock(&self.inner).dies_at_upload_size
    }

    pub(super) fn add(&self, process: Arc<Process>) {
        let mut inner = lock(&self.inner);
        inner.ended.remove(&process.pid);
        inner.processes.insert(process.pid, process);
    }

    pub(super) fn record_exit(&self, pid: u32, event: Value) {
        let mut inner = lock(&self.inner);
        // If it is not there, `envd` was restarted and does not know the process.
        if inner.processes.remove(&pid).is_some() {
            inner.ended.insert(pid, event);
        }
    }

    pub(super) fn last_event(&self, pid: u32) -> Option<Value> {
        lock(&self.inner).ended.get(&pid).cloned()
    }

    pub(super) fn processes(&self) -> Vec<Arc<Process>> {
        lock(&self.inner).processes.values().cloned().collect()
    }

    /// Resolves the path of a request, which is absolute or relative to the home.
    pub(super) fn resolve(user: SandboxUser, path: &str) -> PathBuf {
        Path::new(user.home()).join(path.strip_prefix("~/").unwrap_or(path))
    }
}
