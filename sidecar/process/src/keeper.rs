//! The keeper: a second process of the sidecar's binary, the parent of one server and of the server's orphaned descendants.
//!
//! The keeper has one thread and no runtime. It waits for the server to exit, for an order to stop, or for the end of the
//! control socket (the sidecar has exited or released the server), and exits only when it has no child left.
//!
//! What must stay true: nothing short of SIGKILL ends the keeper before its last child; its own arguments and
//! environment contain no secret; the keeper's copy of the server's environment is wiped once the server is started.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::{Pid, setsid};
use tokio::time::Instant;

use super::os::{self, Reaped};
use super::start::{ExitSource, Started, start_server};
use super::wire::{FRAME_BYTES, Order, Report};
use super::{children, descriptor_limit, harden};

/// The hidden first argument that makes the sidecar's binary a keeper. The descriptor limit of its server may follow.
pub(super) const ARGUMENT: &str = "keeper";
/// How often children that are not dead yet are killed again; SIGCHLD wakes the keeper earlier.
const KILL_INTERVAL: Duration = Duration::from_millis(5);
/// MCP ends a stdio server by closing its stdin first. The server then has `grace / STDIN_GRACE_DIVISOR` to exit before it
/// gets SIGTERM.
const STDIN_GRACE_DIVISOR: u32 = 4;
/// EX_USAGE: the keeper or its server could not start, or the keeper was not started by a sidecar.
const USAGE: u8 = 64;

/// Whether this process was started as a keeper. To be called before arguments are parsed.
pub fn is_keeper() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT)
}

/// Runs the keeper. Must be called before any thread is started.
pub fn keeper_main() -> ExitCode {
    match Keeper::start() {
        Ok(keeper) => keeper.run(),
        Err(problem) => {
            eprintln!("the keeper cannot start: {problem}; only the sidecar can start a keeper");
            return ExitCode::from(USAGE);
        }
    }
    ExitCode::SUCCESS
}

struct Keeper {
    control: UnixStream,
    /// False once the sidecar has closed its side: `poll` would report the socket as ready for ever.
    control_open: bool,
    /// The bytes of an incomplete order.
    partial_order: Vec<u8>,
    signals: SignalFd,
    /// The server's main process, or process 1 of its namespaces, which signals the server in turn.
    child: Pid,
    exit: ExitSource,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// The server's stdin was closed; SIGTERM is next.
    Closing {
        terminate: Instant,
        kill: Instant,
    },
    /// SIGTERM was sent.
    Terminating {
        kill: Instant,
    },
    Killing,
}

