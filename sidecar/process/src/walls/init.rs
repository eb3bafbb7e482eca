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
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, sethostname};

use super::user::{Identity, become_user};
use super::{Step, Walls, file_system, network, privileges};
use crate::control_group;
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
    pub(crate) identity: Identity,
    /// The directory of the server's control group.
    pub(crate) group: Option<&'a Path>,
}

/// The namespaces in which process 1 starts.
pub(crate) const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;
/// What every confined server sees as the name of its host.
const HOST_NAME: &str = "confined";
/// The number of process 1 inside.
pub(crate) const PROCESS: Pid = Pid::from_raw(1);
/// As shells exit when a command is not found. Nothing reads it: the failure was reported before.
const NOT_STARTED: i32 = 127;

/// Runs process 1, which is a forked copy of the keeper. `start` executes the server's program inside the
/// walls and returns only on failure. `server` is what only the server needs: process 1 drops its copy.
pub(crate) fn run<T>(
    single: SingleThreaded,
    handover: Handover<'_>,
    server: T,
    start: impl FnOnce(&T) -> Failure,
) -> i32 {
    let Handover { walls, sidecar, mut failures, status, keeper, identity, group } = handover;
    let started = enter_group(group).and_then(|()| build(walls, sidecar, identity, keeper)).and_then(|()| {
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

impl From<Failed> for Failure {
    fn from((step, errno): Failed) -> Self {
        Self { stage: Stage::Walls(step.number()), errno: errno as i32 }
    }
}

/// In its own namespace of control groups, the one that it is in now is the root.
fn enter_group(group: Option<&Path>) -> Result<(), Failed> {
    if let Some(group) = group {
        control_group::enter(group).map_err(|error| (Step::ControlGroup, raw(&error)))?;
    }
    unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|errno| (Step::Namespaces, errno))
}

fn build(
    walls: &Walls,
    sidecar: Option<&UnixStream>,
    identity: Identity,
    keeper: OwnedFd,
) -> Result<(), Failed> {
    die_with(&keeper)?;
    let sources = become_user(identity).map_err(|error| (Step::UserMap, raw(&error)))?;
    // A change of the user made the kernel forget it.
    die_with(&keeper)?;
    file_system::build(walls, sources)?;
    // Only a name: some service managers forbid even to set that of a namespace of one's own.
    let _ = sethostname(HOST_NAME);
    network::build(&walls.network, sidecar).map_err(|error| (Step::Network, raw(&error)))
}

/// Lets the kernel kill this process when the keeper exits.
fn die_with(keeper: &OwnedFd) -> Result<(), Failed> {
    let namespaces = |errno| (Step::Namespaces, errno);
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(namespaces)?;
    match has_exited(keeper) {
        true => Err(namespaces(Errno::ESRCH)),
        false => Ok(()),
    }
}

/// Whether the keeper exited before this process asked to be killed with it.
fn has_exited(keeper: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(keeper.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut descriptors, PollTimeout::ZERO);
    descriptors[0].any() == Some(true)
}

/// Runs in the process that becomes the server, inside the new root. The order matters: Landlock and the filter come last,
/// because they forbid what the steps before them do.
fn enter(walls: &Walls) -> Result<(), Failed> {
    privileges::set_limits(&walls.limits).map_err(|errno| (Step::Limits, errno))?;
    privileges::drop_capabilities().map_err(|errno| (Step::Privileges, errno))?;
    privileges::restrict_files(&walls.file_rules).map_err(|errno| (Step::FileRules, errno))
}

/// The last step before the server's program is executed.
pub(crate) fn filter_system_calls(walls: &Walls) -> Result<(), Failed> {
    privileges::filter_system_calls(&walls.system_calls).map_err(|errno| (Step::SystemCalls, errno))
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

pub(super) fn raw(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}
