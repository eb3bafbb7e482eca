//! What a confined server may reach on the host, and the walls that this takes.
//!
//! A [`Profile`] is what the configuration says. With what a start needs (its program, its injected files, its network) it
//! becomes [`Walls`](cofferdam_process::Walls), which the keeper of the server builds.
//!
//! ```text
//! profile ─┐
//! program ─┼─▶ walls ─▶ keeper
//! system  ─┘
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `profile` | what the configuration says |
//! | `program`, `system` | what a program needs, and what every server sees |
//! | `walls`, `system_calls`, `bpf` | the walls of a start |
//! | [`view`] | the same for people: each path, what may be done with it, and why it is shown |
//! | [`lack`] | what a profile lacks for what a server asked for |
//! | [`manifest`] | AgentManifest: an upper bound of a profile |
//!
//! What must stay true: a path is shown only if the profile names it, the program cannot run without it, or it is part of the
//! operating system and holds no secret; nothing is writable but the server's own directories and what the profile names.

mod bpf;
pub mod lack;
pub mod manifest;
mod profile;
mod program;
mod system;
mod system_calls;
pub mod view;
mod walls;

pub use profile::{HOME, Home, InvalidPath, Profile, ShownPath, ShownPathError};
pub use program::{Program, ProgramError};
pub use system_calls::observed_calls;
pub use walls::{OWN_VARIABLES, OwnDirectories, Start, WallsError, environment, walls};
