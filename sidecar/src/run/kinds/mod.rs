//! The kinds of sandbox: each turns a plan into the command line of its program and the files that this needs.
//!
//! What must stay true: no value of a variable that may be a credential is in a command line; nothing is written here, so
//! that `--dry-run` leaves nothing behind.
//!
//! | module | sandbox |
//! |---|---|
//! | [`bubblewrap`] | namespaces, no daemon, no root: the default |
//! | [`container`] | podman and docker |
//! | [`gvisor`] | `runsc`: a kernel in user space |
//! | [`srt`] | Anthropic's sandbox runtime, which shows the file tree of the host |
//! | [`permitted`] | which kinds work on this machine |

mod bubblewrap;
mod container;
mod gvisor;
mod permitted;
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

pub(super) use permitted::{advise_other_kind, find_program};

/// A kind of sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Bubblewrap: namespaces of the kernel, no daemon, no root
    Bwrap,
    /// A container; without --image it shares this machine's system, read-only
    Podman,
    /// A container; needs --image
    Docker,
    /// A kernel in user space, by `runsc`
    Gvisor,
    /// Anthropic's sandbox runtime
    Srt,
}

/// What the sandbox can connect to, besides the relay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network {
    None,
    Host,
    /// These hosts only, through a proxy of the sandbox's.
    Hosts(&'static [&'static str]),
}

/// Whether the command runs at a terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stdio {
    Terminal,
    Pipes,
}

/// A command line with its whole environment.
#[derive(Clone, Debug)]
pub(super) struct CommandLine {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: BTreeMap<OsString, OsString>,
}

/// Everything that a kind needs to start a plan.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) command: CommandLine,
    /// Files below the run's directory.
    pub(super) files: Vec<GeneratedFile>,
    /// What a container is made of, where that is an image.
    pub(super) image: Option<Image>,
    /// Shows whether this sandbox can be made here, by running the shim in it.
    pub(super) trial: Option<CommandLine>,
    /// Removes what the sandbox's program leaves behind when it is killed.
    pub(super) removal: Option<CommandLine>,
    pub(super) signals: SignalTarget,
    pub(super) orphans: Orphans,
    /// What to look at where the program says by its exit code that it could not start the command.
    pub(super) advice: Option<&'static str>,
}

/// What becomes of processes that the sandbox's program leaves behind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Orphans {
    /// Bubblewrap's process inside waits forever for the one outside if that is killed while the sandbox is being made.
    Kill,
    /// Podman and docker have processes that serve other containers too.
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SignalTarget {
    /// The sandbox's program, which passes them on.
    Program,
    /// The process groups inside: the program itself would die of the signal, and the sandbox with it.
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

    /// A known harness has to reach its model; any other command gets no network.
    pub(super) fn default_network(self, harness: Option<Harness>) -> Network {
        match (harness, self) {
            (None, _) => Network::None,
            (Some(harness), Self::Srt) => Network::Hosts(harness.hosts()),
            (Some(_), _) => Network::Host,
        }
    }

    /// Refuses combinations that the kind does not have.
    pub(super) fn check(self, tree: &FileTree, network: Option<Network>) -> Result<(), Failure> {
        let usage = |why: &str, next: &str| Err(Failure::new(Sysexit::Usage, why).hint(next));
        match (self, tree, network) {
            (Self::Docker, FileTree::Host, _) => usage(
                "docker needs an image",
                "name one with --image, or use `--sandbox podman`, which can share this machine's system",
            ),
            (Self::Bwrap | Self::Gvisor | Self::Srt, FileTree::Image(_), _) => {
                usage("only podman and docker take an image", "leave --image out, or add `--sandbox podman`")
            }
            (Self::Srt, _, Some(Network::Host)) => usage(
                "srt cannot share the network of this machine: it allows single hosts only",
                "leave --network out, or use `--sandbox bwrap`",
            ),
            _ => Ok(()),
        }
    }

    /// Refuses mounts and arguments that the kind's program cannot be told.
    pub(super) fn check_words(
        self,
        mounts: &[Mount],
        host: &Host,
        command: &[OsString],
    ) -> Result<(), Failure> {
        let mounted = mounts.iter().find_map(|mount| match self {
            Self::Podman | Self::Docker => container::refuse_mount(mount),
            Self::Srt => srt::refuse_mount(mount),
            Self::Bwrap | Self::Gvisor => None,
        });
        let paths = mounts.iter().flat_map(|mount| [mount.source.as_os_str(), mount.target.as_os_str()]);
        let mut words = paths.chain([host.home.as_os_str()]).chain(command.iter().map(OsString::as_os_str));
        let not_text = match self {
            // Their settings are JSON, which is text.
            Self::Gvisor | Self::Srt => words.find(|word| word.to_str().is_none()),
            Self::Bwrap | Self::Podman | Self::Docker => None,
        };
        let not_text = not_text.map(|word| format!("{} cannot take {word:?}: it is not UTF-8", self.name()));
        match mounted.or(not_text) {
            None => Ok(()),
            Some(why) => {
                Err(Failure::new(Sysexit::Usage, why).hint("use another path or name, or `--sandbox bwrap`"))
            }
        }
    }

    pub(super) fn paths_inside(self, host: &Host, run_directory: &Path) -> PathsInside {
        match self {
            // It shows the file tree of the host, so everything is where it is.
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

    /// The command line and files for a plan. `program` is the kind's program on this machine.
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
    pub(super) fn words(&self) -> impl Iterator<Item = &OsStr> {
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

/// `setsid --ctty` of util-linux gives the command the terminal as its own, apart from the process group of the
/// sandbox's program: a ctrl-C is for the command.
fn with_terminal(stdio: Stdio, command: &[OsString]) -> Vec<OsString> {
    let setsid = Path::new("/usr/bin/setsid");
    match stdio == Stdio::Terminal && setsid.exists() {
        true => {
            [setsid.into(), "--ctty".into(), "--".into()].into_iter().chain(command.iter().cloned()).collect()
        }
        false => command.to_vec(),
    }
}
