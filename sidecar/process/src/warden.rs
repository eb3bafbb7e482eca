//! The warden: one thread that listens to all keepers, reaps them, and ends what a dead keeper has orphaned.
//!
//! A thread and not a task, because it must act even when no task is polled: a server's owner may be busy or dropped.
//!
//! What must stay true: it never blocks on one keeper, so one stuck keeper affects no other; a keeper leaves the registry only
//! after it was reaped; a server counts as ended when its keeper said so, or when no unknown child is left here.

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
use super::exit::Exit;
use super::os::{self, Reaped};
use super::registry::{KnownChild, with_known};
use super::wire::{FRAME, Failure, Report, Stage};

/// How long a keeper whose server was given up may take to kill it; after that the keeper is killed and the orphans
/// are ended here.
const RELEASED_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at keepers and orphans that are about to die.
const DYING_PASS: Duration = Duration::from_millis(5);
/// The same for those that did not: they hang in the kernel, and looking often does not help.
const STUCK_PASS: Duration = Duration::from_millis(250);
/// When a dying one counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(3);

/// How far a server has come. Only ever moves down this list.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Starting,
    Failed(Failure),
    Running {
        pid: u32,
    },
    Exited {
        pid: u32,
        exit: Exit,
    },
    /// No descendant is left.
    Ended {
        pid: u32,
        exit: Exit,
    },
}

/// The way to the warden.
pub(super) struct Warden {
    requests: mpsc::Sender<Request>,
    wake: UnixStream,
}

/// A keeper's number here; unlike a process id it is never used twice.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct KeeperId(u64);

enum Request {
    /// Kill the keeper itself: it did not do its work in time.
    Kill(KeeperId),
    /// The handle of the server was dropped.
    Release(KeeperId),
    Watch(KeeperId, Kept),
}

struct Kept {
    child: KnownChild,
    control: Arc<UnixStream>,
    state: watch::Sender<State>,
    report: Vec<u8>,
    condition: Condition,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Condition {
    Alive,
    /// Alive, and to be killed at this time.
    Released(Instant),
    /// Said that no descendant is left, or that the server never started.
    Finished,
    /// Its control socket ended without such a word, at this time.
    Lost(Instant),
}

impl State {
    /// From a running server to what follows; from one that has not started to its failure. True if it changed.
    fn advance(&mut self, next: impl FnOnce(u32) -> Self) -> bool {
        *self = match *self {
            Self::Starting => Self::Failed(Failure { stage: Stage::Prepare, errno: Errno::EPIPE as i32 }),
            Self::Running { pid } => next(pid),
            // The launching task still has to read the reason; a known exit is not replaced by the loss of a keeper.
            Self::Failed(_) | Self::Exited { .. } | Self::Ended { .. } => return false,
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
    let watch = Watch { inbox, woken, keepers: BTreeMap::new(), orphaned: Vec::new() };
    std::thread::Builder::new().name("warden".into()).spawn(|| watch.run())?;
    // Where two threads come first together, the loser's warden sees its channel close and leaves.
    Ok(WARDEN.get_or_init(|| Warden { requests, wake }))
}

impl Warden {
    pub(super) fn watch(
        &self,
        child: KnownChild,
        control: Arc<UnixStream>,
    ) -> (KeeperId, watch::Receiver<State>) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = KeeperId(NEXT.fetch_add(1, Ordering::Relaxed));
        let (state, receiver) = watch::channel(State::Starting);
        let report = Vec::with_capacity(FRAME);
        self.send(Request::Watch(id, Kept { child, control, state, report, condition: Condition::Alive }));
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
        // A full socket means that it is about to wake anyway.
        let _ = io::Write::write(&mut &self.wake, &[0]);
    }
}

/// What the thread holds.
struct Watch {
    inbox: mpsc::Receiver<Request>,
    woken: UnixStream,
    keepers: BTreeMap<KeeperId, Kept>,
    /// Those whose keeper died with the work undone, and when.
    orphaned: Vec<(watch::Sender<State>, Instant)>,
}

impl Watch {
    fn run(mut self) {
        while self.serve_requests() {
            self.kill_late_keepers();
            self.reap_keepers();
            self.end_orphans();
            self.wait();
        }
    }

