//! What the tests of secrets share: a temporary directory, and the program that runs as the keeper of commands.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use cofferdam::process;

/// What the sidecar does first, with the real binary as the keeper.
pub(crate) fn prepare() {
    process::use_keeper_program(env!("CARGO_BIN_EXE_cofferdam").into());
    process::harden().expect("harden this process");
}

/// A temporary directory of one test, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cofferdam-secret-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    pub(crate) fn executable(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("write it");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("make it executable");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
