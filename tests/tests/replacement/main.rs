//! A new credential reaches a running server: a secret changes in a real OpenBao, real processes are replaced, and the
//! harness notices nothing.

mod calls;
mod failures;
mod modes;
mod scene;
mod scopes;
mod tasks;
