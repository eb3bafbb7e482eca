//! The eighteen words of AgentManifest.

use std::fmt;

/// Something that a server may do, in general.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Permission {
    FilesystemRead,
    FilesystemWrite,
    FilesystemDelete,
    EnvironmentRead,
    EnvironmentWrite,
    Execute,
    Processes,
    NetworkClient,
    NetworkServer,
    Bluetooth,
    Camera,
    Microphone,
    Speaker,
    ScreenCapture,
    Location,
    Notifications,
    ClipboardRead,
    ClipboardWrite,
}

/// How a permission becomes something that a server is given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refinement {
    Key(Key),
    /// A confined server is never given it.
    Never,
    /// Each confined server may do it with what is its own: its processes, its variables, its loopback interface. It is never
    /// given those of the host.
    OwnOnly,
}

/// A key of `[servers.NAME]` that refines a permission.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Key {
    /// The tables and the key, without `servers.NAME`.
    pub path: &'static [&'static str],
    /// The key with a value, as an example.
    pub example: &'static str,
}

pub(super) const READ: Key = Key { path: &["confine", "read"], example: "read = [\"/srv/data\"]" };
pub(super) const WRITE: Key = Key { path: &["confine", "write"], example: "write = [\"/srv/data\"]" };
pub(super) const EXECUTE: Key = Key { path: &["confine", "exec"], example: "exec = [\"/usr/bin/git\"]" };
pub(super) const HOSTS: Key =
    Key { path: &["confine", "hosts"], example: "hosts = [\"api.example.com:443\"]" };
pub(super) const HOME: Key = Key { path: &["confine", "home"], example: "home = \"keep\"" };
pub(super) const DIRECTORY: Key = Key { path: &["cwd"], example: "cwd = \"/srv/data\"" };
pub(super) const VARIABLES: Key = Key { path: &["env"], example: "env = { NAME = \"{secret.field}\" }" };

impl Permission {
    pub const ALL: [Self; 18] = [
        Self::FilesystemRead,
        Self::FilesystemWrite,
        Self::FilesystemDelete,
        Self::EnvironmentRead,
        Self::EnvironmentWrite,
        Self::Execute,
        Self::Processes,
        Self::NetworkClient,
        Self::NetworkServer,
        Self::Bluetooth,
        Self::Camera,
        Self::Microphone,
        Self::Speaker,
        Self::ScreenCapture,
        Self::Location,
        Self::Notifications,
        Self::ClipboardRead,
        Self::ClipboardWrite,
    ];

    /// As manifests write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::FilesystemRead => "mcp.ac.filesystem.read",
            Self::FilesystemWrite => "mcp.ac.filesystem.write",
            Self::FilesystemDelete => "mcp.ac.filesystem.delete",
            Self::EnvironmentRead => "mcp.ac.system.env.read",
            Self::EnvironmentWrite => "mcp.ac.system.env.write",
            Self::Execute => "mcp.ac.system.exec",
            Self::Processes => "mcp.ac.system.process",
            Self::NetworkClient => "mcp.ac.network.client",
            Self::NetworkServer => "mcp.ac.network.server",
            Self::Bluetooth => "mcp.ac.network.bluetooth",
            Self::Camera => "mcp.ac.peripheral.camera",
            Self::Microphone => "mcp.ac.peripheral.microphone",
            Self::Speaker => "mcp.ac.peripheral.speaker",
            Self::ScreenCapture => "mcp.ac.peripheral.screen.capture",
            Self::Location => "mcp.ac.location",
            Self::Notifications => "mcp.ac.notifications.post",
            Self::ClipboardRead => "mcp.ac.clipboard.read",
            Self::ClipboardWrite => "mcp.ac.clipboard.write",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.word() == word)
    }

    pub fn refinement(self) -> Refinement {
        match self {
            Self::FilesystemRead => Refinement::Key(READ),
            Self::FilesystemWrite | Self::FilesystemDelete => Refinement::Key(WRITE),
            Self::EnvironmentRead => Refinement::Key(VARIABLES),
            Self::Execute => Refinement::Key(EXECUTE),
            Self::NetworkClient => Refinement::Key(HOSTS),
            Self::EnvironmentWrite | Self::Processes | Self::NetworkServer => Refinement::OwnOnly,
            Self::Bluetooth
            | Self::Camera
            | Self::Microphone
            | Self::Speaker
            | Self::ScreenCapture
            | Self::Location
            | Self::Notifications
            | Self::ClipboardRead
            | Self::ClipboardWrite => Refinement::Never,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