impl Keeper {
    fn start() -> io::Result<Self> {
        harden()?;
        if let Some(limit) = std::env::args_os().nth(2) {
            descriptor_limit::apply_keeper_argument(&limit)?;
        }
        let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // In a new session, signals from the sidecar's terminal do not reach the keeper.
        setsid()?;
        // A blocked signal cannot end this process; SIGCHLD is read from a descriptor.
        SigSet::all().thread_set_mask()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), flags)?;
        let Started { child, server, exit } = match start_server(&control) {
            Ok(started) => started,
            Err(failure) => {
                send_report(&control, Report::Failed(failure));
                return Err(io::Error::from_raw_os_error(failure.errno));
            }
        };
        send_report(&control, Report::Started(server));
        // The keeper's working directory must not keep a mount busy. A failure does not affect the server.
        let _ = std::env::set_current_dir("/");
        let partial_order = Vec::with_capacity(FRAME_BYTES);
        Ok(Self { control, control_open: true, partial_order, signals, child, exit, phase: Phase::Running })
    }

    fn run(mut self) {
        while self.reap() == Remaining::Yes {
            let wait = self.advance();
            self.wait(wait);
        }
        send_report(&self.control, Report::Ended);
    }

    /// Reaps every child that has ended; returns whether any child is left.
    fn reap(&mut self) -> Remaining {
        loop {
            match os::reap(None) {
                Reaped::Child(pid, status) if pid == self.child => {
                    self.read_exit();
                    if !matches!(self.exit, ExitSource::Known) {
                        // It is the server itself, or process 1 was killed.
                        self.server_exited(status.into_raw());
                    }
                }
                Reaped::Child(..) => {}
                Reaped::NotYet => return Remaining::Yes,
                Reaped::NoChild => return Remaining::No,
            }
        }
    }

    /// Reads the wait status that process 1 of the server's namespaces wrote.
    fn read_exit(&mut self) {
        let ExitSource::Pipe(reader) = &mut self.exit else { return };
        let mut status = [0; 4];
        match reader.read_exact(&mut status) {
            Ok(()) => self.server_exited(i32::from_ne_bytes(status)),
            // Process 1 has exited or is exiting; then its own status counts.
            Err(_) => self.exit = ExitSource::Child,
        }
    }

    fn server_exited(&mut self, status: i32) {
        self.exit = ExitSource::Known;
        send_report(&self.control, Report::Exited(status));
        // While stopping, the server's helper processes have the rest of the grace, because often they do the actual work.
        if let Phase::Running = self.phase {
            self.phase = Phase::Killing;
        }
    }

    /// Sends the signals that are due, and moves to the next phase when its time has come. Returns how long to wait at
    /// most.
    fn advance(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if let Phase::Closing { terminate, kill } = self.phase
            && now >= terminate
        {
            let _ = killpg(self.child, Signal::SIGTERM);
            let _ = children::signal_children(Signal::SIGTERM, |_| false);
            self.phase = Phase::Terminating { kill };
        }
        if let Phase::Terminating { kill } = self.phase
            && now >= kill
        {
            self.phase = Phase::Killing;
        }
        match self.phase {
            Phase::Running => None,
            Phase::Closing { terminate, .. } => Some(terminate - now),
            Phase::Terminating { kill } => Some(kill - now),
            Phase::Killing => {
                let _ = children::signal_children(Signal::SIGKILL, |_| false);
                Some(KILL_INTERVAL)
            }
        }
    }

    fn wait(&mut self, limit: Option<Duration>) {
        let timeout = limit.map_or(PollTimeout::NONE, |limit| {
            // Rounded up, so that the time is over when `poll` returns.
            PollTimeout::try_from(limit + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let mut descriptors = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if self.control_open {
            descriptors.push(PollFd::new(self.control.as_fd(), PollFlags::POLLIN));
        }
        let control = self.control_open.then_some(1);
        let exit = match &self.exit {
            ExitSource::Pipe(reader) => {
                descriptors.push(PollFd::new(reader.as_fd(), PollFlags::POLLIN));
                Some(descriptors.len() - 1)
            }
            ExitSource::Child | ExitSource::Known => None,
        };
        let _ = poll(&mut descriptors, timeout);
        let is_ready = |index: usize| descriptors[index].any() == Some(true);
        let (control_ready, exit_ready) = (control.is_some_and(is_ready), exit.is_some_and(is_ready));
        while let Ok(Some(_)) = self.signals.read_signal() {}
        if exit_ready {
            self.read_exit();
        }
        if control_ready {
            self.receive_order();
        }
    }

    fn receive_order(&mut self) {
        let mut bytes = [0; FRAME_BYTES];
        let missing = FRAME_BYTES - self.partial_order.len();
        match recv(
            std::os::fd::AsRawFd::as_raw_fd(&self.control),
            &mut bytes[..missing],
            MsgFlags::MSG_DONTWAIT,
        ) {
            Ok(length @ 1..) => self.partial_order.extend_from_slice(&bytes[..length]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The sidecar has exited or released the server: kill the server at once, without its grace.
            Ok(0) | Err(_) => {
                self.control_open = false;
                self.phase = Phase::Killing;
            }
        }
        if let Ok(frame) = <[u8; FRAME_BYTES]>::try_from(&self.partial_order[..]) {
            self.partial_order.clear();
            match Order::decode(frame) {
                Ok(Order::Stop { grace }) => {
                    let now = Instant::now();
                    let phase =
                        Phase::Closing { terminate: now + grace / STDIN_GRACE_DIVISOR, kill: now + grace };
                    if let Phase::Running = self.phase {
                        self.phase = phase;
                    }
                }
                // While `Running`, the child is not reaped, so its process id cannot have been reused.
                Ok(Order::HangUp) => {
                    if let Phase::Running = self.phase {
                        let _ = kill(self.child, Signal::SIGHUP);
                    }
                }
                Err(_) => self.phase = Phase::Killing,
            }
        }
    }
}

/// Whether any child is left.
#[derive(Eq, PartialEq)]
enum Remaining {
    No,
    Yes,
}

/// Sends a report to the sidecar. A failure is ignored: the sidecar may have exited, and the keeper continues without it.
fn send_report(control: &UnixStream, report: Report) {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = send(std::os::fd::AsRawFd::as_raw_fd(control), &report.encode(), flags);
}
