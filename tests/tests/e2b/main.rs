//! E2B: the double is faithful to the real SDKs, and our client does on it what it is for.
//!
//! Where `COFFERDAM_E2B_URL` names a real `envd`, the tests in `pipes` that need no control of the platform run on that.

mod sdks;
