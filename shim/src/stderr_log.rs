//! Messages for the user, on stderr: each problem once, and the progress of a call.
//!
//! Must stay true: the shim never waits for a reader of stderr. What cannot be written at once is dropped.

use std::io;
use std::os::fd::AsFd;

use crate::stdio::Stdio;

pub(crate) struct StderrLog {
    /// `None` if nothing is to be written, or if stderr cannot be used.
    output: Option<Stdio>,
    reported: Vec<String>,
}

/// The number of different problems that are reported.
const MAX_REPORTED: usize = 32;

impl StderrLog {
    pub(crate) fn new() -> Self {
        let output = io::stderr().as_fd().try_clone_to_owned().and_then(Stdio::output).ok();
        Self { output, reported: Vec::new() }
    }

    /// A log that writes nothing.
    pub(crate) fn silent() -> Self {
        Self { output: None, reported: Vec::new() }
    }

    /// Writes a problem, unless the same one was written before.
    pub(crate) fn warn_once(&mut self, problem: String) {
        if self.reported.len() >= MAX_REPORTED || self.reported.contains(&problem) {
            return;
        }
        self.note(&problem);
        self.reported.push(problem);
    }

    /// Writes a line, even if it was written before.
    pub(crate) fn note(&self, text: &str) {
        if let Some(output) = &self.output {
            let line: String =
                text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
            // A closed stderr does not end the shim.
            let _ = output.try_write(format!("cofferdam-shim: {line}\n").as_bytes());
        }
    }
}
