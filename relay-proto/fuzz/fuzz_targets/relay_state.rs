//! Any life of a shim: lines, frames in any piece, cuts, restarts, refusals, time and garbage. Every request has one
//! answer, and ran at most once where the sidecar was honest.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Vec<(u8, u8)>| cofferdam_shim::fuzzing::play(&script));
