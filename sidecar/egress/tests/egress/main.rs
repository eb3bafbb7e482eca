//! Real programs in the network of a confined server: what they reach, and that they reach nothing else.

#![expect(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

mod ended;
mod hosts;
mod reached;
mod refused;
mod support;
