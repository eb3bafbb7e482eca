//! E2B: the double is faithful to the real SDKs, and our client does on it what it is for.
//!
//! Where `COFFERDAM_E2B_URL` names a real `envd`, the tests that only need a sandbox run on that.

mod errors;
mod harness;
mod orphans;
mod pipes;
mod sdks;
mod support;
