//! A running server, as its owner holds it.
//!
//! What must stay true: giving a handle up in any way, dropping included, ends every process of the server.

use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, send};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use super::exit::Exit;
use super::warden::{KeeperId, State, Warden};
use super::wire::Order;

/// On top of the grace, what a keeper may take to kill everything; then it is killed itself.
const KEEPER_MARGIN: Duration = Duration::from_secs(1);
/// What the warden may take after that.
const WARDEN_MARGIN: Duration = Duration::from_secs(1);

/// A started server. Take it apart where different tasks need its pipes; the handle is what keeps it alive.
#[derive(Debug)]
pub struct ServerProcess {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub handle: ProcessHandle,
}

/// The life of a server, without its pipes. Dropping it kills every process of the server at once.
pub struct ProcessHandle {
    pid: u32,
    keeper: Keeper,
}

/// A keeper's control socket and what the warden knows of it. Dropping it makes the keeper end everything.
pub(super) struct Keeper {
    pub(super) warden: &'static Warden,
    pub(super) id: KeeperId,
    pub(super) process: u32,
    pub(super) control: Arc<UnixStream>,
    pub(super) state: watch::Receiver<State>,
}

/// What became of a server's processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Every descendant is dead.
    All,
    /// They were killed, and some were still there when time ran out: they hang in the kernel. The warden goes on.
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

    /// Closes the server's stdin, then as [`ProcessHandle::end`].
    pub async fn end(self, grace: Duration) -> Ended {
        let Self { stdin, stdout, stderr, handle } = self;
        drop(stdin);
        let ended = handle.end(grace).await;
        // Only now: a last word written to a closed pipe would kill the server in the middle of its goodbye.
        drop((stdout, stderr));
        ended
    }
}

impl ProcessHandle {
    pub(super) fn new(pid: u32, keeper: Keeper) -> Self {
        Self { pid, keeper }
    }

    /// The server's main process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The keeper's process.
    pub fn keeper_pid(&self) -> u32 {
        self.keeper.process
    }

    /// Waits until the server's main process is over. Its other processes are being killed then. Cancel-safe.
    pub async fn exited(&mut self) -> Exit {
        let state = &mut self.keeper.state;
        let over = state.wait_for(|state| matches!(state, State::Exited { .. } | State::Ended { .. })).await;
        match over.as_deref() {
            Ok(State::Exited { exit, .. } | State::Ended { exit, .. }) => *exit,
            _ => Exit::KeeperLost,
        }
    }

    /// Sends SIGHUP to the server's main process; its helpers would die of it.
    pub fn hang_up(&self) {
        self.order(Order::HangUp);
    }

    /// Ends the server: a quarter of the grace for it to leave by itself (close its stdin first), SIGTERM for the
    /// rest, then SIGKILL to every descendant. Takes at most two seconds more than the grace.
    pub async fn end(mut self, grace: Duration) -> Ended {
        self.order(Order::Stop { grace });
        if self.all_dead_within(grace + KEEPER_MARGIN).await {
            return Ended::All;
        }
        self.keeper.warden.kill(self.keeper.id);
        match self.all_dead_within(WARDEN_MARGIN).await {
            true => Ended::All,
            false => Ended::NotYet,
        }
    }

    /// A keeper that cannot be told is dead, or will be: the margins of an end cover it.
    fn order(&self, order: Order) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(self.keeper.control.as_raw_fd(), &order.encode(), flags);
    }

    async fn all_dead_within(&mut self, time: Duration) -> bool {
        let ended = self.keeper.state.wait_for(|state| matches!(state, State::Ended { .. }));
        matches!(timeout(time, ended).await, Ok(Ok(_)))
    }
}

impl fmt::Debug for ProcessHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessHandle").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.warden.release(self.id);
    }
}
