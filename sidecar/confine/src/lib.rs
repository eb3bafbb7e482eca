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
//! What must stay true: a path is shown only if the profile names it, the program cannot run without it, or it is part of the
//! operating system and holds no secret; nothing is writable but the server's own directories and what the profile names.

mod bpf;
mod downloader;
mod profile;
mod program;
mod system;
mod system_calls;
mod wall;
mod walls;

pub use downloader::{DownloadSource, Downloader};
pub use profile::{HOME, Home, InvalidPath, Profile, ShownPath, ShownPathError};
pub use program::{Program, ProgramError};
pub use system::is_part_of_the_system;
pub use wall::{FurtherWall, Landlock, LimitedBy, Standing};
pub use walls::{HostWalls, OwnDirectories, Start, WallsError, environment, walls};
