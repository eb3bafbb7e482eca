//! Why a package was not resolved or installed, in words that name the next step.

use std::fmt;

use crate::jail::{Finished, JailError};
use crate::lock::LockError;
use crate::npm_tree::TreeProblem;
use crate::pip_report::ReportProblem;
use crate::programs::ProgramProblem;
use crate::settings::{RegistrySettings, SettingsError};
use crate::spec::PackageKind;
use crate::store::StoreError;
use crate::tools::ToolError;

/// How many lines of a package manager are quoted.
const QUOTED_LINES: usize = 12;
const QUOTED_CHARACTERS: usize = 300;

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot {what}")]
    Confined { what: &'static str, source: JailError },
    #[error("cannot {what}: {problem}{quoted}")]
    Failed { what: &'static str, problem: Problem, quoted: Quoted },
    #[error(transparent)]
    Files(#[from] std::io::Error),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("the lock is for `{locked}`, and this host is `{here}`")]
    Platform { locked: String, here: String },
    #[error(transparent)]
    Program(#[from] ProgramProblem),
    #[error(transparent)]
    Report(#[from] ReportProblem),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Tree(#[from] TreeProblem),
}

/// What a package manager complained about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// Its dependencies contradict each other.
    Conflict,
    /// It tried to reach other hosts than the registry's.
    ForeignHost(Vec<String>),
    /// A package, or this version of it, is not there.
    Gone(PackageKind),
    /// It exists for other systems.
    OtherSystem,
    /// There is no file that could be used without a compiler.
    NeedsBuild,
    /// A file is not the one that was locked.
    OtherContent,
    /// The disk, or a directory in memory, is full.
    NoSpace,
    /// An install script failed, or there was something that only a script could have made.
    Script,
    /// The registry wants a credential, or another one.
    Unauthorized,
    Unreachable(Vec<String>),
    /// How it ended.
    Other(String),
}

/// The end of what a package manager printed, for people; empty if a credential was in it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Quoted(Vec<String>);

impl InstallError {
    pub(crate) fn of(
        what: &'static str,
        kind: PackageKind,
        run: &Finished,
        settings: &RegistrySettings,
    ) -> Self {
        let text = String::from_utf8_lossy(&run.output);
        let quoted = match settings.occur_in(&run.output) {
            true => Quoted::default(),
            false => Quoted::end_of(&text),
        };
        Self::Failed { what, problem: Problem::of(kind, &text, run), quoted }
    }

    /// The next step.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Confined { .. } => {
                "`cofferdam doctor` says which walls this host has; packages are not installed without walls"
            }
            Self::Failed { problem, .. } => problem.hint(),
            Self::Files(_) => "look at the space on the disk, and at the permissions of the state directory",
            Self::Lock(error) => error.hint(),
            Self::Platform { .. } => "run `cofferdam install --update` to lock it for this host",
            Self::Program(_) => "set `program` to one of the names",
            Self::Report(_) => "look at the version of Python and pip",
            Self::Settings(_) => "correct the settings, or set the variable that replaces them",
            Self::Store(error) => error.hint(),
            Self::Tool(error) => error.hint(),
            Self::Tree(_) => {
                "choose a version, or another server, of which every part comes from the registry with its digest"
            }
        }
    }
}

impl Problem {
    fn of(kind: PackageKind, text: &str, run: &Finished) -> Self {
        let says = |needles: &[&str]| needles.iter().any(|needle| text.contains(needle));
        if says(&["EINTEGRITY", "DO NOT MATCH THE HASHES", "unpacked files don't match", "TAR_BAD_ARCHIVE"]) {
            Self::OtherContent
        } else if says(&["ENOSPC", "No space left on device"]) {
            Self::NoSpace
        } else if says(&[
            "code E401",
            "code E403",
            "code ENEEDAUTH",
            "401 Client Error",
            "403 Client Error",
            "401 Error",
            "403 Error",
        ]) {
            Self::Unauthorized
        } else if !run.refused.is_empty() {
            Self::ForeignHost(run.refused.clone())
        } else if says(&["code EBADPLATFORM"]) {
            Self::OtherSystem
        } else if says(&["code ERESOLVE", "ResolutionImpossible"]) {
            Self::Conflict
        } else if says(&["No sources permitted for"]) {
            Self::NeedsBuild
        } else if !run.failed.is_empty() {
            Self::Unreachable(run.failed.clone())
        } else if says(&["code E404", "code ETARGET", "No matching distribution", "404 Client Error"]) {
            Self::Gone(kind)
        } else {
            Self::Other(run.exit.to_string())
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Conflict => "choose another version of the server",
            Self::ForeignHost(_) => {
                "an installation reaches the registry of npm's or pip's settings alone: set the registry that has these files"
            }
            Self::Gone(_) => {
                "look at the name and the version, and at the registry in npm's or pip's settings"
            }
            Self::NeedsBuild | Self::OtherSystem => {
                "choose a version with a file that is built for this host"
            }
            Self::NoSpace => "make room where `state-dir` is",
            Self::OtherContent => {
                "do not use it before you know why: somebody may have replaced a file of the registry"
            }
            Self::Other(_) => "the lines above are the package manager's own",
            Self::Script => "look at what the script needs: it has no network and no compiler but the host's",
            Self::Unauthorized => {
                "put a token that is valid into npm's or pip's own settings; it is used for the installation alone"
            }
            Self::Unreachable(_) => {
                "look at the registry in npm's or pip's settings, and at this host's network"
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("its dependencies contradict each other"),
            Self::ForeignHost(hosts) => {
                write!(f, "it wanted to reach {}, and only the registry is allowed", hosts.join(", "))
            }
            Self::Gone(kind) => {
                write!(f, "the {} does not have it, or not something that it depends on", kind.registry())
            }
            Self::OtherSystem => f.write_str("it does not run on this operating system or processor"),
            Self::NeedsBuild => {
                f.write_str("it, or something that it depends on, has only source code for this Python, which a compiler would have to build")
            }
            Self::NoSpace => f.write_str("there is no space left"),
            Self::OtherContent => f.write_str("a file has another digest than the lock or the registry says"),
            Self::Other(exit) => write!(f, "the package manager failed ({exit})"),
            Self::Script => f.write_str("an install script failed"),
            Self::Unauthorized => f.write_str("the registry refused the credential, or wants one"),
            Self::Unreachable(hosts) => write!(f, "the registry cannot be reached ({})", hosts.join("; ")),
        }
    }
}

impl Quoted {
    fn end_of(text: &str) -> Self {
        let is_said = |line: &&str| !line.trim().is_empty() && !line.contains("A complete log of this run");
        let lines: Vec<&str> = text.lines().filter(is_said).collect();
        let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
        let shown = |line: &&str| line.chars().filter(|c| !c.is_control()).take(QUOTED_CHARACTERS).collect();
        Self(last.iter().map(shown).collect())
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}
