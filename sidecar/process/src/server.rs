//! A running server process, and the handle that ends it.
//!
//! What must stay true: once a handle is ended or dropped, every process of the server is killed.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, send};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use super::exit::Exit;
use super::warden::{KeeperId, ServerState, Warden};
use super::wire::Order;

/// How long a keeper may take to kill all processes once the grace is over; then the keeper is killed.
const KEEPER_KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the warden may take to end the orphans of a killed keeper.
const WARDEN_KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// A started server. Its fields can be moved to different tasks; only the handle keeps the server alive.
#[derive(Debug)]
pub struct ServerProcess {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub handle: ProcessHandle,
    /// Of a confined server: the sockets of its network, in the order of [`Network`](super::Network).
    pub sockets: Vec<OwnedFd>,
    pub runs_as: RunsAs,
}

/// The user of a server for the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RunsAs {
    /// The sidecar's user.
    Sidecar,
    /// A confined server of a sidecar that runs as root: a user that nothing else on this host is.
    Unused,
    /// The same where that is not possible, and why: it is root without capabilities.
    Root { why: String },
}

/// A started server without its pipes. Dropping it kills every process of the server at once.
pub struct ProcessHandle {
    pid: u32,
    keeper: KeeperHandle,
}

/// A keeper's control socket, and the state that the warden reports. Dropping it makes the keeper kill every process of the
/// server.
pub(super) struct KeeperHandle {
    pub(super) warden: &'static Warden,
    pub(super) id: KeeperId,
    pub(super) pid: u32,
    pub(super) control: Arc<UnixStream>,
    pub(super) state: watch::Receiver<ServerState>,
}

/// Whether every process of a server is dead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Every descendant is dead.
    All,
    /// All were sent SIGKILL, but some were not dead when the time was up: they hang in the kernel. The warden continues to
    /// kill them.
    NotYet,
}

impl ServerProcess {
    pub fn pid(&self) -> u32 {
        self.handle.pid()
    }

    /// See [`ProcessHandle::exited`].
    pub async fn exited(&mut self) -> Exit {
        self.handle.exited().await
    }

    /// Closes the server's stdin, then ends it like [`ProcessHandle::end`].
    pub async fn end(self, grace: Duration) -> Ended {
        let Self { stdin, stdout, stderr, handle, sockets: _, runs_as: _ } = self;
        drop(stdin);
        let ended = handle.end(grace).await;
        // Closed last: a write to a closed pipe would kill the server (SIGPIPE) while it shuts down.
        drop((stdout, stderr));
        ended
    }
}

impl ProcessHandle {
    pub(super) fn new(pid: u32, keeper: KeeperHandle) -> Self {
        Self { pid, keeper }
    }

    /// The server's main process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The keeper's process.
    pub fn keeper_pid(&self) -> u32 {
        self.keeper.pid
    }

    /// Waits until the server's main process has exited. Its other processes are being killed then. Cancel-safe.
    pub async fn exited(&mut self) -> Exit {
        let state = &mut self.keeper.state;
        let exited =
            state.wait_for(|state| matches!(state, ServerState::Exited(..) | ServerState::Ended(..))).await;
        match exited.as_deref() {
            Ok(ServerState::Exited(_, exit) | ServerState::Ended(_, exit)) => *exit,
            _ => Exit::KeeperLost,
        }
    }

    /// Sends SIGHUP to the server's main process only: the signal's default action would end helper processes.
    pub fn hang_up(&self) {
        self.send_order(Order::HangUp);
    }

    /// Ends the server: it has a quarter of the grace to exit by itself (close its stdin first), gets SIGTERM and has
    /// the rest of the grace, and then it and every descendant get SIGKILL. Takes at most two seconds longer than the
    /// grace.
    pub async fn end(mut self, grace: Duration) -> Ended {
        self.send_order(Order::Stop { grace });
        if self.all_dead_within(grace + KEEPER_KILL_TIMEOUT).await {
            return Ended::All;
        }
        self.keeper.warden.kill(self.keeper.id);
        match self.all_dead_within(WARDEN_KILL_TIMEOUT).await {
            true => Ended::All,
            false => Ended::NotYet,
        }
    }

    /// A failure is ignored: the keeper is dead or stuck, and the timeouts of [`ProcessHandle::end`] handle both.
    fn send_order(&self, order: Order) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(self.keeper.control.as_raw_fd(), &order.encode(), flags);
    }

    async fn all_dead_within(&mut self, time: Duration) -> bool {
        let ended = self.keeper.state.wait_for(|state| matches!(state, ServerState::Ended(..)));
        matches!(timeout(time, ended).await, Ok(Ok(_)))
    }
}

impl fmt::Debug for ProcessHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessHandle").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        self.warden.release(self.id);
    }
}
