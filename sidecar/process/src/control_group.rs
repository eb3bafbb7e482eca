//! Control groups (cgroup v2) of confined servers, where one was delegated to the sidecar.
//!
//! ```text
//! …/cofferdam.service             delegated
//! ├── cofferdam-sidecar           the sidecar and its keepers
//! └── cofferdam-server-4711-0     a confined server with all its descendants
//! ```
//!
//! A group limits all processes of a server together, also those of root; resource limits of processes do neither.
//!
//! What must stay true: a group that systemd has not delegated, or in which another process is, is not taken over; a server's group is removed when its processes
//! have ended, and those that a killed sidecar left are removed at the next start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

/// The group of the sidecar itself: a group with controllers for its children may have no process of its own.
const OWN: &str = "cofferdam-sidecar";
const SERVER_PREFIX: &str = "cofferdam-server-";
/// What every delegated group must offer.
const NEEDED: [&str; 2] = ["memory", "pids"];
const ENABLE: &str = "+cpu +memory +pids";
const ENABLE_WITHOUT_CPU: &str = "+memory +pids";
/// The time over which the kernel counts the use of processors, in microseconds.
const CPU_PERIOD: u64 = 100_000;
/// For the end of processes that an earlier sidecar left.
const SWEEP_TRIES: u32 = 200;
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);

static DELEGATED: OnceLock<Result<DelegatedGroup, NotDelegated>> = OnceLock::new();
/// Groups whose processes had been killed, but were not gone, when they were to be removed.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// What a server's group limits.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct GroupLimits {
    /// Bytes of memory of all its processes together, with its directories in memory.
    pub memory: Option<u64>,
    /// Processes and threads, with process 1.
    pub pids: Option<u64>,
    /// Thousandths of a processor.
    pub cpu: Option<u32>,
}

/// A control group that this process may divide.
#[derive(Debug)]
pub struct DelegatedGroup {
    path: PathBuf,
    cpu: bool,
}

/// Why there is no group for servers.
#[derive(Debug, thiserror::Error)]
pub enum NotDelegated {
    #[error("this host has no cgroup v2, or shows none to the sidecar")]
    None,
    #[error("`{}` does not have the controllers `memory` and `pids`", .0.display())]
    Controllers(PathBuf),
    #[error("the sidecar's does not have the controller `cpu`")]
    Cpu,
    #[error("systemd has not delegated `{}`: the sidecar's unit has no `Delegate=`", .0.display())]
    NotPromised(PathBuf),
    #[error("other processes than the sidecar are in `{}`", .0.display())]
    OtherProcesses(PathBuf),
    #[error("cannot write to `{}`", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// This process only tries servers, outside of the group of the service.
    #[error("only a sidecar that serves divides its control group")]
    NotTaken,
}

/// Takes over the control group of this process, if it was delegated, for the servers that are started from now on. To be
/// called before any is.
pub fn take_delegated_group() -> Result<&'static DelegatedGroup, &'static NotDelegated> {
    let take = || {
        let current = own_group().ok_or(NotDelegated::None)?;
        match is_promised(divided(&current)) {
            true => DelegatedGroup::take(&current),
            false => Err(NotDelegated::NotPromised(divided(&current).to_owned())),
        }
    };
    DELEGATED.get_or_init(take).as_ref()
}

/// The group that [`take_delegated_group`] took over.
pub fn delegated_group() -> Result<&'static DelegatedGroup, &'static NotDelegated> {
    DELEGATED.get().map_or(Err(&NotDelegated::NotTaken), Result::as_ref)
}

/// Whether this host has control groups that could be delegated.
pub fn offers_control_groups() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    group_mounts(&mounts).any(|(_, place)| has_needed(place))
}

/// The group to divide for a process in this one. After a start by `exec` the process is in the sidecar's own group already.
fn divided(current: &Path) -> &Path {
    match current.parent() {
        Some(parent) if current.file_name().is_some_and(|name| name == OWN) => parent,
        _ => current,
    }
}

