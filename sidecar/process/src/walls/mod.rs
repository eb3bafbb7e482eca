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

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

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
    /// The filter that lets system calls wait until they are observed; see [`launch_observed`](super::launch_observed). Empty:
    /// none.
    pub observed_calls: Vec<Instruction>,
    pub limits: Vec<(Limit, u64)>,
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
    /// A file or directory of the host, with all that is mounted inside it.
    Bind {
        source: String,
        access: Access,
        missing: Missing,
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
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Access {
    Read,
    Write,
}

/// What is done if the source of a bind does not exist, or a symbolic link is on its path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Missing {
    Refuse,
    Skip,
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
    Proc,
    Other,
}

impl WallPart {
    pub(crate) fn of(step: i32) -> Self {
        match step == Step::Proc.number() {
            true => Self::Proc,
            false => Self::Other,
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
    /// Lets its system calls be observed.
    Observation,
    /// This entry.
    Entry(usize),
}

impl Step {
    const ENTRIES: i32 = 100;

    fn number(self) -> i32 {
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
            Self::Observation => 11,
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
                EntryKind::Device { source } => format!("show it `{source}`"),
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
            11 => "observe its system calls",
            _ => "build its walls",
        };
        what.into()
    }
}
