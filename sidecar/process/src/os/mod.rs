//! The only `unsafe` code of the sidecar: system calls that have no safe wrapper.
//!
//! What must stay true: every function here is safe to call with any argument; each checks what it relies on.

#![expect(unsafe_code, reason = "the only module with unsafe code; each block says why it is sound")]

mod namespaces;
mod notifications;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::libc::winsize;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;

pub(crate) use namespaces::{Below, SingleThreaded, add_mount_attributes, install_filter};
pub(crate) use notifications::{
    WaitingCall, install_notifying_filter, let_continue, next_call, still_waits, wake_quickly,
};

/// The highest signal number, real-time signals included.
const LAST_SIGNAL: libc::c_int = 64;

/// As many as the kernel passes in one message.
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// Marks every descriptor from 3 on as close-on-exec, so that children do not inherit them.
pub(super) fn close_descriptors_on_exec() -> io::Result<()> {
    // SAFETY: close_range with CLOSE_RANGE_CLOEXEC closes nothing now; it sets a flag on descriptors, which breaks
    // no owner's assumption about them, and takes no pointer.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// Resets every signal to its default action; an ignored signal would stay ignored across `execve`.
pub(super) fn reset_signal_dispositions() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: installs no handler function, so there is none that could be unsound. The call fails for
        // signals that cannot be changed and numbers that are not signals.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets the command start in a new user namespace. If the kernel refuses one, the command's start fails with that error.
pub(super) fn start_in_user_namespace(command: &mut Command) {
    let enter = || {
        // SAFETY: the call takes no pointer, and affects only the calling process, which is the forked child.
        Errno::result(unsafe { libc::unshare(libc::CLONE_NEWUSER) }).map(drop).map_err(io::Error::from)
    };
    // SAFETY: between `fork` and `execve` the closure makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(enter) };
}

/// Receives bytes and the descriptors that come with them, at most [`MAX_DESCRIPTORS`]. `None` at the end of the stream.
pub(super) fn receive_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<Option<Vec<OwnedFd>>> {
    let mut space = cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut buffers = [io::IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_WAITALL;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just made these descriptors for us, and nothing else owns them.
            received.extend(descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes != 0).then_some(received))
}

/// The size of the window of a terminal.
pub(super) fn window_size(terminal: BorrowedFd<'_>) -> io::Result<winsize> {
    let mut size = winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` outlives the call, which writes one `winsize` to it or fails.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
    Ok(size)
}

/// Sets the size of the window of a terminal; its foreground process group is sent SIGWINCH.
pub(super) fn set_window_size(terminal: BorrowedFd<'_>, size: &winsize) -> io::Result<()> {
    // SAFETY: `size` outlives the call, which reads one `winsize` from it.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const *size) })?;
    Ok(())
}

/// What [`reap`] found.
pub(super) enum Reaped {
    Child(Pid, ExitStatus),
    /// There are children, but none has ended.
    NotYet,
    NoChild,
}

/// Reaps one ended child, or the given one, without waiting.
///
/// nix's `waitpid` is not used: it reaps and then fails if a real-time signal killed the child.
pub(super) fn reap(child: Option<Pid>) -> Reaped {
    let mut status = 0;
    // SAFETY: `status` outlives the call, which writes one int to it.
    match unsafe { libc::waitpid(child.map_or(-1, Pid::as_raw), &raw mut status, libc::WNOHANG) } {
        0 => Reaped::NotYet,
        pid if pid > 0 => Reaped::Child(Pid::from_raw(pid), ExitStatus::from_raw(status)),
        _ => Reaped::NoChild,
    }
}
