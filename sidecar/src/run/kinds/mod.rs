//! The kinds of sandbox. Each turns a plan into the command line of the sandbox's program (`bwrap`, `podman`, …) and the files
//! that this program needs.
//!
//! What must stay true: no value of an environment variable that may be a credential is in a command line; these modules write
//! no files, so that `--dry-run` leaves nothing behind.
//!
//! | module | sandbox |
//! |---|---|
//! | [`bubblewrap`] | Linux namespaces, without a daemon or root: the default |
//! | [`container`] | podman and docker |
//! | [`container_removal`] | the removal of containers that a killed program leaves behind |
//! | [`gvisor`] | `runsc`: a kernel in user space |
//! | [`srt`] | Anthropic's sandbox runtime, in which the host's file tree is visible except for what is hidden |
//! | [`root_tree`] | the root directory for gVisor, and for podman without an image |

mod bubblewrap;
mod container;
mod container_removal;
mod gvisor;
mod root_tree;
mod srt;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::harness::Harness;
use super::host::Host;
use super::image::Image;
use super::mount::Mount;
use super::plan::{FileTree, PathsInside, Plan};
use crate::terminal::failure::{Failure, Sysexit};

pub(super) use container_removal::LeftContainer;

/// A kind of sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Bubblewrap: Linux namespaces, without a daemon or root
    Bwrap,
    /// A container; without --image it uses this machine's system directories, read-only
    Podman,
    /// A container; needs --image
    Docker,
    /// gVisor: a kernel in user space (`runsc`)
    Gvisor,
    /// Anthropic's sandbox runtime
    Srt,
}

/// What the sandbox can connect to, in addition to the relay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network {
    None,
    Host,
    /// These hosts only, through the proxy of `srt`.
    Hosts(&'static [&'static str]),
}

/// The stdin, stdout and stderr of the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stdio {
    /// A new terminal, whose bytes are copied to and from the user's.
    Terminal,
    /// Those of this process, because stdin or stdout is not a terminal.
    Inherited,
}

/// A command line and its complete environment.
#[derive(Clone, Debug)]
pub(super) struct CommandLine {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: BTreeMap<OsString, OsString>,
}

/// Everything that is needed to run a plan in one kind of sandbox.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) command: CommandLine,
    /// Files to create below the run's directory.
    pub(super) files: Vec<GeneratedFile>,
    /// The image of a container that has one.
    pub(super) image: Option<Image>,
    /// Runs the shim in this sandbox instead of the command. `None` for podman with an image, which may have to be pulled
    /// first: podman is then tried without the image.
    pub(super) trial: Option<Trial>,
    /// What the sandbox's program leaves behind when it is killed.
    pub(super) left: Option<LeftContainer>,
    pub(super) signals: SignalTarget,
    pub(super) orphans: Orphans,
    /// How to find out whether the command of a container has started.
    pub(super) start_check: Option<StartCheck>,
    /// Printed if the exit code of the sandbox's program says that the command could not be started.
    pub(super) advice: Option<&'static str>,
}

/// A start of the sandbox that shows whether it works on this machine.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) command: CommandLine,
    /// Removes what the sandbox's program leaves behind when it is killed.
    pub(super) removal: Option<CommandLine>,
}

/// How to find out whether the command of a container has started.
#[derive(Debug)]
pub(super) struct StartCheck {
    /// Podman and docker write this file when they have created the container.
    pub(super) id_file: PathBuf,
    /// Prints the status of the container; fails if there is no such container.
    pub(super) status: CommandLine,
}

/// Whether processes that outlive the sandbox's program are killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Orphans {
    /// If the outer process of bubblewrap is killed while it sets up the sandbox, its inner process would wait forever.
    Kill,
    /// Processes of podman and docker may serve other containers too.
    Leave,
}

#[derive(Debug)]
pub(super) struct GeneratedFile {
    pub(super) path: PathBuf,
    pub(super) content: FileContent,
}

#[derive(Debug)]
pub(super) enum FileContent {
    Directory,
    Link(PathBuf),
    /// A copy of this program.
    Program(PathBuf),
    Text(String),
}

