//! A new credential reaches a running process: a real OpenBao says that a secret changed, real processes take over from
//! each other, and a harness in the middle of its work notices nothing.

mod calls;
mod scene;
mod scopes;
mod tasks;
mod trouble;
mod ways;
