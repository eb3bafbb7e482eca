//! Server processes and their keepers.
//!
//! ```text
//! sidecar ──control socket── keeper ──parent of── server ── its descendants
//!    └───────────── stdin, stdout, stderr ──────────┘
//! ```
//!
//! What must stay true:
//! - Every process of a server is dead once its [`ProcessHandle`] is ended or dropped, the server exits, the
//!   keeper dies or the sidecar dies, whatever `fork`, `setsid` and signal handlers it uses. The keeper is a
//!   subreaper, so a server's orphans become the keeper's children; the sidecar is a subreaper too, so a keeper's orphans
//!   become the sidecar's children, and the [`warden`] kills them.
//! - Only direct children are ever killed by process id. They are reaped by this crate only, so an id cannot have been reused.
//! - The server's stdio does not pass through the keeper; secrets reach the keeper over the control socket, never in its
//!   own arguments or environment.
//! - The sidecar's direct children are keepers or were started by [`spawn_known`]; any other child is an orphan.
//!
//! A server with [`Walls`] runs in namespaces of its own, in which process 1 belongs to this crate too:
//!
//! ```text
//! keeper ── process 1 ── server ── its descendants
//! ```
//!
//! Not covered: a server without walls that stops or kills both the keeper and the sidecar. It runs as the same user, so the
//! kernel allows that.

#![deny(unsafe_code)]

mod bounded;
mod children;
mod descriptor_limit;
mod environment;
mod exit;
mod foreground;
mod keeper;
mod launch;
mod observation;
mod os;
mod registry;
mod server;
mod start;
mod walls;
mod warden;
mod wire;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};

pub use bounded::{RunError, run_bounded};
pub use descriptor_limit::raise_descriptor_limit;
pub use environment::{InvalidEnvironment, Variable, allowed_environment};
pub use exit::Exit;
pub use foreground::{OrphanAdoption, Pty, RawMode, Window, kill_adopted, try_user_namespace, user_command};
pub use keeper::{is_keeper, keeper_main};
pub use launch::{Launch, LaunchError, launch, launch_observed, program_path, use_keeper_program};
pub use observation::{PathObserver, Wanted, observed_calls};
pub use registry::{KnownChild, spawn_known};
pub use server::{Ended, ProcessHandle, ServerProcess};
pub use walls::{
    Access, Entry, EntryKind, FileAccess, FileRule, Instruction, Limit, Missing, Network, Proc, WallPart,
    Walls,
};

/// Protects this process: no core files, no access for other processes of the user, no descriptors inherited by children.
/// Also makes it the parent of its descendants' orphans. The sidecar and the keeper call this before anything else.
pub fn harden() -> std::io::Result<()> {
    prctl::set_dumpable(false)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    prctl::set_child_subreaper(true)?;
    os::close_descriptors_on_exec()?;
    Ok(())
}
