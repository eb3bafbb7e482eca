//! E2B: the real SDKs work with the double, and the client of `cofferdam-platforms` is tested with it.
//!
//! If `COFFERDAM_E2B_URL` is the address of a real `envd`, the tests that only need a sandbox use it.

mod errors;
mod harness;
mod orphans;
mod pipes;
mod sdks;
mod support;
