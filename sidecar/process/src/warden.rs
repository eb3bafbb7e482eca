//! The warden: one thread that receives the reports of all keepers, reaps the keepers, and kills the orphans of dead
//! keepers.
//!
//! It is a thread and not a task, because it must act even when no task is polled: a server's owner may be busy or dropped.
//!
//! What must stay true: it never blocks on one keeper, so one stuck keeper affects no other; a keeper leaves the
//! registry only after it was reaped; a server counts as ended when its keeper has reported that and was reaped, or
//! when its keeper died and this process has no unknown child left.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::Pid;
use tokio::sync::watch;
use tokio::time::Instant;

use super::children;
use super::control_group::ServerGroup;
use super::exit::Exit;
use super::os::{self, Reaped};
use super::registry::{KnownChild, with_known};
use super::wire::{FRAME_BYTES, Failure, Report, Stage, StartedServer};

/// How long a keeper may take to kill its server after the handle was dropped; then the keeper is killed, and its orphans
/// are ended here.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often recently killed keepers and orphans are checked.
const DYING_INTERVAL: Duration = Duration::from_millis(5);
/// How often killed processes that are not dead yet are checked: they hang in the kernel, and frequent checks do not help.
const STUCK_INTERVAL: Duration = Duration::from_millis(250);
/// After this time a killed process counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(3);

/// The state of a server. It changes only to a later one of this list.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerState {
    Starting,
    Failed(Failure),
    Running(StartedServer),
    Exited(StartedServer, Exit),
    /// No descendant is left.
    Ended(StartedServer, Exit),
}

/// Sends requests to the warden's thread.
pub(super) struct Warden {
    requests: mpsc::Sender<Request>,
    wake: UnixStream,
}

/// Identifies a keeper; unlike a process id it is never reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct KeeperId(u64);

enum Request {
    /// Kill the keeper itself: it did not end its server in time.
    Kill(KeeperId),
    /// The handle of the server was dropped.
    Release(KeeperId),
    Watch(KeeperId, WatchedKeeper),
}

struct WatchedKeeper {
    child: KnownChild,
    control: Arc<UnixStream>,
    server: WatchedServer,
    /// The bytes of an incomplete report.
    partial_report: Vec<u8>,
    condition: KeeperCondition,
}

/// What there is of a server until all its processes have ended.
struct WatchedServer {
    state: watch::Sender<ServerState>,
    /// Removed on drop.
    group: Option<ServerGroup>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum KeeperCondition {
    Alive,
    /// Alive, and to be killed at this time.
    Released(Instant),
    /// Reported that no descendant is left, or that the server did not start.
    Finished,
    /// Its control socket was closed, or a report was malformed, at this time, without a report that it has finished.
    Lost(Instant),
}

impl ServerState {
    /// Moves a running server to `next`; a server that is still starting becomes `Failed`. True if the state changed.
    fn advance(&mut self, next: impl FnOnce(StartedServer) -> Self) -> bool {
        *self = match *self {
            Self::Starting => Self::Failed(Failure { stage: Stage::Prepare, errno: Errno::EPIPE as i32 }),
            Self::Running(server) => next(server),
            // A failure stays for the launching task to read; a known exit is not replaced by the loss of a keeper.
            Self::Failed(_) | Self::Exited(..) | Self::Ended(..) => return false,
        };
        true
    }
}

/// The one warden of this process, started at its first use.
pub(super) fn warden() -> io::Result<&'static Warden> {
    static WARDEN: OnceLock<Warden> = OnceLock::new();
    if let Some(warden) = WARDEN.get() {
        return Ok(warden);
    }
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let (requests, inbox) = mpsc::channel();
    let thread = WardenThread { inbox, woken, keepers: BTreeMap::new(), orphaned: Vec::new() };
    std::thread::Builder::new().name("warden".into()).spawn(|| thread.run())?;
    // If two threads get here at once, the second one's warden finds its channel closed and exits.
    Ok(WARDEN.get_or_init(|| Warden { requests, wake }))
}

