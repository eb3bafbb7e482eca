//! The walls around a confined server: what it sees of the host's files, its network, its limits and its system calls.
//!
//! [`Walls`] is data. The sidecar makes it, the keeper receives it, and [`init`] carries it out in new namespaces before the
//! server's program is executed.
//!
//! What must stay true: a wall that cannot be built fails the start, unless the walls say that the part may be missing;
//! nothing of the host is visible that no [`Entry`] names; what is opened before the walls stand is closed before the
//! program runs.

mod file_system;
pub(super) mod init;
mod network;
mod privileges;
pub(super) mod user;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control_group::GroupLimits;

pub use privileges::has_landlock;

/// Everything that surrounds one confined server.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Walls {
    /// What the server sees below `/`, in the order in which it is made: a later entry may lie inside an earlier one.
    pub entries: Vec<Entry>,
    /// What `/proc` is.
    pub proc: Proc,
    pub network: Network,
    /// What the server may do with files, as a second wall that the kernel checks by itself. Empty where the kernel has no
    /// Landlock.
    pub file_rules: Vec<FileRule>,
    /// The filter of system calls. Empty: none.
    pub system_calls: Vec<Instruction>,
    pub limits: Vec<(Limit, u64)>,
    /// What the processes may use together, by a control group. `None`: they get none of their own.
    pub group: Option<GroupLimits>,
    pub user: UserWall,
}

/// What a keeper gets of the walls.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Confined {
    pub(super) walls: Walls,
    /// The directory of the server's control group.
    pub(super) group: Option<PathBuf>,
}

/// What is done where a server of root cannot be an unused user.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum UserWall {
    /// It runs as root without capabilities.
    #[default]
    Preferred,
    /// It does not start.
    Required,
}

/// One path below the server's `/`. Its parents are made where they are missing; they are read-only.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Entry {
    /// Absolute, without `.`, `..` and symbolic links.
    pub path: String,
    pub kind: EntryKind,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum EntryKind {
    /// A file or directory of the host, with all that is mounted inside it. What belongs to the sidecar's user on the host
    /// belongs to the server's user inside.
    Bind {
        source: String,
        access: Access,
    },
    /// A device of the host, such as `/dev/null`.
    Device {
        source: String,
    },
    /// An empty read-only directory.
    Directory,
    /// A file that exists only here.
    File {
        content: String,
    },
    Link {
        target: String,
    },
    /// An empty directory in memory. It ends with the server.
    Memory {
        mode: u32,
        bytes: u64,
        files: u64,
    },
    /// A file or directory of the operating system, read-only and with its owner. It is left out if it does not exist, or if a
    /// symbolic link is on its path.
    System {
        source: String,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Access {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Proc {
    /// An empty directory: where a container around the sidecar hides parts of `/proc`, no other can be mounted.
    Empty,
    /// The server's own processes, read-only.
    #[default]
    Own,
}

/// The server's network: a loopback interface and these sockets, which are served by the sidecar.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Network {
    /// Every address of this block is local. Names are given addresses of it.
    pub pool: Option<(Ipv4Addr, u8)>,
    /// Further local addresses.
    pub addresses: Vec<IpAddr>,
    pub listeners: Vec<SocketAddr>,
    /// Where names are resolved (UDP).
    pub resolver: Option<SocketAddr>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileRule {
    pub path: String,
    pub access: FileAccess,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FileAccess {
    Read,
    ReadExecute,
    Write,
    WriteExecute,
}

/// One instruction of a classic BPF program.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Instruction(pub u16, pub u8, pub u8, pub u32);

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Limit {
    /// Bytes of private writable memory of each process.
    Data,
    /// Open files of each process.
    Files,
    /// Bytes of memory that each process may lock.
    LockedMemory,
    /// Processes and threads.
    Processes,
}

impl Network {
    /// How many sockets the sidecar receives: the listeners in their order, then the resolver's.
    pub fn sockets(&self) -> usize {
        self.listeners.len() + usize::from(self.resolver.is_some())
    }
}

/// The part of the walls that could not be built.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WallPart {
    /// Making them, or mapping the user in them.
    Namespaces,
    Proc,
    Other,
}

impl WallPart {
    pub(crate) fn of(step: i32) -> Self {
        match step {
            _ if step == Step::Namespaces.number() || step == Step::UserMap.number() => Self::Namespaces,
            _ if step == Step::Proc.number() => Self::Proc,
            _ => Self::Other,
        }
    }
}

/// Where building the walls failed. Its number travels to the sidecar, which names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    Namespaces,
    UserMap,
    Root,
    Proc,
    Network,
    Privileges,
    FileRules,
    SystemCalls,
    Limits,
    /// A server of root's sidecar gets a user of its own.
    UnusedUser,
    ControlGroup,
    /// This entry.
    Entry(usize),
}

impl Step {
    const ENTRIES: i32 = 100;

    pub(super) fn number(self) -> i32 {
        match self {
            Self::Namespaces => 1,
            Self::UserMap => 2,
            Self::Root => 3,
            Self::Proc => 4,
            Self::Network => 5,
            Self::Privileges => 6,
            Self::FileRules => 7,
            Self::SystemCalls => 8,
            Self::Limits => 9,
            Self::UnusedUser => 10,
            Self::ControlGroup => 11,
            Self::Entry(index) => i32::try_from(index).unwrap_or(0).saturating_add(Self::ENTRIES),
        }
    }

    /// What was being done, for an error.
    pub(super) fn describe(number: i32, walls: &Walls) -> String {
        let entry = usize::try_from(number - Self::ENTRIES).ok().and_then(|index| walls.entries.get(index));
        if let Some(entry) = entry {
            return match &entry.kind {
                EntryKind::Bind { source, access: Access::Read, .. } => format!("show it `{source}`"),
                EntryKind::Bind { source, access: Access::Write, .. } => format!("let it write `{source}`"),
                EntryKind::Device { source } | EntryKind::System { source } => format!("show it `{source}`"),
                _ => format!("make its `{}`", entry.path),
            };
        }
        let what = match number {
            1 => "make its namespaces",
            2 => "map its user",
            3 => "make its root directory",
            4 => "mount its /proc",
            5 => "make its network",
            6 => "drop its privileges",
            7 => "restrict its files with Landlock",
            8 => "install its filter of system calls",
            9 => "set its resource limits",
            10 => "find it a user that this host does not use",
            11 => "move it into its control group",
            _ => "build its walls",
        };
        what.into()
    }
}
