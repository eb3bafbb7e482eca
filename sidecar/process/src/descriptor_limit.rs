//! The limit of open descriptors.
//!
//! An attached sandbox needs five descriptors, and the usual limit is 1,024: it is that low for programs that use
//! `select`. So the sidecar raises its own limit to the system's maximum.
//!
//! What must stay true: a server process has the limit with which the sidecar was started.

use std::ffi::OsStr;
use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit with which this process was started, if it was raised.
static LIMIT_AT_START: OnceLock<u64> = OnceLock::new();

/// Raises the limit of this process to the system's maximum, not that of servers that are started afterwards.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let (current, maximum) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if current < maximum {
        setrlimit(Resource::RLIMIT_NOFILE, maximum, maximum)?;
        // Only the first call finds the limit of the start.
        let _ = LIMIT_AT_START.set(current);
    }
    Ok(())
}

/// The limit of servers as an argument of their keepers; `None` if they inherit it.
pub(super) fn keeper_argument() -> Option<String> {
    LIMIT_AT_START.get().map(u64::to_string)
}

/// Sets the limit that a keeper's argument names. To be called by the keeper, before it starts the server.
pub(super) fn apply_keeper_argument(argument: &OsStr) -> io::Result<()> {
    let limit = argument.to_str().and_then(|text| text.parse().ok());
    let limit = limit.ok_or(io::ErrorKind::InvalidInput)?;
    let (_, maximum) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, limit, maximum)?)
}
