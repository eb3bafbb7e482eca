//! The user that a confined server runs as.
//!
//! Without root it is the sidecar's own user. Where the sidecar runs as root, it is a user that owns nothing on this host:
//!
//! ```text
//! inside   server (1000)
//! kernel   an unused number, such as 65533
//! on disk  root, by mounts that show root's files as that user's
//! ```
//!
//! The kernel does not count the processes of root, and lets root open its own switches below `/proc/sys` even without
//! capabilities. An unused user has neither privilege.
//!
//! What must stay true: the unused user has no process, no file, no group and no range of subordinate numbers of this host; what
//! it writes belongs to root on disk; if any of its files cannot be shown so, the server has no such user at all.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::wait::waitpid;
use nix::unistd::{
    Gid, Pid, Uid, fchown, getegid, geteuid, getpid, getppid, pause, setgroups, setresgid, setresuid,
};

use super::file_system::{Source, open_sources};
use super::init::Failed;
use super::{Step, UserWall, Walls};
use crate::os::SingleThreaded;

/// The number inside of a server whose sidecar runs as root: that of the first ordinary user on most systems.
const ORDINARY: u32 = 1000;
/// Between the dynamic users of systemd, which end at 65519, and `nobody`. systemd and Debian keep these free, and containers
/// with their own numbers usually have 65,536 of them.
const CANDIDATES: RangeInclusive<u32> = 65_520..=65_533;
/// Where the numbers of this host's users, groups and subordinate ranges are.
const NAMES: [&str; 2] = ["/etc/passwd", "/etc/group"];
const RANGES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// Numbers of a user and its group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UserNumbers {
    pub user: u32,
    pub group: u32,
}

impl UserNumbers {
    fn current() -> Self {
        Self { user: geteuid().as_raw(), group: getegid().as_raw() }
    }
}

/// What a confined server of this process has as its own numbers.
pub fn numbers_inside() -> UserNumbers {
    match geteuid().is_root() {
        true => UserNumbers { user: ORDINARY, group: ORDINARY },
        false => UserNumbers::current(),
    }
}

/// How process 1 gets its user, and where the sources of its files come from.
pub(crate) enum Identity {
    /// It has the keeper's user, which it maps itself; it opens the sources too.
    Keepers { inside: UserNumbers, outside: UserNumbers },
    /// The keeper has opened the sources, and maps the user before it writes a byte to `mapped`.
    Unused { inside: UserNumbers, sources: Vec<Source>, mapped: PipeReader },
}

/// The user that the keeper maps after it started process 1.
pub(crate) struct Mapping {
    id: u32,
    mapped: PipeWriter,
}

impl Identity {
    /// The identity for a new server, the mapping that it needs, and, if a server of root must run as root's user, why.
    /// `stdio` becomes the unused user's, so that the server can open it again by `/dev/stdout`.
    pub(crate) fn choose(
        single: SingleThreaded,
        walls: &Walls,
        stdio: &[OwnedFd],
    ) -> Result<(Self, Option<Mapping>, Option<Failed>), Failed> {
        let (inside, outside) = (numbers_inside(), UserNumbers::current());
        if outside.user != 0 {
            return Ok((Self::Keepers { inside, outside }, None, None));
        }
        match prepare_unused(single, walls, stdio) {
            Ok((sources, id, mapped, writer)) => {
                let mapping = Mapping { id, mapped: writer };
                Ok((Self::Unused { inside, sources, mapped }, Some(mapping), None))
            }
            Err(why) if walls.user == UserWall::Required => Err(why),
            Err(why) => Ok((Self::Keepers { inside, outside }, None, Some(why))),
        }
    }
}

impl Mapping {
    /// Maps the user in the namespaces of process 1, which waits for it. If that fails, process 1 is killed.
    pub(crate) fn apply(self, process: Pid) -> io::Result<()> {
        let Self { id, mut mapped } = self;
        let map = format!("{ORDINARY} {id} 1\n");
        let written = write_maps(process, [&map, &map]).and_then(|()| mapped.write_all(&[0]));
        if written.is_err() {
            let _ = kill(process, Signal::SIGKILL);
            let _ = waitpid(process, None);
        }
        written
    }
}

/// Gives this process, which is process 1, its user. The sources are returned if the keeper opened them.
pub(super) fn become_user(identity: Identity) -> io::Result<Option<Vec<Source>>> {
    match identity {
        Identity::Keepers { inside, outside } => map_own(inside, outside).map(|()| None),
        Identity::Unused { inside, sources, mut mapped } => {
            mapped.read_exact(&mut [0])?;
            let (user, group) = (Uid::from_raw(inside.user), Gid::from_raw(inside.group));
            // Root's own groups would open files to the server.
            setgroups(&[])?;
            setresgid(group, group, group)?;
            setresuid(user, user, user)?;
            // With another user, the kernel decides this anew by `fs.suid_dumpable`. The server has the same user and must not read
            // the memory of process 1.
            prctl::set_dumpable(false)?;
            Ok(Some(sources))
        }
    }
}

/// No other user than its own exists inside.
fn map_own(inside: UserNumbers, outside: UserNumbers) -> io::Result<()> {
    // Without this the files belong to root, like all of a process that may not be inspected.
    prctl::set_dumpable(true)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{} {} 1", inside.user, outside.user))?;
    std::fs::write("/proc/self/gid_map", format!("{} {} 1", inside.group, outside.group))?;
    prctl::set_dumpable(false)?;
    Ok(())
}

