//! Any sequence of events at a shim: lines, frames in any split, disconnects, restarts, refusals, timeouts and malformed
//! bytes. Every request gets one response, and runs at most once if the sidecar follows the protocol.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Vec<(u8, u8)>| cofferdam_shim::fuzzing::run_script(&script));
