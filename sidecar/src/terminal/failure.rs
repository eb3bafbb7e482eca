//! How a command reports an error: what failed, why, and what to do next.

use std::error::Error;
use std::fmt::Write;
use std::io;
use std::process::ExitCode;

use cofferdam_base::text::{causes, error_chain};

use super::colour::{Colours, Role};

/// An error of a command, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<dyn Error>,
    hint: Option<String>,
    code: Sysexit,
}

/// The exit codes of sysexits(3) that are used. The guide explains each (packaging/guide/operations.md).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sysexit {
    CannotCreate = 73,
    Configuration = 78,
    Data = 65,
    /// Output could not be written.
    Io = 74,
    NoInput = 66,
    NoPermission = 77,
    /// The operating system refused a thread, a descriptor or a signal handler.
    OperatingSystem = 71,
    /// An error of this program itself.
    Software = 70,
    Unavailable = 69,
    Usage = 64,
}

impl From<Sysexit> for ExitCode {
    fn from(code: Sysexit) -> Self {
        Self::from(code as u8)
    }
}

impl Failure {
    pub(crate) fn new(code: Sysexit, error: impl Into<Box<dyn Error>>) -> Self {
        Self { error: error.into(), hint: None, code }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What failed and why, on one line.
    pub(crate) fn what(&self) -> String {
        error_chain(&*self.error)
    }

    /// What to do next, if that is known.
    pub(crate) fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn report(&self) -> ExitCode {
        let colours = Colours::of_stderr();
        let mut text = format!("{} {}\n", colours.paint(Role::Bad, "error:"), self.error);
        for cause in causes(&*self.error) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  caused by: {cause}");
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "\n{} {hint}", colours.paint(Role::Hint, "hint:"));
        }
        eprint!("{text}");
        self.code.into()
    }
}

/// The exit code for a file or socket that could not be created: whether permission was denied, or another reason.
pub(crate) fn creation_exit_code(error: &(dyn Error + 'static)) -> Sysexit {
    let is_denied = |error: &(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    match std::iter::successors(Some(error), |&error| error.source()).any(is_denied) {
        true => Sysexit::NoPermission,
        false => Sysexit::CannotCreate,
    }
}
