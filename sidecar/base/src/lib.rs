//! What every part of the sidecar uses and none of them owns.
//!
//! | module | what it is for |
//! |---|---|
//! | [`atomic_file`] | files that are whole or absent, readable by the sidecar's user alone |
//! | [`clock`] | wall-clock time and RFC 3339 |
//! | [`metrics`] | counters and gauges, rendered as OpenMetrics text |
//! | [`random`] | random bytes |
//!
//! What must stay true: this crate knows no other part of the sidecar.

#![forbid(unsafe_code)]

pub mod atomic_file;
pub mod clock;
pub mod metrics;
pub mod random;
