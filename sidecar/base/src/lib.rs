//! Small utilities for all crates of the sidecar.
//!
//! | item | what it is for |
//! |---|---|
//! | [`atomic_file`] | files that are either complete or absent, readable by the sidecar's user alone |
//! | [`Backoff`] | exponential backoff |
//! | [`clock`] | wall-clock time and RFC 3339 |
//! | [`duration`] | durations as text: `2h30m` |
//! | [`elf`] | the processor of a Linux program, and whether it needs libraries |
//! | [`FairShare`], [`FairRateLimiter`] | limits that several owners share, so that none takes everything |
//! | [`FileLock`] | a lock that one process at a time holds |
//! | [`memory`] | memory counted against ceilings |
//! | [`metrics`] | counters and gauges, rendered as OpenMetrics text |
//! | [`PacedLines`] | log lines that must not flood the log |
//! | [`random`] | random bytes |
//! | [`RateLimiter`] | rate limits |
//! | [`text`] | hexadecimal digits, percent-encoding, errors with their causes |
//!
//! What must stay true: this crate depends on no other crate of the workspace.

#![forbid(unsafe_code)]

pub mod atomic_file;
mod backoff;
pub mod clock;
pub mod duration;
pub mod elf;
mod fair_share;
mod file_lock;
pub mod memory;
pub mod metrics;
pub mod paced_lines;
pub mod random;
mod rate_limiter;
pub mod text;

pub use backoff::{Backoff, Jitter, JitteredBackoff};
pub use fair_share::{FairRateLimiter, FairShare, LimitOwner, ShareRefused};
pub use file_lock::{FileLock, FileLockError};
pub use paced_lines::PacedLines;
pub use rate_limiter::RateLimiter;
