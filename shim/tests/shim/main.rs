//! The shim from outside: its binary, its loop with short timeouts, and its dependencies.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod dependencies;
mod process;
mod short_waits;
mod support;
