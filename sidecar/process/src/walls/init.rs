//! Process 1 of a confined server: it builds the walls, starts the server, and reaps what the server leaves.
//!
//! ```text
//! keeper ── process 1 ── server ── its descendants
//!           └──────── in namespaces of their own ─┘
//! ```
//!
//! What must stay true: the kernel kills every process in the namespaces when process 1 exits, so the keeper ends all of them
//! by killing one child; orders are taken from outside the namespaces only; while the server runs, process 1 has no capability,
//! no descriptor of the server's, and no memory that another process may read.

use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, sethostname};

use super::{Step, Walls, file_system, network, privileges};
use crate::os::{self, Reaped, SingleThreaded};
use crate::wire::{Failure, Stage};

/// The step that failed, and why.
pub(crate) type Failed = (Step, Errno);

/// What the keeper gives to process 1.
pub(crate) struct Handover<'a> {
    pub(crate) walls: &'a Walls,
    /// Gets the network's sockets.
    pub(crate) sidecar: Option<&'a UnixStream>,
    /// Gets a failure of the start. Closed by the kernel when the server's program runs.
    pub(crate) failures: PipeWriter,
    /// Gets the wait status of the server's main process.
    pub(crate) status: PipeWriter,
    /// Refers to the keeper's process.
    pub(crate) keeper: OwnedFd,
}

/// The namespaces in which process 1 starts.
pub(crate) const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// What every confined server sees as the name of its host.
const HOST_NAME: &str = "confined";
/// The number of process 1 inside.
pub(crate) const PROCESS: Pid = Pid::from_raw(1);
/// As shells exit when a command is not found. Nothing reads it: the failure was reported before.
const NOT_STARTED: i32 = 127;

/// Runs process 1, which is a forked copy of the keeper with the given user. `start` executes the server's program inside the
/// walls and returns only on failure. `server` is what only the server needs: process 1 drops its copy.
pub(crate) fn run<T>(
    single: SingleThreaded,
    handover: Handover<'_>,
    user: User,
    server: T,
    start: impl FnOnce(&T) -> Failure,
) -> i32 {
    let Handover { walls, sidecar, mut failures, status, keeper } = handover;
    let started = build(walls, sidecar, user, keeper).and_then(|()| {
        let child = || {
            let failure = enter(walls).map_or_else(Failure::from, |()| start(&server));
            report(&mut failures, failure);
            NOT_STARTED
        };
        single.fork(0, child).map_err(|error| (Step::Namespaces, raw(&error)))
    });
    // With it go the server's secrets, which are wiped.
    drop(server);
    match started {
        Ok(server) => {
            // The pipe's end in the server closes when its program is executed.
            drop(failures);
            tend(server, status)
        }
        Err(failed) => {
            report(&mut failures, Failure::from(failed));
            NOT_STARTED
        }
    }
}

/// The user and group that the keeper runs as.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl User {
    pub(crate) fn current() -> Self {
        Self { user: nix::unistd::geteuid().as_raw(), group: nix::unistd::getegid().as_raw() }
    }
}

impl From<Failed> for Failure {
    fn from((step, errno): Failed) -> Self {
        Self { stage: Stage::Walls(step.number()), errno: errno as i32 }
    }
}

fn build(walls: &Walls, sidecar: Option<&UnixStream>, user: User, keeper: OwnedFd) -> Result<(), Failed> {
    let namespaces = |errno| (Step::Namespaces, errno);
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(namespaces)?;
    if has_exited(&keeper) {
        return Err((Step::Namespaces, Errno::ESRCH));
    }
    map_user(user).map_err(|error| (Step::UserMap, raw(&error)))?;
    file_system::build(walls)?;
    // Only a name: some service managers forbid even to set that of a namespace of one's own.
    let _ = sethostname(HOST_NAME);
    network::build(&walls.network, sidecar).map_err(|error| (Step::Network, raw(&error)))
}

/// Whether the keeper exited before this process asked to be killed with it.
fn has_exited(keeper: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(keeper.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut descriptors, PollTimeout::ZERO);
    descriptors[0].any() == Some(true)
}

/// The user has the same number inside as outside, and no other user exists inside.
fn map_user(User { user, group }: User) -> io::Result<()> {
    // Without this the files belong to root, like all of a process that may not be inspected.
    prctl::set_dumpable(true)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    prctl::set_dumpable(false)?;
    Ok(())
}

/// Runs in the process that becomes the server, inside the new root. The order matters: Landlock and the filter come last,
/// because they forbid what the steps before them do.
fn enter(walls: &Walls) -> Result<(), Failed> {
    privileges::set_limits(&walls.limits).map_err(|errno| (Step::Limits, errno))?;
    privileges::drop_capabilities().map_err(|errno| (Step::Privileges, errno))?;
    privileges::restrict_files(&walls.file_rules).map_err(|errno| (Step::FileRules, errno))
}

/// The last step before the server's program is executed. From here on its system calls are observed, if the walls say so.
pub(crate) fn filter_system_calls(walls: &Walls, sidecar: Option<&UnixStream>) -> Result<(), Failed> {
    privileges::filter_system_calls(&walls.system_calls).map_err(|errno| (Step::SystemCalls, errno))?;
    privileges::report_system_calls(&walls.observed_calls, sidecar)
        .map_err(|errno| (Step::Observation, errno))
}

/// Waits for the server and for orders until no process is left; then the exit of process 1 ends the namespaces.
fn tend(server: Pid, mut status: PipeWriter) -> i32 {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGHUP, Signal::SIGTERM] {
        signals.add(signal);
    }
    let prepared = privileges::drop_capabilities().and_then(|()| {
        let nothing = std::fs::File::open("/dev/null").map_err(|error| raw(&error))?;
        nix::unistd::dup2_stdin(&nothing)?;
        nix::unistd::dup2_stdout(&nothing)?;
        nix::unistd::dup2_stderr(&nothing)?;
        SigSet::all().thread_set_mask()?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)
    });
    // The exit kills the server, and the keeper sees that process 1 exited without a status.
    let Ok(signals) = prepared else { return NOT_STARTED };
    let mut running = true;
    loop {
        loop {
            match os::reap(None) {
                Reaped::Child(pid, exit) if pid == server => {
                    running = false;
                    let _ = status.write_all(&exit.into_raw().to_ne_bytes());
                }
                Reaped::Child(..) => {}
                Reaped::NotYet => break,
                Reaped::NoChild => return 0,
            }
        }
        // Signals that the server sends to process 1 have its process number; orders come from outside, without a number.
        match signals.read_signal() {
            Ok(Some(signal)) if signal.ssi_pid == 0 => match signal.ssi_signo.cast_signed() {
                libc::SIGTERM => {
                    let _ = kill(Pid::from_raw(-1), Signal::SIGTERM);
                }
                libc::SIGHUP if running => {
                    let _ = kill(server, Signal::SIGHUP);
                }
                _ => {}
            },
            _ => {}
        }
    }
}

fn report(failures: &mut PipeWriter, failure: Failure) {
    let _ = failures.write_all(&failure.to_bytes());
}

fn raw(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}
