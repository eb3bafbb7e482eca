//! Podman of a user who is not root, as on a laptop. The test machine needs neither subordinate ids nor version 2 of control
//! groups for that: a mount namespace of the command has both.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::{is_root, text_of_success};
use crate::process::{command, output_of, send};
use crate::tools::Tool;

/// Podman for one user, with all of its files in a temporary directory.
#[derive(Debug)]
pub struct RootlessPodman {
    user: u32,
    podman: PathBuf,
    unshare: PathBuf,
    directory: tempfile::TempDir,
}

/// Without control groups, and with limits that a process without CAP_SYS_RESOURCE may set.
const SETTINGS: &str = "\
[containers]
cgroups = \"disabled\"
default_ulimits = [\"nofile=1024:20000\", \"nproc=1024:1024\"]
[engine]
cgroup_manager = \"cgroupfs\"
events_logger = \"none\"
lock_type = \"file\"
runtime = \"crun\"
";

/// Runs its arguments as the user `$1`, with the subordinate ids of the file `$2`.
const AS_USER: &str = "\
umount -R -l /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; mount --make-rshared /
mount --bind \"$2\" /etc/subuid; mount --bind \"$2\" /etc/subgid
user=$1; shift 2; exec setpriv --reuid $user --regid $user --clear-groups -- \"$@\"";

impl RootlessPodman {
    /// `None` if a tool is missing or the test is not run by root, which is reported.
    #[track_caller]
    pub fn open(user: u32) -> Option<Self> {
        let (podman, unshare) = (Tool::Podman.path()?, Tool::Unshare.path()?);
        let programs = Tool::Rootless.path()?;
        if !is_root("podman of another user") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let engine = Self { user, podman, unshare, directory };
        engine.write_files(&programs);
        Some(engine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write_files(&self, programs: &Path) {
        let write = |name: &str, text: String| {
            std::fs::write(self.path(name), text).expect("a temporary directory is writable");
        };
        std::fs::create_dir(self.path("bin")).expect("a temporary directory is writable");
        // Only root may open the directory of the tools. The first two map ids with the permission of root.
        for (name, mode) in [("newuidmap", 0o4755), ("newgidmap", 0o4755), ("crun", 0o755)] {
            let copy = self.path("bin").join(name);
            std::fs::copy(programs.join("bin").join(name), &copy).expect("the program is installed");
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).expect("it was just made");
        }
        let libraries = std::fs::read_dir(programs.join("lib")).into_iter().flatten().flatten();
        std::fs::create_dir(self.path("lib")).expect("a temporary directory is writable");
        for library in libraries.flat_map(|folder| std::fs::read_dir(folder.path())).flatten().flatten() {
            if library.path().is_file() {
                std::fs::copy(library.path(), self.path("lib").join(library.file_name()))
                    .expect("it is readable");
            }
        }
        let (library_path, crun) = (self.path("lib"), self.path("bin/crun"));
        // Podman's monitor passes no environment on to the runtime.
        write("runtime", format!("#!/bin/sh\nLD_LIBRARY_PATH={library_path:?} exec {crun:?} \"$@\"\n"));
        write("subordinate-ids", format!("{}:100000:65536\n", self.user));
        let [temporary, database, volumes, runtime] =
            ["tmp", "database", "volumes", "runtime"].map(|name| self.path(name));
        // Without these paths podman has its database in the user's home.
        let paths =
            format!("tmp_dir = {temporary:?}\nstatic_dir = {database:?}\nvolume_path = {volumes:?}\n");
        write("containers.conf", format!("{SETTINGS}{paths}[engine.runtimes]\ncrun = [{runtime:?}]\n"));
        let (root, run) = (self.path("root"), self.path("run"));
        write(
            "storage.conf",
            format!("[storage]\ndriver = \"vfs\"\ngraphroot = {root:?}\nrunroot = {run:?}\n"),
        );
        std::fs::create_dir(self.path("runtime-directory")).expect("a temporary directory is writable");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path("runtime"), executable).expect("it was just written");
        for path in [self.directory.path(), &self.path("runtime-directory")] {
            chown(path, Some(self.user), Some(self.user)).expect("root may give files away");
        }
    }

    /// Removes the user's subordinate ids.
    pub fn remove_subordinate_ids(&self) {
        std::fs::write(self.path("subordinate-ids"), "").expect("a temporary directory is writable");
    }

    /// Removes one of the programs that podman needs.
    pub fn remove_program(&self, name: &str) {
        std::fs::remove_file(self.path("bin").join(name)).expect("it was copied there");
    }

    /// The same command, run by the user with this podman on the PATH.
    pub fn command_of(&self, inner: &Command) -> Command {
        let mut command = command(&self.unshare);
        command.args(["--mount", "sh", "-euc", AS_USER, "sh", &self.user.to_string()]);
        command.arg(self.path("subordinate-ids")).arg(inner.get_program()).args(inner.get_args());
        if let Some(directory) = inner.get_current_dir() {
            command.current_dir(directory);
        }
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = inner.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, value)| value);
        let mut search_path = self.path("bin").into_os_string();
        search_path.push(":");
        search_path.push(path.unwrap_or(&inherited));
        command.env("PATH", search_path).env("XDG_RUNTIME_DIR", self.path("runtime-directory"));
        command.env("CONTAINERS_CONF", self.path("containers.conf"));
        command.env("CONTAINERS_STORAGE_CONF", self.path("storage.conf"));
        command
    }

    /// The names of all containers, whether they run or not.
    #[track_caller]
    pub fn containers(&self) -> String {
        text_of_success(self.command_of(&self.list()), "podman ps")
    }

    fn list(&self) -> Command {
        let mut list = command(&self.podman);
        list.args(["ps", "--all", "--format", "{{.Names}}"]).env("HOME", self.directory.path());
        // The user may not be able to enter the directory of the test.
        list.current_dir("/");
        list
    }
}

impl Drop for RootlessPodman {
    fn drop(&mut self) {
        // No assertion here: the test may be failing already.
        let output = output_of(self.command_of(&self.list()), "podman ps");
        for name in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let mut remove = command(&self.podman);
            remove.args(["rm", "--force", "--time", "0", name]).env("HOME", self.directory.path());
            output_of(self.command_of(&remove), "podman rm");
        }
        // Podman leaves a process that keeps the user namespace for its next start.
        let id =
            std::fs::read_to_string(self.path("tmp/pause.pid")).ok().and_then(|id| id.trim().parse().ok());
        if let Some(id) = id {
            send(id, Signal::SIGKILL);
        }
    }
}