    /// False when all senders of requests are gone.
    fn serve_requests(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Request::Watch(id, kept)) => {
                    self.keepers.insert(id, kept);
                }
                Ok(Request::Release(id)) => {
                    if let Some(kept) = self.keepers.get_mut(&id)
                        && kept.condition == Condition::Alive
                    {
                        // Our direction only: its last word is still heard.
                        let _ = kept.control.shutdown(Shutdown::Write);
                        kept.condition = Condition::Released(Instant::now() + RELEASED_PATIENCE);
                    }
                }
                Ok(Request::Kill(id)) => {
                    if let Some(kept) = self.keepers.get_mut(&id) {
                        let _ = kept.child.kill();
                    }
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn kill_late_keepers(&mut self) {
        let now = Instant::now();
        for kept in self.keepers.values_mut() {
            if matches!(kept.condition, Condition::Released(until) if now >= until) {
                let _ = kept.child.kill();
            }
        }
    }

    fn reap_keepers(&mut self) {
        let over = |kept: &mut Kept| match kept.condition {
            Condition::Alive | Condition::Released(_) => false,
            // An error means that it was reaped elsewhere: it is gone all the same.
            Condition::Finished | Condition::Lost(_) => !matches!(kept.child.try_wait(), Ok(None)),
        };
        for (_, kept) in self.keepers.extract_if(.., |_, kept| over(kept)) {
            match kept.condition {
                Condition::Lost(since) => self.orphaned.push((kept.state, since)),
                _ => set_ended(&kept.state),
            }
        }
    }

    /// One pass over the unknown children: they were a dead keeper's.
    fn end_orphans(&mut self) {
        if self.orphaned.is_empty() {
            return;
        }
        let pass = with_known(|known| {
            let found = children::signal_children(Signal::SIGKILL, |pid| {
                known.contains(&pid.as_raw().cast_unsigned())
            })?;
            // What was killed may leave children of its own to us, so only a pass that found nothing is the last.
            for &pid in &found {
                reap_orphan(pid);
            }
            io::Result::Ok(found.len())
        });
        match pass {
            Ok(0) => self.orphaned.drain(..).for_each(|(state, _)| set_ended(&state)),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "orphans of a dead keeper cannot be listed; trying again"),
        }
    }

    fn wait(&mut self) {
        let timeout = self.patience().map_or(PollTimeout::NONE, |patience| {
            PollTimeout::try_from(patience + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let speaking = |kept: &&mut Kept| matches!(kept.condition, Condition::Alive | Condition::Released(_));
        let mut keepers: Vec<&mut Kept> = self.keepers.values_mut().filter(speaking).collect();
        let mut descriptors = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        descriptors.extend(keepers.iter().map(|kept| PollFd::new(kept.control.as_fd(), PollFlags::POLLIN)));
        let _ = poll(&mut descriptors, timeout);
        let ready: Vec<bool> = descriptors.iter().map(|descriptor| descriptor.any() == Some(true)).collect();
        if ready[0] {
            let mut bytes = [0; 64];
            while matches!(io::Read::read(&mut &self.woken, &mut bytes), Ok(1..)) {}
        }
        for (kept, _) in keepers.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            kept.listen();
        }
    }

    /// How long nothing needs to be done without being asked.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let dying = |since: Instant| if now - since < STUCK_AFTER { DYING_PASS } else { STUCK_PASS };
        let keepers = self.keepers.values().filter_map(|kept| match kept.condition {
            Condition::Alive => None,
            Condition::Released(until) if now < until => Some(until - now),
            Condition::Released(_) | Condition::Finished => Some(DYING_PASS),
            Condition::Lost(since) => Some(dying(since)),
        });
        keepers.chain(self.orphaned.iter().map(|(_, since)| dying(*since))).min()
    }
}

impl Kept {
    fn listen(&mut self) {
        let mut bytes = [0; FRAME];
        let room = FRAME - self.report.len();
        match recv(self.control.as_raw_fd(), &mut bytes[..room], MsgFlags::MSG_DONTWAIT) {
            Ok(length @ 1..) => self.report.extend_from_slice(&bytes[..length]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Ok(0) | Err(_) => self.lost(),
        }
        if let Ok(frame) = <[u8; FRAME]>::try_from(&self.report[..]) {
            self.report.clear();
            match Report::decode(frame) {
                Ok(Report::Started(pid)) => {
                    self.state.send_replace(State::Running { pid });
                }
                Ok(Report::Exited(status)) => {
                    let exit = Exit::from_status(ExitStatus::from_raw(status));
                    self.state.send_if_modified(|state| state.advance(|pid| State::Exited { pid, exit }));
                }
                Ok(Report::Failed(failure)) => {
                    self.state.send_replace(State::Failed(failure));
                    self.condition = Condition::Finished;
                }
                Ok(Report::Ended) => self.condition = Condition::Finished,
                Err(_) => self.lost(),
            }
        }
    }

    fn lost(&mut self) {
        // Mostly it is dead already; one that closed its socket without a word does not do its work.
        let _ = self.child.kill();
        self.condition = Condition::Lost(Instant::now());
        let exit = Exit::KeeperLost;
        self.state.send_if_modified(|state| state.advance(|pid| State::Exited { pid, exit }));
    }
}

fn set_ended(state: &watch::Sender<State>) {
    state.send_if_modified(|state| match *state {
        State::Exited { pid, exit } => {
            *state = State::Ended { pid, exit };
            true
        }
        _ => state.advance(|pid| State::Ended { pid, exit: Exit::KeeperLost }),
    });
}

fn reap_orphan(pid: Pid) {
    if let Reaped::Child(pid, status) = os::reap(Some(pid)) {
        tracing::debug!(%pid, %status, "ended an orphan of a dead keeper");
    }
}