fn prepare_unused(
    single: SingleThreaded,
    walls: &Walls,
    stdio: &[OwnedFd],
) -> Result<(Vec<Source>, u32, PipeReader, PipeWriter), Failed> {
    let user = |error: io::Error| (Step::UnusedUser, super::init::raw(&error));
    let read = |paths: [&str; 2]| paths.into_iter().map(read_list).collect::<io::Result<Vec<_>>>();
    let (names, subordinate) = (read(NAMES).map_err(user)?, read(RANGES).map_err(user)?);
    let id = unused(&names, &subordinate).ok_or((Step::UnusedUser, Errno::EADDRINUSE))?;
    let namespace = namespace_of_mounts(single, id).map_err(user)?;
    let sources = open_sources(&walls.entries, Some(namespace.as_fd()))?;
    let owner = (Uid::from_raw(id), Gid::from_raw(id));
    for stream in stdio {
        let is_pipe = fstat(stream)
            .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO);
        if is_pipe {
            fchown(stream, Some(owner.0), Some(owner.1)).map_err(|errno| user(errno.into()))?;
        }
    }
    let (mapped, writer) = io::pipe().map_err(user)?;
    Ok((sources, id, mapped, writer))
}

/// A user namespace for mounts, in which root's files are those of `id`, and all others belong to whom they belong to. It ends
/// with the last mount that uses it.
fn namespace_of_mounts(single: SingleThreaded, id: u32) -> io::Result<OwnedFd> {
    let own = ["uid_map", "gid_map"].map(|name| std::fs::read_to_string(format!("/proc/self/{name}")));
    let [users, groups] = own;
    let out_of_range = || io::Error::from(Errno::ERANGE);
    let users = lines_for_mounts(&users?, id).ok_or_else(out_of_range)?;
    let groups = lines_for_mounts(&groups?, id).ok_or_else(out_of_range)?;
    let keeper = getpid();
    // A namespace begins with a process in it.
    let holder = single.fork(libc::CLONE_NEWUSER, || {
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
        while getppid() == keeper {
            pause();
        }
        0
    })?;
    let opened = write_maps(holder, [&users, &groups])
        .and_then(|()| File::open(format!("/proc/{holder}/ns/user")).map(OwnedFd::from));
    let _ = kill(holder, Signal::SIGKILL);
    let _ = waitpid(holder, None);
    opened
}

/// `own` is the map of this process's own namespace, whose numbers are the only ones that can be mapped. `None` if `id` is not
/// among them.
fn lines_for_mounts(own: &str, id: u32) -> Option<String> {
    let mut lines = format!("0 {id} 1\n");
    let mut is_known = false;
    for line in own.lines() {
        let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
        let (first, count) = (numbers.next()??, numbers.nth(1)??);
        let end = first.checked_add(count)?;
        is_known |= (first..end).contains(&u64::from(id));
        // Root's files and those of the unused user, of which there are none, are left out.
        for (from, to) in [(1, u64::from(id)), (u64::from(id) + 1, u64::MAX)] {
            let (from, to) = (first.max(from), end.min(to));
            if from < to {
                lines.push_str(&format!("{from} {from} {}\n", to - from));
            }
        }
    }
    is_known.then_some(lines)
}

fn write_maps(process: Pid, [users, groups]: [&str; 2]) -> io::Result<()> {
    // Each in one write, as the kernel demands.
    std::fs::write(format!("/proc/{process}/uid_map"), users)?;
    std::fs::write(format!("/proc/{process}/gid_map"), groups)
}

/// The highest candidate that no user or group has and that is in no range of subordinate numbers, by the contents of the files
/// in which these are listed.
fn unused(names: &[String], subordinate: &[String]) -> Option<u32> {
    let names = names.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let number: u64 = line.split(':').nth(2)?.parse().ok()?;
        Some((number, 1))
    });
    let ranges = subordinate.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let mut numbers = line.split(':').skip(1).map(|number| number.trim().parse::<u64>().ok());
        Some((numbers.next()??, numbers.next()??))
    });
    let used: Vec<(u64, u64)> = names.chain(ranges).collect();
    let is_free = |id: &u32| {
        let id = u64::from(*id);
        !used.iter().any(|&(first, count)| (first..first.saturating_add(count)).contains(&id))
    };
    CANDIDATES.rev().find(is_free)
}

/// A file that does not exist lists nothing.
fn read_list(path: &str) -> io::Result<String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_root_are_the_unused_users_and_all_others_keep_their_owner() {
        let whole = "         0          0 4294967295\n";
        let expected = "0 65533 1\n1 1 65532\n65534 65534 4294901761\n";
        assert_eq!(lines_for_mounts(whole, 65_533).as_deref(), Some(expected));
        let container = "0 1000 1\n1 100000 65536\n";
        let expected = "0 65533 1\n1 1 65532\n65534 65534 3\n";
        assert_eq!(lines_for_mounts(container, 65_533).as_deref(), Some(expected));
        assert_eq!(lines_for_mounts("0 1000 1\n", 65_533), None);
        assert_eq!(lines_for_mounts("", 65_533), None);
    }

    #[test]
    fn a_number_that_the_host_uses_is_not_taken() {
        let lists = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>();
        assert_eq!(unused(&[], &[]), Some(65_533));
        let names = lists(&["root:x:0:0::/root:/bin/sh", "a:x:65533:65533::/:/bin/sh", "b:x:65531:"]);
        assert_eq!(unused(&names, &[]), Some(65_532));
        assert_eq!(unused(&names, &lists(&["a:65532:1", "b:100000:65536", "broken"])), Some(65_530));
        assert_eq!(unused(&[], &lists(&["a:60000:65536"])), None);
    }
}
