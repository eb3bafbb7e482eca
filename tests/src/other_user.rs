//! What a test needs to run the programs as a user who is not root, whichever user runs the tests.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::process::{built, command};
use crate::tools::{Tool, cannot_run};

/// The user id, as on a laptop.
pub const USER: u32 = 1000;

/// The user id in a user namespace. Not [`USER`]: the sidecar names its directory in `/dev/shm` by the id, and that one belongs to
/// another user outside.
const USER_IN_NAMESPACE: u32 = 1017;

/// A command that starts a program as a user who is not root, in a user namespace of its own. Outside, and so for files, the user
/// is the one who runs the tests.
#[track_caller]
pub fn in_user_namespace(program: &str) -> Command {
    let mut unshare = command(Tool::Unshare.path().expect("util-linux is essential on Debian"));
    let [user, group] = ["user", "group"].map(|kind| format!("--map-{kind}={USER_IN_NAMESPACE}"));
    unshare.args(["--user", &user, &group, program]);
    unshare
}

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