/// Whether systemd, if it runs, leaves the group alone. Other users than root can only write to groups that were given to them.
fn is_promised(group: &Path) -> bool {
    let is_marked = |name: &&str| {
        let mut value = [0; 1];
        matches!(rustix::fs::getxattr(group, *name, &mut value[..]), Ok(1)) && value == *b"1"
    };
    let has_systemd = Path::new("/run/systemd/system").exists();
    !has_systemd || !geteuid().is_root() || ["trusted.delegate", "user.delegate"].iter().any(is_marked)
}

fn has_needed(group: &Path) -> bool {
    NEEDED.iter().all(|needed| has_controller(group, needed))
}

fn has_controller(group: &Path, name: &str) -> bool {
    words(&group.join("cgroup.controllers")).iter().any(|offered| offered == name)
}

impl DelegatedGroup {
    /// Whether it can limit the use of processors.
    pub fn limits_cpu(&self) -> bool {
        self.cpu
    }

    fn take(current: &Path) -> Result<Self, NotDelegated> {
        let path = divided(current);
        if !has_needed(path) {
            return Err(NotDelegated::Controllers(path.to_owned()));
        }
        let own = std::process::id().to_string();
        if words(&current.join("cgroup.procs")).iter().any(|process| *process != own) {
            return Err(NotDelegated::OtherProcesses(path.to_owned()));
        }
        let group = Self { path: path.to_owned(), cpu: has_controller(path, "cpu") };
        group.sweep();
        group.divide(&own).map_err(|source| NotDelegated::Unwritable { path: path.to_owned(), source })?;
        Ok(group)
    }

    /// Moves this process into a group of its own, and enables the controllers for the servers' groups beside it.
    fn divide(&self, process: &str) -> io::Result<()> {
        let own = self.path.join(OWN);
        make_directory(&own)?;
        fs::write(own.join("cgroup.procs"), process)?;
        let enable = if self.cpu { ENABLE } else { ENABLE_WITHOUT_CPU };
        fs::write(self.path.join("cgroup.subtree_control"), enable).inspect_err(|_| {
            let _ = fs::write(self.path.join("cgroup.procs"), process);
            let _ = fs::remove_dir(&own);
        })
    }

    /// Ends and removes the groups that an earlier sidecar left when it was killed.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_server = |path: &PathBuf| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with(SERVER_PREFIX))
        };
        for path in entries.map(|entry| entry.path()).filter(is_server) {
            for _ in 0..SWEEP_TRIES {
                match remove(&path) {
                    Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                        std::thread::sleep(SWEEP_INTERVAL);
                    }
                    _ => break,
                }
            }
        }
    }

    pub(super) fn make_server_group(&self, limits: GroupLimits) -> io::Result<ServerGroup> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{SERVER_PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        let group = ServerGroup { path };
        let set = |name: &str, value: String| fs::write(group.path.join(name), value);
        if let Some(bytes) = limits.memory {
            set("memory.max", bytes.to_string())?;
            // All of a server ends, instead of the one process that happens to be chosen.
            set("memory.oom.group", "1".into())?;
            // Not every kernel accounts for swap.
            let _ = set("memory.swap.max", "0".into());
        }
        if let Some(count) = limits.pids {
            set("pids.max", count.to_string())?;
        }
        if let Some(thousandths) = limits.cpu {
            set("cpu.max", format!("{} {CPU_PERIOD}", u64::from(thousandths) * CPU_PERIOD / 1000))?;
        }
        Ok(group)
    }
}

/// The group of one server. It is removed on drop, with every process that is left in it.
#[derive(Debug)]
pub(super) struct ServerGroup {
    path: PathBuf,
}

impl ServerGroup {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ServerGroup {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        left.push(std::mem::take(&mut self.path));
        left.retain(
            |path| matches!(remove(path), Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32)),
        );
    }
}

