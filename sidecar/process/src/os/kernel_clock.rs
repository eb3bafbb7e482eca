//! What the kernel says of its clock.

use std::io;

use nix::errno::Errno;
use nix::libc;

/// Whether a program such as chrony, ntpd or systemd-timesyncd keeps the host's clock right, as the kernel was told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KernelClock {
    Synchronised,
    NotSynchronised,
}

/// Asks the kernel; changes nothing and needs no capability.
pub fn kernel_clock() -> io::Result<KernelClock> {
    // SAFETY: the structure has integers only, for which zero is a value.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a structure that outlives the call; with `modes` 0 the kernel only writes to it.
    let answer = Errno::result(unsafe { libc::adjtimex(&raw mut state) })?;
    // A clock with an error is one without synchronisation, or with a broken pulse of a reference clock.
    match answer == libc::TIME_ERROR || state.status & libc::STA_UNSYNC != 0 {
        true => Ok(KernelClock::NotSynchronised),
        false => Ok(KernelClock::Synchronised),
    }
}
