//! Containers of an image that is `FROM scratch` and holds the shim alone, without a network.
//!
//! Images, containers, locks and run-time files are in a temporary directory, so that other uses of podman on the
//! machine are not disturbed; a container is removed by its name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    Access, CreatedNames, Guest, SHIM_INSIDE, Sandbox, described, if_usable, is_root, shim, text_of_success,
    write_program,
};
use crate::harness::Harness;
use crate::process::{command, output_of};
use crate::tools::{Tool, cannot_run};

/// One image and its containers.
#[derive(Debug)]
pub struct Podman {
    program: PathBuf,
    directory: tempfile::TempDir,
    made: CreatedNames,
}

/// A container that runs until this value goes out of scope. It contains only the shim, so a shim also keeps it
/// running: that shim waits for a harness that never sends anything.
#[derive(Debug)]
pub struct Container<'podman> {
    podman: &'podman Podman,
    name: String,
}

const IMAGE: &str = "cofferdam-shim";
/// Resource limits that a process without CAP_SYS_RESOURCE may set, file locks instead of a machine-wide segment.
pub(super) const SETTINGS: &str = "\
[containers]
default_ulimits = [\"nofile=1024:20000\", \"nproc=1024:1024\"]
[engine]
cgroup_manager = \"cgroupfs\"
events_logger = \"none\"
lock_type = \"file\"
runtime = \"runc\"
";

impl Podman {
    #[track_caller]
    pub fn open() -> Option<Self> {
        let program = Tool::Podman.path()?;
        Tool::Runc.path()?;
        if !is_root("podman") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let podman = Self { program, directory, made: CreatedNames::default() };
        podman.build()?;
        if_usable(podman)
    }

    /// Writes a program that runs `podman` with this sandbox's directories and its own arguments.
    #[track_caller]
    pub fn write_program(&self, path: &Path) {
        write_program(path, &self.line());
    }

    /// Starts a container to `exec` into, with the mounts of this guest.
    #[track_caller]
    pub fn container(&self, guest: &Guest) -> Container<'_> {
        self.container_named(&self.made.next(), guest)
    }

    /// The same with a name of the test's choice.
    #[track_caller]
    pub fn container_named(&self, name: &str, guest: &Guest) -> Container<'_> {
        let container = Container { podman: self, name: name.to_owned() };
        let mut run = self.run("--detach", &container.name, guest);
        run.args(["--relay", "unix:/no/such/socket"]);
        text_of_success(run, "podman run --detach");
        container
    }

    /// The directory with all of its files, including the containers' mounts.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process id, on the host, of the last container's first process.
    #[track_caller]
    pub fn process(&self) -> u32 {
        self.process_of(&self.made.last())
    }

    fn process_of(&self, name: &str) -> u32 {
        let mut inspect = self.podman();
        inspect.args(["inspect", "--format", "{{.State.Pid}}", name]);
        text_of_success(inspect, "podman inspect").parse().expect("a process id")
    }

    #[track_caller]
    fn build(&self) -> Option<()> {
        let context = self.directory.path().join("context");
        std::fs::create_dir(&context).expect("a temporary directory is writable");
        std::fs::write(self.directory.path().join("containers.conf"), SETTINGS)
            .expect("a temporary directory is writable");
        std::fs::copy(shim(), context.join("cofferdam-shim")).expect("the shim can be copied");
        let file =
            format!("FROM scratch\nCOPY cofferdam-shim {SHIM_INSIDE}\nENTRYPOINT [\"{SHIM_INSIDE}\"]\n");
        std::fs::write(context.join("Containerfile"), file).expect("a temporary directory is writable");
        let mut build = self.podman();
        build.args(["build", "--quiet", "--tag", IMAGE]).arg(&context);
        let output = output_of(build, "podman build");
        if !output.status.success() {
            cannot_run(&format!("podman cannot build an image here: {}", described(&output)));
            return None;
        }
        Some(())
    }

    fn run(&self, how: &str, name: &str, guest: &Guest) -> Command {
        let mut command = self.podman();
        command.args(["run", "--interactive", "--network", "none", how, "--name", name]);
        for (variable, value) in &guest.environment {
            command.arg("--env").arg(format!("{variable}={value}"));
        }
        for mount in guest.mounts() {
            let mode = match mount.access {
                Access::ReadOnly => "ro",
                Access::ReadWrite => "rw",
            };
            let (outside, inside) = (mount.outside.display(), mount.inside.display());
            command.arg("--volume").arg(format!("{outside}:{inside}:{mode}"));
        }
        command.arg(IMAGE);
        command
    }

    fn podman(&self) -> Command {
        let [program, arguments @ ..] = &self.line()[..] else { unreachable!("a line has a program") };
        let mut command = command(program);
        command.args(arguments);
        command
    }

    /// The command line of `podman` with this sandbox's directories. It needs no environment, so that another program
    /// can run it.
    fn line(&self) -> Vec<OsString> {
        let path = |name: &str| self.directory.path().join(name).into_os_string();
        let mut settings = OsString::from("CONTAINERS_CONF=");
        settings.push(path("containers.conf"));
        let mut line: Vec<OsString> = vec!["env".into(), settings, self.program.clone().into()];
        for (flag, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            line.extend([flag.into(), path(name)]);
        }
        line.extend(["--storage-driver".into(), "vfs".into()]);
        line
    }

    fn remove(&self, name: &str) {
        let mut remove = self.podman();
        remove.args(["rm", "--force", "--ignore", "--time", "0", name]);
        let output = output_of(remove, "podman rm");
        if !output.status.success() {
            eprintln!("podman rm {name}: {}", described(&output));
        }
    }
}

impl Sandbox for Podman {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn command(&self, guest: &Guest) -> Command {
        let mut command = self.run("--rm", &self.made.next(), guest);
        command.args(&guest.arguments);
        command
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        for name in self.made.all() {
            self.remove(&name);
        }
    }
}

impl Container<'_> {
    /// Starts another shim in the running container by `exec -i`, with a harness on its stdio.
    #[track_caller]
    pub fn exec(&self, guest: &Guest) -> Harness {
        let mut line = self.podman.line();
        line.extend(["exec".into(), "--interactive".into()]);
        for (variable, value) in &guest.environment {
            line.extend(["--env".into(), format!("{variable}={value}").into()]);
        }
        line.extend([self.name.clone().into(), SHIM_INSIDE.into()]);
        let mut command = command(&line[0]);
        command.args(&line[1..]).args(&guest.arguments);
        Harness::start(command, "podman exec")
    }

    /// A whole command line that runs these arguments in the container, on its own stdio, as `attach exec --` needs it.
    pub fn exec_line(&self, arguments: &[&str]) -> Vec<OsString> {
        let mut line = self.podman.line();
        line.extend(["exec".into(), "--interactive".into(), self.name.clone().into()]);
        line.extend(arguments.iter().map(OsString::from));
        line
    }

    /// The process id, on the host, of its first process.
    #[track_caller]
    pub fn process(&self) -> u32 {
        self.podman.process_of(&self.name)
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        self.podman.remove(&self.name);
    }
}
