//! What a test needs to run the programs as a user who is not root, whichever user runs the tests.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::process::built;
use crate::tools::cannot_run;

/// The user id, as on a laptop.
pub const USER: u32 = 1000;

/// A directory with copies of the programs, which every user may read: only root may enter the directories in which they were
/// built. `None` if this process cannot start programs of another user.
#[track_caller]
pub fn copy_programs() -> Option<tempfile::TempDir> {
    if !nix::unistd::geteuid().is_root() {
        cannot_run("only root can start programs of another user");
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    open_to_all(directory.path());
    for (variable, name) in [
        ("COFFERDAM_BIN", "cofferdam"),
        ("COFFERDAM_SHIM_BIN", "cofferdam-shim"),
        ("COFFERDAM_FIXTURE_BIN", "fixture-server"),
    ] {
        std::fs::copy(built(variable, name), directory.path().join(name)).expect("it was built");
    }
    Some(directory)
}

/// Lets every user enter and read a directory.
pub fn open_to_all(directory: &Path) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory, mode).expect("the directory belongs to this user");
}