impl Warden {
    pub(super) fn watch(
        &self,
        child: KnownChild,
        control: Arc<UnixStream>,
        group: Option<ServerGroup>,
    ) -> (KeeperId, watch::Receiver<ServerState>) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = KeeperId(NEXT.fetch_add(1, Ordering::Relaxed));
        let (state, receiver) = watch::channel(ServerState::Starting);
        let partial_report = Vec::with_capacity(FRAME_BYTES);
        let condition = KeeperCondition::Alive;
        let server = WatchedServer { state, group };
        self.send(Request::Watch(id, WatchedKeeper { child, control, server, partial_report, condition }));
        (id, receiver)
    }

    pub(super) fn release(&self, id: KeeperId) {
        self.send(Request::Release(id));
    }

    pub(super) fn kill(&self, id: KeeperId) {
        self.send(Request::Kill(id));
    }

    fn send(&self, request: Request) {
        let _ = self.requests.send(request);
        // If the socket's buffer is full, the thread will wake anyway.
        let _ = io::Write::write(&mut &self.wake, &[0]);
    }
}

/// The state of the warden's thread.
struct WardenThread {
    inbox: mpsc::Receiver<Request>,
    woken: UnixStream,
    keepers: BTreeMap<KeeperId, WatchedKeeper>,
    /// Servers whose keeper died before it ended them, with the time of its death.
    orphaned: Vec<(WatchedServer, Instant)>,
}

impl WardenThread {
    fn run(mut self) {
        while self.serve_requests() {
            self.kill_late_keepers();
            self.reap_keepers();
            self.kill_orphans();
            self.wait();
        }
    }

    /// Handles the queued requests. False once every sender of requests is dropped.
    fn serve_requests(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Request::Watch(id, keeper)) => {
                    self.keepers.insert(id, keeper);
                }
                Ok(Request::Release(id)) => {
                    if let Some(keeper) = self.keepers.get_mut(&id)
                        && keeper.condition == KeeperCondition::Alive
                    {
                        // Only our direction: the keeper's last report is still received.
                        let _ = keeper.control.shutdown(Shutdown::Write);
                        keeper.condition = KeeperCondition::Released(Instant::now() + RELEASE_TIMEOUT);
                    }
                }
                Ok(Request::Kill(id)) => {
                    if let Some(keeper) = self.keepers.get_mut(&id) {
                        let _ = keeper.child.kill();
                    }
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn kill_late_keepers(&mut self) {
        let now = Instant::now();
        for keeper in self.keepers.values_mut() {
            if matches!(keeper.condition, KeeperCondition::Released(until) if now >= until) {
                let _ = keeper.child.kill();
            }
        }
    }

    fn reap_keepers(&mut self) {
        let is_reaped = |keeper: &mut WatchedKeeper| match keeper.condition {
            KeeperCondition::Alive | KeeperCondition::Released(_) => false,
            // An error means that the keeper was reaped elsewhere, so it is dead as well.
            KeeperCondition::Finished | KeeperCondition::Lost(_) => {
                !matches!(keeper.child.try_wait(), Ok(None))
            }
        };
        for (_, keeper) in self.keepers.extract_if(.., |_, keeper| is_reaped(keeper)) {
            match keeper.condition {
                KeeperCondition::Lost(since) => self.orphaned.push((keeper.server, since)),
                _ => keeper.server.set_ended(),
            }
        }
    }

    /// Kills and reaps, in one pass, the unknown children: the orphans of dead keepers.
    fn kill_orphans(&mut self) {
        if self.orphaned.is_empty() {
            return;
        }
        let pass = with_known(|known| {
            let found = children::signal_children(Signal::SIGKILL, |pid| {
                known.contains(&pid.as_raw().cast_unsigned())
            })?;
            // The children of a killed process become children of this process, so only a pass that finds none is the last.
            for &pid in &found {
                reap_orphan(pid);
            }
            io::Result::Ok(found.len())
        });
        match pass {
            Ok(0) => self.orphaned.drain(..).for_each(|(server, _)| server.set_ended()),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "orphans of a dead keeper cannot be listed; retrying"),
        }
    }