/// Which process gets the signals that the run gets.
#[derive(Clone, Debug)]
pub(super) enum SignalTarget {
    /// The command, through this command line, to which the name of the signal is added. The sandbox's program itself would
    /// exit, and has no controlling terminal, so the run also has to recognise Ctrl-C.
    Command(CommandLine),
    /// The sandbox's program, which forwards them to the command.
    Program,
    /// The process groups inside the sandbox: the sandbox's program itself would exit, and the sandbox with it.
    GroupsInside,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bwrap => "bubblewrap",
            Self::Podman => "podman",
            Self::Docker => "docker",
            Self::Gvisor => "gvisor",
            Self::Srt => "srt",
        }
    }

    /// The value of `--sandbox`.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Bwrap => "bwrap",
            Self::Podman | Self::Docker | Self::Gvisor | Self::Srt => self.name(),
        }
    }

    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Gvisor => "runsc",
            Self::Bwrap | Self::Podman | Self::Docker | Self::Srt => self.argument(),
        }
    }

    /// Whether every run tries the sandbox before its command starts. The exit codes of podman and docker say whether they
    /// could start the command, so these are tried only after a failure.
    pub(super) fn is_tried_before_each_run(self) -> bool {
        match self {
            Self::Bwrap | Self::Gvisor | Self::Srt => true,
            Self::Podman | Self::Docker => false,
        }
    }

    /// A known harness has to reach its model; any other command gets no network.
    pub(super) fn default_network(self, harness: Option<Harness>) -> Network {
        match (harness, self) {
            (None, _) => Network::None,
            (Some(harness), Self::Srt) => Network::Hosts(harness.hosts()),
            (Some(_), _) => Network::Host,
        }
    }

    /// Refuses combinations of options that this kind does not support.
    pub(super) fn check_options(self, tree: &FileTree, network: Option<Network>) -> Result<(), Failure> {
        let usage = |why: &str, hint: &str| Err(Failure::new(Sysexit::Usage, why).hint(hint));
        match (self, tree, network) {
            (Self::Docker, FileTree::Host, _) => usage(
                "docker needs an image",
                "name one with --image, or use `--sandbox podman`, which can use this machine's system directories",
            ),
            (Self::Bwrap | Self::Gvisor | Self::Srt, FileTree::Image(_), _) => {
                usage("only podman and docker support images", "omit --image, or add `--sandbox podman`")
            }
            (Self::Srt, _, Some(Network::Host)) => usage(
                "srt cannot use the network of this machine: it allows connections to listed hosts only",
                "omit --network, or use `--sandbox bwrap`",
            ),
            _ => Ok(()),
        }
    }

    /// Refuses mounts and arguments that cannot be passed to the sandbox's program.
    pub(super) fn check_paths_and_arguments(
        self,
        mounts: &[Mount],
        host: &Host,
        command: &[OsString],
    ) -> Result<(), Failure> {
        let refused_mount = mounts.iter().find_map(|mount| match self {
            Self::Podman | Self::Docker => container::refuse_mount(mount),
            Self::Srt => srt::refuse_mount(mount),
            Self::Bwrap | Self::Gvisor => None,
        });
        let paths = mounts.iter().flat_map(|mount| [mount.source.as_os_str(), mount.target.as_os_str()]);
        let mut values = paths.chain([host.home.as_os_str()]).chain(command.iter().map(OsString::as_os_str));
        let not_text = match self {
            // Their settings are JSON, which must be UTF-8.
            Self::Gvisor | Self::Srt => values.find(|value| value.to_str().is_none()),
            Self::Bwrap | Self::Podman | Self::Docker => None,
        };
        let not_text =
            not_text.map(|value| format!("{} does not support {value:?}: it is not UTF-8", self.name()));
        match refused_mount.or(not_text) {
            None => Ok(()),
            Some(why) => {
                Err(Failure::new(Sysexit::Usage, why).hint("use another path or name, or `--sandbox bwrap`"))
            }
        }
    }

    pub(super) fn paths_inside(self, host: &Host, run_directory: &Path) -> PathsInside {
        match self {
            // The sandbox has the file tree of the host, so paths are the same inside and outside.
            Self::Srt => PathsInside {
                home: run_directory.join(super::directory::HOME),
                relay: run_directory.join(super::directory::RELAY),
                programs: run_directory.join("bin"),
            },
            Self::Bwrap | Self::Podman | Self::Docker | Self::Gvisor => PathsInside {
                home: host.home.clone(),
                relay: "/run/cofferdam/relay".into(),
                programs: "/run/cofferdam/bin".into(),
            },
        }
    }

    /// Returns the command line and the files for a plan. `program` is the path of the sandbox's program on this machine.
    pub(super) fn prepare(
        self,
        plan: &Plan,
        host: &Host,
        program: PathBuf,
        run_directory: &Path,
        stdio: Stdio,
    ) -> Prepared {
        match self {
            Self::Bwrap => bubblewrap::prepare(plan, program, stdio),
            Self::Podman | Self::Docker => container::prepare(plan, host, program, run_directory, stdio),
            Self::Gvisor => gvisor::prepare(plan, program, run_directory, stdio),
            Self::Srt => srt::prepare(plan, host, program, run_directory, stdio),
        }
    }
}

impl CommandLine {
    /// The program and its arguments.
    pub(super) fn argv(&self) -> impl Iterator<Item = &OsStr> {
        std::iter::once(self.program.as_os_str()).chain(self.arguments.iter().map(OsString::as_os_str))
    }

    /// The command, ready to be started.
    pub(super) fn command(&self) -> std::process::Command {
        let mut command = cofferdam_process::user_command(&self.program);
        command.args(&self.arguments).env_clear().envs(&self.environment);
        command
    }
}

impl GeneratedFile {
    pub(super) fn text(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self { path: path.into(), content: FileContent::Text(text.into()) }
    }

    pub(super) fn directory(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), content: FileContent::Directory }
    }
}

/// At a terminal, starts the command with `setsid --ctty` of util-linux, which makes the terminal the command's controlling
/// terminal: Ctrl-C reaches the command, not the sandbox's program.
fn with_terminal(stdio: Stdio, command: &[OsString]) -> Vec<OsString> {
    let setsid = Path::new("/usr/bin/setsid");
    match stdio == Stdio::Terminal && setsid.exists() {
        true => {
            [setsid.into(), "--ctty".into(), "--".into()].into_iter().chain(command.iter().cloned()).collect()
        }
        false => command.to_vec(),
    }
}
