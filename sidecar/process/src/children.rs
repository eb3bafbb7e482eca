//! Finds and kills the direct children of this process.
//!
//! What must stay true: only direct children are signalled by process id, because only this process reaps them. Deeper
//! descendants become direct children when their parents die, so repeated passes reach them all. Process groups are
//! signalled too: the kernel does that in one step, so that a process that forks again and again cannot escape.

use std::io;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpid, getsid};

/// Sends `signal` to every direct child that is not spared, and to its process group unless it shares our session.
/// Returns the children that were found, including those that ended but are not reaped.
pub(super) fn signal_children(signal: Signal, spared: impl Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
    let ourselves = getpid();
    let our_session = getsid(None)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok()) else {
            continue;
        };
        let Some(process) = Process::read(Pid::from_raw(pid)) else { continue };
        if process.parent != ourselves || spared(process.pid) {
            continue;
        }
        // Signalled here rather than after the loop, to leave a forking process less time. A session other than ours
        // contains processes of one server only, and so does every group in it.
        if process.session != our_session && process.group.as_raw() > 1 {
            let _ = killpg(process.group, signal);
        }
        let _ = kill(process.pid, signal);
        found.push(process.pid);
    }
    Ok(found)
}

#[derive(Debug, Eq, PartialEq)]
struct Process {
    pid: Pid,
    parent: Pid,
    group: Pid,
    session: Pid,
}

impl Process {
    fn read(pid: Pid) -> Option<Self> {
        Self::parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `PID (NAME) STATE PARENT GROUP SESSION …`, where NAME may contain anything, even parentheses and newlines.
    fn parse(pid: Pid, stat: &[u8]) -> Option<Self> {
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace().skip(1);
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        Some(Self { pid, parent: number()?, group: number()?, session: number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_cannot_hide_behind_its_name() {
        let stat = b"41 (evil) S 1 1 1 (\n) S 7 40 39 0 -1";
        let [pid, parent, group, session] = [41, 7, 40, 39].map(Pid::from_raw);
        assert_eq!(Process::parse(pid, stat), Some(Process { pid, parent, group, session }));
        assert_eq!(Process::parse(pid, b"41 (cut"), None);
    }

    #[test]
    fn parent_and_session_of_this_process_are_read() {
        let process = Process::read(getpid()).expect("this process is in /proc");
        assert_eq!(process.parent, nix::unistd::getppid());
        assert_eq!(process.session, getsid(None).expect("we have a session"));
    }
}