    fn wait(&mut self) {
        let timeout = self.next_timeout().map_or(PollTimeout::NONE, |timeout| {
            PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let reporting = |keeper: &&mut WatchedKeeper| {
            matches!(keeper.condition, KeeperCondition::Alive | KeeperCondition::Released(_))
        };
        let mut keepers: Vec<&mut WatchedKeeper> = self.keepers.values_mut().filter(reporting).collect();
        let mut descriptors = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        descriptors
            .extend(keepers.iter().map(|keeper| PollFd::new(keeper.control.as_fd(), PollFlags::POLLIN)));
        let _ = poll(&mut descriptors, timeout);
        let ready: Vec<bool> = descriptors.iter().map(|descriptor| descriptor.any() == Some(true)).collect();
        if ready[0] {
            let mut bytes = [0; 64];
            while matches!(io::Read::read(&mut &self.woken, &mut bytes), Ok(1..)) {}
        }
        for (keeper, _) in keepers.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            keeper.receive_report();
        }
    }

    /// When to run again without a request or a report. `None` if there is nothing to check.
    fn next_timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let interval =
            |since: Instant| if now - since < STUCK_AFTER { DYING_INTERVAL } else { STUCK_INTERVAL };
        let keepers = self.keepers.values().filter_map(|keeper| match keeper.condition {
            KeeperCondition::Alive => None,
            KeeperCondition::Released(until) if now < until => Some(until - now),
            KeeperCondition::Released(_) | KeeperCondition::Finished => Some(DYING_INTERVAL),
            KeeperCondition::Lost(since) => Some(interval(since)),
        });
        keepers.chain(self.orphaned.iter().map(|(_, since)| interval(*since))).min()
    }
}

impl WatchedKeeper {
    fn receive_report(&mut self) {
        let mut bytes = [0; FRAME_BYTES];
        let missing = FRAME_BYTES - self.partial_report.len();
        match recv(self.control.as_raw_fd(), &mut bytes[..missing], MsgFlags::MSG_DONTWAIT) {
            Ok(length @ 1..) => self.partial_report.extend_from_slice(&bytes[..length]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Ok(0) | Err(_) => self.mark_lost(),
        }
        if let Ok(frame) = <[u8; FRAME_BYTES]>::try_from(&self.partial_report[..]) {
            self.partial_report.clear();
            match Report::decode(frame) {
                Ok(Report::Started(server)) => {
                    self.server.state.send_replace(ServerState::Running(server));
                }
                Ok(Report::Exited(status)) => {
                    let exit = Exit::from_status(ExitStatus::from_raw(status));
                    self.server
                        .state
                        .send_if_modified(|state| state.advance(|server| ServerState::Exited(server, exit)));
                }
                Ok(Report::Failed(failure)) => {
                    self.server.state.send_replace(ServerState::Failed(failure));
                    self.condition = KeeperCondition::Finished;
                }
                Ok(Report::Ended) => self.condition = KeeperCondition::Finished,
                Err(_) => self.mark_lost(),
            }
        }
    }

    fn mark_lost(&mut self) {
        // Usually the keeper is dead already; one that closed its socket without a report no longer works.
        let _ = self.child.kill();
        self.condition = KeeperCondition::Lost(Instant::now());
        let exit = Exit::KeeperLost;
        self.server.state.send_if_modified(|state| state.advance(|server| ServerState::Exited(server, exit)));
    }
}

impl WatchedServer {
    fn set_ended(self) {
        let Self { state, group } = self;
        // Before anyone learns of the end.
        drop(group);
        state.send_if_modified(|state| match *state {
            ServerState::Exited(server, exit) => {
                *state = ServerState::Ended(server, exit);
                true
            }
            _ => state.advance(|server| ServerState::Ended(server, Exit::KeeperLost)),
        });
    }
}

fn reap_orphan(pid: Pid) {
    if let Reaped::Child(pid, status) = os::reap(Some(pid)) {
        tracing::debug!(%pid, %status, "ended an orphan of a dead keeper");
    }
}
