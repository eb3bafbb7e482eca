//! Starts the server's process for a keeper, with or without walls around it.
//!
//! What must stay true: the keeper's copy of the server's environment is wiped once the server is started; a start either
//! executes the server's program or reports why it did not.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, setsid};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use zeroize::Zeroizing;

use super::os::{self, SingleThreaded};
use super::walls::init::{self, Handover, NAMESPACES, User};
use super::walls::{Step, Walls};
use super::wire::{Failure, MAX_SPECIFICATION, Specification, Stage};

/// As shells exit when a command is not found. The sidecar ignores it: it gets the failure in a report.
const NOT_EXECUTED: i32 = 127;
const STDIO: usize = 3;

/// The keeper's child for a server.
pub(super) struct Started {
    /// The server's main process, or process 1 of its namespaces.
    pub(super) child: Pid,
    /// The server's main process, for people. It is never signalled by this number.
    pub(super) shown: Pid,
    pub(super) exit: ExitSource,
}

/// Where the keeper learns how the server's main process exited.
pub(super) enum ExitSource {
    /// From the exit of its child.
    Child,
    /// From process 1 of the server's namespaces, which writes the wait status.
    Pipe(PipeReader),
    /// It was reported.
    Known,
}

/// Receives the specification and starts the server.
pub(super) fn start_server(control: &UnixStream) -> Result<Started, Failure> {
    let (mut descriptors, bytes) = receive_specification(control).map_err(|error| prepare(&error))?;
    let single = SingleThreaded::check().map_err(|error| prepare(&error))?;
    let walls = match Specification::decode(&bytes) {
        Some(specification) => specification.walls().map(decode_walls).transpose()?,
        None => return Err(Failure::at(Stage::Prepare, Errno::EBADMSG)),
    };
    let sidecar = descriptors.split_off(STDIO).pop().map(UnixStream::from);
    let (mut failures, failures_writer) = io::pipe().map_err(|error| prepare(&error))?;
    let (child, exit) = match walls {
        None => {
            let keeper = nix::unistd::getpid();
            let start = move || {
                let mut failures = failures_writer;
                let failure = become_server(keeper, &descriptors, &bytes, None);
                let _ = failures.write_all(&failure.to_bytes());
                NOT_EXECUTED
            };
            (single.fork(0, start), ExitSource::Child)
        }
        Some(walls) => {
            let (status, status_writer) = io::pipe().map_err(|error| prepare(&error))?;
            let keeper = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|error| prepare(&error.into()))?;
            let user = User::current();
            let start = move || {
                let handover = Handover {
                    walls: &walls,
                    sidecar: sidecar.as_ref(),
                    failures: failures_writer,
                    status: status_writer,
                    keeper,
                };
                init::run(single, handover, user, (descriptors, bytes), |(descriptors, bytes)| {
                    become_server(init::PROCESS, descriptors, bytes, Some((&walls, sidecar.as_ref())))
                })
            };
            (single.fork(NAMESPACES, start), ExitSource::Pipe(status))
        }
    };
    let child = child.map_err(|error| match exit {
        ExitSource::Pipe(_) => (Step::Namespaces, errno(&error)).into(),
        ExitSource::Child | ExitSource::Known => prepare(&error),
    })?;
    // `execve` closes the child's end of the pipe, so an end without bytes means that the server is running. The keeper's own
    // end went with the closure.
    let mut bytes = [0; Failure::BYTES];
    match failures.read_exact(&mut bytes) {
        Ok(()) => Err(Failure::from_bytes(bytes)),
        Err(_) => Ok(Started { child, shown: main_process(child, &exit), exit }),
    }
}

/// The first child of process 1 is the server. If the server has exited already, it is process 1.
fn main_process(child: Pid, exit: &ExitSource) -> Pid {
    let first_child = || {
        let children = std::fs::read_to_string(format!("/proc/{child}/task/{child}/children")).ok()?;
        children.split_ascii_whitespace().next()?.parse().ok().map(Pid::from_raw)
    };
    match exit {
        ExitSource::Pipe(_) => first_child().unwrap_or(child),
        ExitSource::Child | ExitSource::Known => child,
    }
}

fn decode_walls(json: &[u8]) -> Result<Walls, Failure> {
    serde_json::from_slice(json).map_err(|_| Failure::at(Stage::Prepare, Errno::EBADMSG))
}

fn receive_specification(control: &UnixStream) -> io::Result<(Vec<OwnedFd>, Zeroizing<Vec<u8>>)> {
    let mut length = [0; 4];
    let descriptors =
        os::receive_descriptors(control.as_fd(), &mut length)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    // The server's three, and for its network a socket to the sidecar.
    if !(STDIO..=STDIO + 1).contains(&descriptors.len()) {
        return Err(Errno::EBADMSG.into());
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_SPECIFICATION {
        return Err(Errno::E2BIG.into());
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    (&*control).read_exact(&mut bytes)?;
    Ok((descriptors, bytes))
}

/// Runs in the forked child of `parent`. The walls come with the socket to the sidecar. Returns only on failure.
fn become_server(
    parent: Pid,
    descriptors: &[OwnedFd],
    bytes: &[u8],
    walls: Option<(&Walls, Option<&UnixStream>)>,
) -> Failure {
    let Some(specification) = Specification::decode(bytes) else {
        return Failure::at(Stage::Prepare, Errno::EBADMSG);
    };
    let prepared = (|| {
        setsid()?;
        // If the parent is killed, the kernel kills the server process, even if the sidecar is dead too.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        if nix::unistd::getppid() != parent {
            return Err(Errno::ESRCH);
        }
        nix::unistd::dup2_stdin(&descriptors[0])?;
        nix::unistd::dup2_stdout(&descriptors[1])?;
        nix::unistd::dup2_stderr(&descriptors[2])?;
        os::close_descriptors_on_exec().map_err(|error| errno(&error))?;
        os::reset_signal_dispositions();
        SigSet::empty().thread_set_mask()
    })();
    if let Err(errno) = prepared {
        return Failure::at(Stage::Prepare, errno);
    }
    if let Some(directory) = specification.directory
        && let Err(errno) = nix::unistd::chdir(directory)
    {
        return Failure::at(Stage::Directory, errno);
    }
    if let Some((walls, sidecar)) = walls
        && let Err(failed) = init::filter_system_calls(walls, sidecar)
    {
        return failed.into();
    }
    let Err(errno) =
        nix::unistd::execve(specification.program, &specification.arguments, &specification.environment);
    Failure::at(Stage::Execute, errno)
}

fn prepare(error: &io::Error) -> Failure {
    Failure::at(Stage::Prepare, errno(error))
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
