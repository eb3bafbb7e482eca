//! The kinds of sandbox that a run can have, each with what it needs on the test machine.

use std::process::Command;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;

use super::text;

/// A kind of sandbox whose program is installed.
#[derive(Debug)]
pub(crate) enum SandboxKind {
    Bubblewrap,
    Podman(PodmanEngine),
    /// Docker's daemon is not available, so podman runs the same command line, without `--init`, which needs another package.
    Docker(PodmanEngine),
    Gvisor,
    Srt {
        /// A script that starts srt.
        script: String,
    },
}

impl SandboxKind {
    #[track_caller]
    pub(crate) fn bubblewrap() -> Option<Self> {
        Tool::Bubblewrap.path().map(|_| Self::Bubblewrap)
    }

    #[track_caller]
    pub(crate) fn podman() -> Option<Self> {
        PodmanEngine::open().map(Self::Podman)
    }

    #[track_caller]
    pub(crate) fn docker() -> Option<Self> {
        PodmanEngine::open().map(Self::Docker)
    }

    #[track_caller]
    pub(crate) fn gvisor() -> Option<Self> {
        Tool::Runsc.path().map(|_| Self::Gvisor)
    }

    #[track_caller]
    pub(crate) fn srt() -> Option<Self> {
        let (node, runtime) = (Tool::Node.path()?, Tool::SandboxRuntime.path()?);
        Some(Self::Srt { script: format!("#!/bin/sh\nexec {node:?} {runtime:?} \"$@\"\n") })
    }

    /// Every kind that this machine has; a missing one is reported as such.
    #[track_caller]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let all = [Self::bubblewrap(), Self::podman(), Self::docker(), Self::gvisor(), Self::srt()];
        all.into_iter().flatten()
    }

    /// The value of `--sandbox`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Bubblewrap => "bwrap",
            Self::Podman(_) => "podman",
            Self::Docker(_) => "docker",
            Self::Gvisor => "gvisor",
            Self::Srt { .. } => "srt",
        }
    }

    /// `cofferdam run ARGUMENTS` of this user in this kind of sandbox. Docker's image has the programs of this machine.
    #[track_caller]
    pub(crate) fn command(&self, user: &RunUser, arguments: &[&str]) -> Command {
        let mut options = vec!["--sandbox", self.name()];
        let image = if let Self::Docker(podman) = self { image_of_host(podman) } else { String::new() };
        if !image.is_empty() {
            options.extend(["--image", &image, "--mount", "/usr:/usr:ro"]);
        }
        options.extend(arguments);
        let mut command = user.command(&options);
        self.configure(user, &mut command);
        command
    }

    /// Lets a `cofferdam run` find this kind's program and its files.
    #[track_caller]
    pub(crate) fn configure(&self, user: &RunUser, command: &mut Command) {
        match self {
            Self::Bubblewrap | Self::Gvisor => {}
            Self::Podman(podman) => podman.configure(command),
            Self::Docker(podman) => {
                let program = Tool::Podman.path().expect("podman is open");
                let without_init = r#"for word; do shift; [ "$word" = --init ] || set -- "$@" "$word"; done"#;
                user.program("docker", &format!("#!/bin/sh\n{without_init}\nexec {program:?} \"$@\"\n"));
                podman.configure(command);
                command.env("PATH", user.search_path());
            }
            Self::Srt { script } => {
                user.program("srt", script);
                command.env("PATH", user.search_path());
            }
        }
    }

    /// Whether the sandbox's program knows that the command runs. Podman forwards no signal before that.
    pub(crate) fn is_running(&self) -> bool {
        match self {
            Self::Podman(podman) | Self::Docker(podman) => !podman.running_containers().is_empty(),
            Self::Bubblewrap | Self::Gvisor | Self::Srt { .. } => true,
        }
    }

    /// A scripted client whose command is the shim in the sandbox.
    #[track_caller]
    pub(crate) fn client(&self, user: &RunUser) -> Harness {
        let command = self.command(user, &["--", "cofferdam-shim", "--server", "tools"]);
        Harness::start(command, "cofferdam run")
    }

    /// Asserts that no run of this user has left a process, a container, a socket or a file.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, user: &RunUser) {
        user.assert_nothing_left();
        if let Self::Podman(podman) | Self::Docker(podman) = self {
            assert_eq!(podman.containers(), "");
        }
    }
}

/// An image of symbolic links into `/usr`, which the run mounts.
#[track_caller]
fn image_of_host(podman: &PodmanEngine) -> String {
    let (tree, archive) = (podman.directory().join("host-tree"), podman.directory().join("host-tree.tar"));
    if !archive.exists() {
        std::fs::create_dir(&tree).expect("a temporary directory is writable");
        for name in ["bin", "lib", "lib64"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), tree.join(name)).expect("it is new");
        }
        import_image(podman, &tree, "host-tree", &[]);
    }
    "localhost/host-tree".to_owned()
}

/// Makes an image of a directory. `options` are those of `podman import`.
#[track_caller]
pub(crate) fn import_image(podman: &PodmanEngine, tree: &std::path::Path, name: &str, options: &[&str]) {
    let archive = podman.directory().join(format!("{name}.tar"));
    let mut pack = command("tar");
    pack.args(["--create", "--mode=0555", "--file"]).arg(&archive).arg("--directory").arg(tree).arg(".");
    let mut import = podman.command();
    import.arg("import").args(options).arg(&archive).arg(name);
    for (command, name) in [(pack, "tar"), (import, "podman import")] {
        let output = output_of(command, name);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}
