//! `cofferdam run` with a user's home and project of its own, and a configuration whose sidecar nothing else has started.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::deadline::wait_until;
use crate::harness::Harness;
use crate::process::{built, output_of};
use crate::world::{Builder, World};

/// A user with a home, a project in it, and a configuration.
#[derive(Debug)]
pub struct RunUser {
    pub world: World,
    directory: tempfile::TempDir,
}

impl RunUser {
    /// Writes the configuration; no sidecar runs.
    #[track_caller]
    pub fn new(builder: Builder) -> Self {
        let directory =
            tempfile::Builder::new().prefix("user-").tempdir().expect("a temporary directory can be made");
        for name in ["home/project", "tmp"] {
            std::fs::create_dir_all(directory.path().join(name)).expect("a temporary directory is writable");
        }
        Self { world: builder.prepare(), directory }
    }

    pub fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// The working directory of runs.
    pub fn project(&self) -> PathBuf {
        self.home().join("project")
    }

    /// The directory of temporary files, which is empty unless a run is under way.
    pub fn temporary(&self) -> PathBuf {
        self.directory.path().join("tmp")
    }

    /// Writes a file below the home.
    pub fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.home().join(path);
        let parent = path.parent().expect("a file is in a directory");
        std::fs::create_dir_all(parent).expect("a temporary directory is writable");
        std::fs::write(&path, text).expect("a temporary directory is writable");
        path
    }

    /// Writes a program into the directory that [`RunUser::search_path`] begins with.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.write(&format!("programs/{name}"), text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it was just written");
        path
    }

    /// A PATH that begins with the user's own programs.
    pub fn search_path(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.home().join("programs").display())
    }

    /// `cofferdam run ARGUMENTS` in the project, with the static shim.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command_without_shim();
        command.arg("--shim").arg(built("COFFERDAM_SHIM_BIN", "cofferdam-shim")).args(arguments);
        command
    }

    /// The same with the shim that it finds by itself.
    #[track_caller]
    pub fn command_without_shim(&self) -> Command {
        self.command_of(&built("COFFERDAM_BIN", "cofferdam"))
    }

    /// The same with this program.
    pub fn command_of(&self, program: &Path) -> Command {
        let mut command = self.world.command_of(program);
        command.arg("run").arg("-c").arg(&self.world.layout().config);
        command.env("HOME", self.home()).env("TMPDIR", self.temporary()).current_dir(self.project());
        command
    }

    /// Runs to the end.
    #[track_caller]
    pub fn output(&self, arguments: &[&str]) -> Output {
        output_of(self.command(arguments), &format!("cofferdam run {arguments:?}"))
    }

    /// The shim in the sandbox is the command; a scripted client is on its stdio.
    #[track_caller]
    pub fn client(&self, options: &[&str], server: &str) -> Harness {
        let mut arguments = options.to_vec();
        arguments.extend(["--", "cofferdam-shim", "--server", server]);
        Harness::start(self.command(&arguments), "cofferdam run")
    }

    /// Asserts that no run has left a process, a socket, a lock holder or a file.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left: Vec<PathBuf> = std::fs::read_dir(self.temporary())
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "temporary files");
        assert!(!self.world.layout().admin.exists(), "the sidecar's socket");
        assert_eq!(self.sidecars(), Vec::<u32>::new(), "sidecars that still run");
        let project = self.project().display().to_string();
        let is_of_sandbox =
            |id: &u32| crate::process::command_line(*id).contains(&project) && crate::process::is_alive(*id);
        let left: Vec<String> =
            crate::process::process_ids().filter(is_of_sandbox).map(crate::process::command_line).collect();
        assert_eq!(left, Vec::<String>::new(), "processes of sandboxes");
    }

    /// Processes of sidecars with the configuration of the world, or with one in the home.
    pub fn sidecars(&self) -> Vec<u32> {
        let config = self.world.layout().config.display().to_string();
        let home = self.home().display().to_string();
        let is_sidecar = |id: &u32| {
            let line = crate::process::command_line(*id);
            let is_of_user = line.contains(&config) || line.contains(&home);
            line.contains(" serve ") && is_of_user && crate::process::is_alive(*id)
        };
        crate::process::process_ids().filter(is_sidecar).collect()
    }

    #[track_caller]
    pub fn wait_for_sidecar(&self) -> u32 {
        wait_until("a sidecar runs", || !self.sidecars().is_empty());
        self.sidecars()[0]
    }
}

/// Every file below a directory with its content, to compare.
pub fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                _ => found.push((entry.path(), std::fs::read(entry.path()).unwrap_or_default())),
            }
        }
    }
    found.sort();
    found
}
