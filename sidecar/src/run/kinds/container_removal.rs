//! The containers that podman, docker or gVisor may leave behind when they are killed, and the command lines that remove them.
//!
//! What must stay true: the files of a killed run only say which container is left. The command line is always made here, of
//! the program on the user's PATH and of a name that `run` could have given.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;

use super::{CommandLine, Kind, Network, gvisor};
use crate::run::host::Host;

/// A container that may be left behind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::run) struct LeftContainer {
    kind: Kind,
    name: String,
}

/// The random end of a sandbox's name: a hyphen and this many hexadecimal digits.
const RANDOM_DIGITS: usize = 8;

impl LeftContainer {
    /// The container of a sandbox; `None` for kinds that leave nothing behind.
    pub(super) fn of(kind: Kind, sandbox: &str) -> Option<Self> {
        match kind {
            Kind::Podman | Kind::Docker | Kind::Gvisor => Some(Self { kind, name: container_name(sandbox) }),
            Kind::Bwrap | Kind::Srt => None,
        }
    }

    /// What a run stores for the run that cleans up after it.
    pub(in crate::run) fn stored(&self) -> &'static str {
        self.kind.argument()
    }

    /// The container of a killed run, from what it has stored and the name of its sandbox. `None` if no run can have stored this.
    pub(in crate::run) fn load(stored: &str, sandbox: &str) -> Option<Self> {
        let (stem, random) = sandbox.rsplit_once('-')?;
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_stem = (1..=crate::run::MAX_STEM).contains(&stem.len())
            && stem.bytes().all(|byte| is_plain(byte) || byte == b'-')
            && !stem.starts_with('-');
        let is_random = random.len() == RANDOM_DIGITS
            && random.bytes().all(|byte| byte.is_ascii_hexdigit() && is_plain(byte));
        let kind = Kind::value_variants().iter().find(|kind| kind.argument() == stored)?;
        if is_stem && is_random { Self::of(*kind, sandbox) } else { None }
    }

    /// The name of the program that removes the container.
    pub(in crate::run) fn program(&self) -> &'static OsStr {
        self.kind.program().as_ref()
    }

    /// The command line that removes the container. `program` is the path of the kind's program.
    pub(in crate::run) fn removal(&self, program: PathBuf, run_directory: &Path, host: &Host) -> CommandLine {
        match self.kind {
            Kind::Gvisor => {
                let mut arguments = gvisor::global_arguments(run_directory, Network::None);
                arguments.extend(["delete", "--force", &self.name].map(Into::into));
                CommandLine { program, arguments, environment: gvisor::environment() }
            }
            Kind::Podman | Kind::Docker | Kind::Bwrap | Kind::Srt => {
                let arguments = ["rm", "--force", &self.name].map(Into::into).to_vec();
                CommandLine { program, arguments, environment: host.all_variables() }
            }
        }
    }
}

/// The name of a sandbox's container.
pub(super) fn container_name(sandbox: &str) -> String {
    format!("cofferdam-{sandbox}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_stores_is_loaded_again() {
        for kind in [Kind::Podman, Kind::Docker, Kind::Gvisor] {
            let left = LeftContainer::of(kind, "my-tool-0a1b2c3d").unwrap();
            assert_eq!(left.name, "cofferdam-my-tool-0a1b2c3d");
            assert_eq!(LeftContainer::load(left.stored(), "my-tool-0a1b2c3d"), Some(left));
        }
    }

    #[test]
    fn names_and_kinds_that_no_run_has_stored_are_refused() {
        for name in [
            "",
            "claude",
            "-0a1b2c3d",
            "claude-0a1b2c3",
            "claude-0A1B2C3D",
            "--all-0a1b2c3d",
            "a b-0a1b2c3d",
            "a/b-0a1b2c3d",
        ] {
            assert_eq!(LeftContainer::load("podman", name), None, "{name}");
        }
        assert_eq!(LeftContainer::load("podman", &format!("{}-0a1b2c3d", "a".repeat(25))), None);
        for kind in ["", "bwrap", "srt", "sh", "podman ", r#"["sh","-c","touch oops"]"#] {
            assert_eq!(LeftContainer::load(kind, "claude-0a1b2c3d"), None, "{kind}");
        }
    }
}
