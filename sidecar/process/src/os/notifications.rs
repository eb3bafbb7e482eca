//! System calls that wait until another process has seen them (seccomp's user notifications).
//!
//! What must stay true: a call is always continued as it was made, so nothing here can allow or change one. What is read of a
//! call's arguments may have changed when the kernel reads them: it is information, never a decision.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// A system call that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingCall {
    id: u64,
    /// The calling thread, as this process sees it.
    pub(crate) thread: u32,
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

/// Since Linux 6.6: the answer is passed on without a detour over another processor.
const SYNC_WAKE_UP: u64 = 1;

/// Installs a filter of system calls whose notifications come out of the returned descriptor. The process must have
/// `no_new_privs` set.
pub(crate) fn install_notifying_filter(instructions: &[libc::sock_filter]) -> Result<OwnedFd, Errno> {
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::E2BIG)?;
    let program = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: `program` and the instructions that it points to outlive the call, which copies them; the kernel checks them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let descriptor = i32::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Asks for quick wake-ups where the kernel has them.
pub(crate) fn wake_quickly(listener: BorrowedFd<'_>) {
    // SAFETY: the argument of this request is a number; a kernel that does not know the request fails.
    let _ = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Takes the next call that waits. Blocks if there is none. `None` if the caller was killed meanwhile.
pub(crate) fn next_call(listener: BorrowedFd<'_>) -> io::Result<Option<WaitingCall>> {
    // SAFETY: all fields are integers, for which zero is a value. The kernel requires zeros.
    let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: `notification` outlives the call, which writes one `seccomp_notif` to it or fails.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) };
    match Errno::result(result) {
        Ok(_) => Ok(Some(WaitingCall {
            id: notification.id,
            thread: notification.pid,
            number: notification.data.nr.into(),
            arguments: notification.data.args,
        })),
        Err(Errno::ENOENT | Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the call still waits. If it does, what was read of its thread before was of that thread.
pub(crate) fn still_waits(listener: BorrowedFd<'_>, call: &WaitingCall) -> bool {
    // SAFETY: `call.id` outlives the request, which reads one number from it.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const call.id) };
    result == 0
}

/// Lets the call go on as if nobody had looked at it. A caller that was killed meanwhile is no error.
pub(crate) fn let_continue(listener: BorrowedFd<'_>, call: &WaitingCall) -> io::Result<()> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let response = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
    // SAFETY: `response` outlives the call, which reads one `seccomp_notif_resp` from it.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
