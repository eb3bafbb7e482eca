//! The SDKs of the admin API: a real sidecar, the platforms' real SDKs, and doubles of the platforms.

mod packages;
mod python;
mod setup;
mod typescript;
