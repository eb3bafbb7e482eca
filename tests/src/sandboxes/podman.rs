//! Containers of an image that is `FROM scratch` and holds the shim alone, without a network.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::{
    Access, CreatedNames, Guest, PodmanEngine, SHIM_INSIDE, Sandbox, if_usable, text_of_success,
    write_program,
};
use crate::harness::Harness;
use crate::process::command;
use crate::tools::cannot_run;

/// One image and its containers.
#[derive(Debug)]
pub struct Podman {
    engine: PodmanEngine,
    created: CreatedNames,
}

/// A container that runs until this value goes out of scope. It contains only the shim, so a shim also keeps it
/// running: that shim waits for a harness that never sends anything.
#[derive(Debug)]
pub struct Container<'podman> {
    podman: &'podman Podman,
    name: String,
}

const IMAGE: &str = "cofferdam-shim";

impl Podman {
    #[track_caller]
    pub fn open() -> Option<Self> {
        let podman = Self { engine: PodmanEngine::open()?, created: CreatedNames::default() };
        let file = format!("FROM scratch\nCOPY file {SHIM_INSIDE}\nENTRYPOINT [\"{SHIM_INSIDE}\"]\n");
        if let Err(why) = podman.engine.build(IMAGE, &file, &[]) {
            cannot_run(&format!("podman cannot build an image here: {why}"));
            return None;
        }
        if_usable(podman)
    }

    /// Writes a program that runs `podman` with this sandbox's directories and its own arguments.
    #[track_caller]
    pub fn write_program(&self, path: &Path) {
        write_program(path, &self.engine.line());
    }

    /// Starts a container to `exec` into, with the mounts of this guest.
    #[track_caller]
    pub fn container(&self, guest: &Guest) -> Container<'_> {
        self.container_named(&self.created.next(), guest)
    }

    /// As [`Self::container`], with this name.
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
        self.engine.directory()
    }

    /// The process id, on the host, of the last container's first process.
    #[track_caller]
    pub fn process(&self) -> u32 {
        self.process_of(&self.created.last())
    }

    fn process_of(&self, name: &str) -> u32 {
        let mut inspect = self.engine.command();
        inspect.args(["inspect", "--format", "{{.State.Pid}}", name]);
        text_of_success(inspect, "podman inspect").parse().expect("a process id")
    }

    fn run(&self, how: &str, name: &str, guest: &Guest) -> Command {
        let mut command = self.engine.command();
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
}

impl Sandbox for Podman {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn command(&self, guest: &Guest) -> Command {
        let mut command = self.run("--rm", &self.created.next(), guest);
        command.args(&guest.arguments);
        command
    }
}

impl Container<'_> {
    /// Starts another shim in the running container with `exec -i`, and a harness on its stdio.
    #[track_caller]
    pub fn exec(&self, guest: &Guest) -> Harness {
        let mut line = self.podman.engine.line();
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
        let mut line = self.podman.engine.line();
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
        self.podman.engine.remove(&self.name);
    }
}
