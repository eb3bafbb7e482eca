//! A running process in a sandbox: its input, the listeners to its output, and its exit.
//!
//! As in `envd`, output is sent to the current listeners, and discarded if there are none.

use std::sync::Mutex;
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc};
use tokio::time::sleep;

use super::frames::{RpcError, message};
use super::server::lock;
use crate::process::send;

/// As much as `envd` reads at once.
const PIECE: usize = 32 * 1024;

pub(super) struct Process {
    /// The id of the process itself, which is a child of bubblewrap's process.
    pub(super) pid: u32,
    pub(super) config: Value,
    pub(super) tag: Option<String>,
    group: u32,
    stdin: AsyncMutex<Option<ChildStdin>>,
    listeners: Mutex<Vec<mpsc::Sender<Bytes>>>,
    /// Notified after a signal; then the rest of the output is not read.
    signalled: Notify,
    forgotten: Notify,
}

impl Process {
    pub(super) fn new(pid: u32, group: u32, start: &Value, stdin: Option<ChildStdin>) -> Self {
        Self {
            pid,
            config: start["process"].clone(),
            tag: start["tag"].as_str().map(str::to_owned),
            group,
            stdin: AsyncMutex::new(stdin),
            listeners: Mutex::default(),
            signalled: Notify::new(),
            forgotten: Notify::new(),
        }
    }

    pub(super) fn listen(&self) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(64);
        lock(&self.listeners).push(sender);
        receiver
    }

    pub(super) fn signal_group(&self, signal: Signal) {
        let group = i32::try_from(self.group).expect("process ids fit");
        // The process may have exited already.
        let _ = killpg(Pid::from_raw(group), signal);
    }

    pub(super) fn signal(&self, signal: Signal) {
        send(self.pid, signal);
        self.signalled.notify_one();
    }

    /// Closes the pipes of the process, which still runs.
    pub(super) fn forget(&self) {
        self.forgotten.notify_one();
    }

    pub(super) async fn write(&self, bytes: &[u8]) -> Result<(), RpcError> {
        let mut stdin = self.stdin.lock().await;
        let Some(stdin) = stdin.as_mut() else {
            return Err(RpcError::new("internal", "error writing to stdin: stdin not enabled or closed"));
        };
        let failed = |error| RpcError::new("internal", format!("error writing to stdin: {error}"));
        stdin.write_all(bytes).await.map_err(failed)?;
        stdin.flush().await.map_err(failed)
    }

    pub(super) async fn close_stdin(&self) {
        self.stdin.lock().await.take();
    }

    /// Sends output to the listeners until the process exits. Returns its last event, or `None` if `envd` was restarted.
    pub(super) async fn forward_until_exit(
        &self,
        mut child: Child,
        limit: Option<Duration>,
    ) -> Option<Value> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let drained = async {
            tokio::join!(self.forward_output(stdout, "stdout"), self.forward_output(stderr, "stderr"));
        };
        let expired = async {
            match limit {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = drained => {}
            () = self.signalled.notified() => {}
            () = expired => self.signal_group(Signal::SIGKILL),
            () = self.forgotten.notified() => {
                self.close_stdin().await;
                lock(&self.listeners).clear();
                // Waits, so that no zombie is left.
                let _ = child.wait().await;
                return None;
            }
        }
        let status = child.wait().await.ok();
        // Bubblewrap exits with 128 and the number of the signal.
        let code = status.and_then(|status| status.code()).unwrap_or(-1);
        let (code, text) = match code {
            129..=192 => (-1, format!("signal: {}", code - 128)),
            code => (code, format!("exit status {code}")),
        };
        let mut end = json!({"exited": code >= 0, "status": text});
        if code != 0 {
            end["exitCode"] = code.into();
            end["error"] = text.into();
        }
        Some(json!({"event": {"end": end}}))
    }

    /// Sends the last event to all listeners, and removes them.
    pub(super) async fn finish(&self, event: &Value) {
        self.send_to_listeners(message(event)).await;
        lock(&self.listeners).clear();
    }

    async fn forward_output(&self, source: Option<impl AsyncRead + Unpin>, name: &str) {
        let Some(mut source) = source else { return };
        let mut buffer = vec![0; PIECE];
        while let Ok(count @ 1..) = source.read(&mut buffer).await {
            if lock(&self.listeners).is_empty() {
                continue;
            }
            let bytes = Base64::encode_string(&buffer[..count]);
            self.send_to_listeners(message(&json!({"event": {"data": {name: bytes}}}))).await;
        }
    }

    async fn send_to_listeners(&self, frame: Bytes) {
        let listeners = lock(&self.listeners).clone();
        for listener in &listeners {
            // A listener that does not read blocks the process, as with `envd`.
            let _ = listener.send(frame.clone()).await;
        }
        lock(&self.listeners).retain(|listener| !listener.is_closed());
    }
}
