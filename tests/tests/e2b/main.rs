//! E2B: the real SDKs work with the double, and the client of `cofferdam-platforms` is tested with it.
//!
//! The tests in `anywhere` also run on a real platform or a real `envd`, if `COFFERDAM_E2B_URL` names one.

mod anywhere;
mod errors;
mod external;
mod harness;
mod orphans;
mod pipes;
mod sdks;
mod support;
