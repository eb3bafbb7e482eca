//! Podman with settings, images, containers, locks and run-time files in a temporary directory, so that other uses of podman
//! on the machine are not disturbed. Containers are removed at the end, by their names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{describe_output, is_root, shim, text_of_success};
use crate::deadline::{PATIENCE, holds_within};
use crate::process::{command, command_line, output_of, process_ids};
use crate::tools::Tool;

/// Podman for tests, and for programs that start podman themselves: variables tell it where its files are.
#[derive(Debug)]
pub struct PodmanEngine {
    program: PathBuf,
    directory: tempfile::TempDir,
}

/// Resource limits that a process without CAP_SYS_RESOURCE may set, file locks instead of a machine-wide segment.
const SETTINGS: &str = "\
[containers]
default_ulimits = [\"nofile=1024:20000\", \"nproc=1024:1024\"]
[engine]
cgroup_manager = \"cgroupfs\"
events_logger = \"none\"
lock_type = \"file\"
runtime = \"runc\"
";

impl PodmanEngine {
    #[track_caller]
    pub fn open() -> Option<Self> {
        let program = Tool::Podman.path()?;
        Tool::Runc.path()?;
        if !is_root("podman") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| directory.path().join(name);
        let write = |name: &str, text: String| {
            std::fs::write(path(name), text).expect("a temporary directory is writable");
        };
        write("containers.conf", format!("{SETTINGS}tmp_dir = {:?}\n", path("tmp")));
        let storage =
            format!("driver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n", path("root"), path("run"));
        write("storage.conf", format!("[storage]\n{storage}"));
        Some(Self { program, directory })
    }

    /// The directory with all of its files, including the containers' mounts.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Lets a program that starts podman use this one.
    pub fn configure(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// The command line of this podman. It needs no environment, so that another program can run it.
    pub fn line(&self) -> Vec<OsString> {
        let assignments = self.variables().into_iter().map(|(name, path)| {
            let mut assignment = OsString::from(format!("{name}="));
            assignment.push(path);
            assignment
        });
        let mut line: Vec<OsString> = vec!["env".into()];
        line.extend(assignments);
        line.push(self.program.clone().into());
        line
    }

    pub fn command(&self) -> Command {
        let mut podman = command(&self.program);
        self.configure(&mut podman);
        podman
    }

    /// Builds an image of this name; `options` are those of `podman build`. The static shim is `file` in its context.
    ///
    /// # Errors
    /// What podman printed.
    pub fn build(&self, name: &str, containerfile: &str, options: &[&str]) -> Result<(), String> {
        let context = tempfile::tempdir_in(self.directory()).expect("a temporary directory is writable");
        std::fs::copy(shim(), context.path().join("file")).expect("the shim can be copied");
        std::fs::write(context.path().join("Containerfile"), containerfile)
            .expect("a temporary directory is writable");
        let mut build = self.command();
        build.args(["build", "--quiet", "--tag", name]).args(options).arg(context.path());
        let output = output_of(build, "podman build");
        if output.status.success() { Ok(()) } else { Err(describe_output(&output)) }
    }

    /// An image that holds one file and neither a shell nor `/tmp`, with a user and an entry point of its own.
    #[track_caller]
    pub fn empty_image(&self) -> String {
        let file = "FROM scratch\nCOPY file /file\nUSER 1234\nENTRYPOINT [\"/file\"]\n";
        self.build("cofferdam-empty", file, &[]).expect("an image of one file can be built");
        "localhost/cofferdam-empty".to_owned()
    }

    /// The names of all containers, whether they run or not.
    #[track_caller]
    pub fn containers(&self) -> String {
        text_of_success(self.list(), "podman ps")
    }

    /// The names of the containers that run.
    #[track_caller]
    pub fn running_containers(&self) -> String {
        let mut list = self.command();
        list.args(["ps", "--filter", "status=running", "--format", "{{.Names}}"]);
        text_of_success(list, "podman ps")
    }

    fn list(&self) -> Command {
        let mut list = self.command();
        list.args(["ps", "--all", "--format", "{{.Names}}"]);
        list
    }

    /// Ends and removes a container, if it exists.
    pub fn remove(&self, name: &str) {
        let mut remove = self.command();
        remove.args(["rm", "--force", "--ignore", "--time", "0", name]);
        let output = output_of(remove, "podman rm");
        if !output.status.success() {
            eprintln!("podman rm {name}: {}", describe_output(&output));
        }
    }

    fn variables(&self) -> [(&'static str, PathBuf); 2] {
        let path = |name: &str| self.directory.path().join(name);
        [("CONTAINERS_CONF", path("containers.conf")), ("CONTAINERS_STORAGE_CONF", path("storage.conf"))]
    }
}

impl Drop for PodmanEngine {
    fn drop(&mut self) {
        // No assertion here: the test may be failing already.
        let output = output_of(self.list(), "podman ps");
        for name in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            self.remove(name);
        }
        // After a container's end its monitor starts podman once more to clean up, which would make the directory again.
        let directory = self.directory.path().display().to_string();
        let uses_directory = |process: u32| command_line(process).contains(&directory);
        let _ = holds_within(PATIENCE, || !process_ids().any(uses_directory));
    }
}
