//! Servers as packages: pinned, resolved and installed apart from their run.
//!
//! ```text
//! configuration ── package = "npm:x@1.2.3" ──▶ resolve ──▶ cofferdam.lock ──▶ install ──▶ packages/DIGEST
//!                                              └── inside walls, with the registry as the only host ──┘
//! a server's start ── configuration, lock and store agree ──▶ interpreter, script of the package
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`spec`] | a package with its version, as it is written |
//! | [`command`] | `npx` and `uvx`: the package that they mean |
//! | [`lock`], [`difference`] | `cofferdam.lock`, and what changes in it |
//! | [`store`], [`tree`] | installed packages, and whether they are unchanged |
//! | [`source`], [`programs`] | what a server is started from |
//! | [`install`] | resolving and installing |
//! | [`npm`], [`npm_tree`] | packages of npm |
//! | [`pypi`], [`pip_report`] | packages of the Python package index |
//! | [`jail`] | the walls around a package manager |
//! | [`tools`], [`settings`], [`ini`] | the host's package managers, and their registries |
//! | [`failure`] | what went wrong, and the next step |
//!
//! What must stay true: a package manager runs inside walls, with access to the registry and no credential but the registry's; its
//! files are compared with digests that the lock has; a server is started from the store alone, without a package manager.

#![forbid(unsafe_code)]

mod command;
mod difference;
mod failure;
mod ini;
mod install;
mod jail;
mod lock;
mod npm;
mod npm_tree;
mod pip_report;
mod programs;
mod pypi;
mod settings;
mod source;
mod spec;
mod store;
mod tools;
mod tree;

pub use command::{RunnerCommand, package_of};
pub use difference::{Change, Difference};
pub use failure::{InstallError, Problem};
pub use install::{Installer, Resolved};
pub use lock::{InstallScripts, LockError, LockFile, LockedPackage, LockedServer, lock_path};
pub use programs::ProgramProblem;
pub use settings::{SettingsError, Surroundings};
pub use source::{NotReady, NotReadyProblem, PackageProgram, PackageSource};
pub use spec::{InvalidPackage, PackageKind, PackageSpec};
pub use store::{Inspection, Store, StoreError, Unusable, without_those_around};
pub use tools::ToolError;

/// The operating system and the processor that a package is installed for.
fn platform() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}
