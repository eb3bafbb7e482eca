//! A new credential reaches a running server: a secret changes in a real OpenBao, real processes are replaced, and
//! calls of the harness continue.

mod calls;
mod failures;
mod modes;
mod scene;
mod scopes;
mod tasks;
