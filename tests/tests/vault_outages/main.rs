//! A real OpenBao that is sealed, killed, stopped, busy, slow, cut off, a standby, or has changed its mind, while calls go
//! on: what is held serves on, what is missing refuses and says so, nothing spins, and all of it ends without a restart.
//!
//! Every answer is the real server's, but for those in [`replayed`], which says what it replays and why.

mod changes;
mod down;
mod replayed;
mod slow;
mod standby;
mod support;
