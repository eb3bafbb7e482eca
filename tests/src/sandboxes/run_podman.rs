//! Podman for programs that call it themselves: its settings and its files are given by variables.

use std::path::PathBuf;
use std::process::Command;

use super::{is_root, shim, text_of_success};
use crate::process::command;
use crate::tools::Tool;

/// Images and containers in a directory of their own.
#[derive(Debug)]
pub struct RunPodman {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl RunPodman {
    #[track_caller]
    pub fn open() -> Option<Self> {
        let program = Tool::Podman.path()?;
        Tool::Runc.path()?;
        if !is_root("podman") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| directory.path().join(name);
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n",
            path("root"),
            path("run")
        );
        std::fs::write(path("containers.conf"), super::podman::SETTINGS)
            .expect("a temporary directory is writable");
        std::fs::write(path("storage.conf"), storage).expect("a temporary directory is writable");
        Some(Self { program, directory })
    }

    /// Lets a program that starts podman use this one.
    pub fn configure(&self, command: &mut Command) {
        command.env("CONTAINERS_CONF", self.directory.path().join("containers.conf"));
        command.env("CONTAINERS_STORAGE_CONF", self.directory.path().join("storage.conf"));
    }

    /// An image that holds one file and neither a shell nor `/tmp`, with a user of its own.
    #[track_caller]
    pub fn empty_image(&self) -> String {
        let context = self.directory.path().join("context");
        std::fs::create_dir(&context).expect("a temporary directory is writable");
        std::fs::copy(shim(), context.join("file")).expect("the shim can be copied");
        let file = "FROM scratch\nCOPY file /file\nUSER 1234\nENTRYPOINT [\"/file\"]\n";
        std::fs::write(context.join("Containerfile"), file).expect("a temporary directory is writable");
        let mut build = self.podman();
        build.args(["build", "--quiet", "--tag", "cofferdam-empty"]).arg(&context);
        text_of_success(build, "podman build");
        "localhost/cofferdam-empty".to_owned()
    }

    /// The names of all containers, whether they run or not.
    #[track_caller]
    pub fn containers(&self) -> String {
        let mut list = self.podman();
        list.args(["ps", "--all", "--format", "{{.Names}}"]);
        text_of_success(list, "podman ps")
    }

    fn podman(&self) -> Command {
        let mut podman = command(&self.program);
        self.configure(&mut podman);
        podman
    }
}

impl Drop for RunPodman {
    fn drop(&mut self) {
        for name in self.containers().split_whitespace() {
            let mut remove = self.podman();
            remove.args(["rm", "--force", "--time", "0", name]);
            let _ = crate::process::output_of(remove, "podman rm");
        }
    }
}
