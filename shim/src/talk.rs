//! What the shim says to people, on stderr: each trouble once.
//!
//! Must stay true: nobody waits for a reader of stderr. What does not fit at once is not said.

use std::io;
use std::os::fd::AsFd;

use crate::stdio::Stdio;

pub(crate) struct Talk {
    output: Option<Stdio>,
    said: Vec<String>,
}

/// Different troubles that are remembered; whoever has more of them knows by now that something is wrong.
const MOST: usize = 32;

impl Talk {
    pub(crate) fn new() -> Self {
        let output = io::stderr().as_fd().try_clone_to_owned().and_then(Stdio::output).ok();
        Self { output, said: Vec::new() }
    }

    pub(crate) fn trouble(&mut self, trouble: String) {
        if self.said.len() >= MOST || self.said.contains(&trouble) {
            return;
        }
        if let Some(output) = &self.output {
            let line: String = trouble
                .chars()
                .map(|character| if character.is_control() { ' ' } else { character })
                .collect();
            // Nobody listening is no reason to end.
            let _ = output.try_write(format!("cofferdam-shim: {line}\n").as_bytes());
        }
        self.said.push(trouble);
    }
}
