//! A real OpenBao that is sealed, killed, stopped, busy, slow, cut off, a standby, or reconfigured, during calls:
//! valid credentials stay in use, missing ones are refused with the reason, retries are paced, and no restart is
//! needed.
//!
//! Every response is the real server's, except those in [`fixed_responses`], which states why they are needed.

mod changes;
mod down;
mod fixed_responses;
mod slow;
mod standby;
mod support;
