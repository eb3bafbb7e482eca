//! How a command reports an error: what failed, why, and what to do next.

use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;

use cofferdam_base::text::causes;

/// An error of a command, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<dyn Error>,
    hint: Option<String>,
    code: Sysexit,
}

/// The exit codes of sysexits(3) that are used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sysexit {
    CannotCreate = 73,
    Configuration = 78,
    Data = 65,
    NoInput = 66,
    NoPermission = 77,
    Software = 70,
    Unavailable = 69,
    Usage = 64,
}

impl Failure {
    pub(crate) fn new(code: Sysexit, error: impl Into<Box<dyn Error>>) -> Self {
        Self { error: error.into(), hint: None, code }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn report(&self) -> ExitCode {
        let mut text = format!("error: {}\n", self.error);
        for cause in causes(&*self.error) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  caused by: {cause}");
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "\nhint: {hint}");
        }
        eprint!("{text}");
        ExitCode::from(self.code as u8)
    }
}
