//! Finds and kills the direct children of this process.
//!
//! What must stay true: only direct children are signalled by number, because only we reap them; deeper descendants
//! become direct children when their parents die, so passes until none is left reach them all. Process groups are
//! signalled too: the kernel does that in one step, which a process that keeps forking cannot outrun.

use std::io;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpid, getsid};

/// Sends `signal` to every direct child that is not spared, and to its process group where that is not ours.
/// Returns the children that were found, ended but unreaped ones among them.
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
        // At once rather than after the walk: the shorter the gap, the less a forking process gets done in it.
        // No session holds both a server and an unrelated process, so neither does a group within it.
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

    /// `PID (NAME) STATE PARENT GROUP SESSION …`, where NAME may hold anything, parentheses and newlines too.
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
    fn a_process_cannot_name_itself_out_of_sight() {
        let stat = b"41 (evil) S 1 1 1 (\n) S 7 40 39 0 -1";
        let [pid, parent, group, session] = [41, 7, 40, 39].map(Pid::from_raw);
        assert_eq!(Process::parse(pid, stat), Some(Process { pid, parent, group, session }));
        assert_eq!(Process::parse(pid, b"41 (cut"), None);
    }

    #[test]
    fn this_process_is_read_as_it_is() {
        let process = Process::read(getpid()).expect("we exist");
        assert_eq!(process.parent, nix::unistd::getppid());
        assert_eq!(process.session, getsid(None).expect("we have a session"));
    }
}
