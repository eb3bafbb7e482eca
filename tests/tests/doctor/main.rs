//! `cofferdam doctor` and `cofferdam-shim doctor` in broken worlds: each finding has a stable code, says what is wrong and why that
//! matters, and names the next step.

mod clock;
mod codes;
mod configuration;
mod examined;
mod harnesses;
mod host;
mod interruptions;
mod listeners;
mod sandbox;
mod servers;
mod vault;