/// Moves the calling process into a server's group.
pub(super) fn enter(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

fn remove(group: &Path) -> io::Result<()> {
    // Kernels before 5.14 do not have it; the processes are killed by their keeper too.
    if let Ok(mut kill) = fs::OpenOptions::new().write(true).open(group.join("cgroup.kill")) {
        let _ = io::Write::write_all(&mut kill, b"1");
    }
    fs::remove_dir(group)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn words(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

fn own_group() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    group_directory(&own, &mounts)
}

/// Where the group is mounted that `/proc/self/cgroup` and `/proc/self/mountinfo` speak of.
fn group_directory(own: &str, mounts: &str) -> Option<PathBuf> {
    let own = Path::new(own.lines().find_map(|line| line.strip_prefix("0::"))?);
    // Without the slash at the end that an empty rest would leave.
    let below = |place: &Path, rest: &Path| place.join(rest).components().collect();
    group_mounts(mounts).find_map(|(root, place)| Some(below(place, own.strip_prefix(root).ok()?)))
}

/// Which part of the control groups is mounted, and where.
fn group_mounts(mounts: &str) -> impl Iterator<Item = (&Path, &Path)> {
    mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3).map(Path::new);
        let (root, place) = (fields.next()?, fields.next()?);
        (kind.split(' ').next() == Some("cgroup2")).then_some((root, place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_where_it_is_mounted() {
        let mounts = "22 1 0:20 / /proc rw - proc proc rw\n30 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let at = |own: &str, mounts: &str| group_directory(own, mounts);
        let service = Path::new("/sys/fs/cgroup/system.slice/cofferdam.service");
        assert_eq!(at("0::/system.slice/cofferdam.service\n", mounts).as_deref(), Some(service));
        let hybrid = "9:name=systemd:/x\n0::/system.slice/cofferdam.service\n";
        assert_eq!(at(hybrid, mounts).as_deref(), Some(service));
        let container = "30 22 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(at("0::/docker/x\n", container).as_deref(), Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(at("0::/elsewhere\n", container), None);
        assert_eq!(at("4:memory:/x\n", mounts), None);
        assert_eq!(at("0::/\n", "22 1 0:20 / /proc rw - proc proc rw\n"), None);
    }

    /// A directory like a delegated group, in which the files of the kernel are ordinary ones.
    fn group(controllers: &str, processes: &str) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cofferdam-group-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        fs::write(path.join("cgroup.procs"), processes).unwrap();
        path
    }

    #[test]
    fn a_group_with_other_processes_or_without_controllers_is_not_taken() {
        let own = std::process::id();
        let shared = group("cpu memory pids", &format!("{own}\n1\n"));
        assert!(matches!(DelegatedGroup::take(&shared), Err(NotDelegated::OtherProcesses(_))));
        let without = group("cpu pids", &format!("{own}\n"));
        assert!(matches!(DelegatedGroup::take(&without), Err(NotDelegated::Controllers(_))));
        for path in [shared, without] {
            assert!(!path.join(OWN).exists());
            fs::remove_dir_all(path).unwrap();
        }
    }

    #[test]
    fn a_delegated_group_is_divided_and_limits_are_written() {
        let path = group("cpu memory pids", &format!("{}\n", std::process::id()));
        let earlier = path.join("cofferdam-server-1-0");
        fs::create_dir(&earlier).unwrap();
        let delegated = DelegatedGroup::take(&path).unwrap();
        assert!(!earlier.exists(), "what an earlier sidecar left is still there");
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(read("cofferdam-sidecar/cgroup.procs"), std::process::id().to_string());
        assert_eq!(read("cgroup.subtree_control"), ENABLE);
        let limits = GroupLimits { memory: Some(1 << 20), pids: Some(7), cpu: Some(1500) };
        let server = delegated.make_server_group(limits).unwrap();
        let read = |name: &str| fs::read_to_string(server.path().join(name)).unwrap();
        let written = ["memory.max", "memory.oom.group", "pids.max", "cpu.max"].map(read);
        assert_eq!(written, ["1048576", "1", "7", "150000 100000"]);
        fs::remove_dir_all(&path).unwrap();
    }
}
