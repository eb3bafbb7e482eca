//! How a server's main process exited.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    Code(i32),
    /// The keeper died, and the server with it; the server's exit status is unknown.
    KeeperLost,
    Signal(i32),
}

impl Exit {
    pub(super) fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::KeeperLost,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "it exited with code {code}"),
            Self::KeeperLost => f.write_str("its keeper died"),
            Self::Signal(signal) => write!(f, "it was killed by signal {signal}"),
        }
    }
}
