//! What the command line and the demo print: data on stdout, failures on stderr with an exit code.

pub(crate) mod failure;

use std::io::{self, Write};

/// Writes one line of data. A closed pipe ends the program quietly: the reader has seen enough.
#[expect(clippy::exit, reason = "a reader that went away wants nothing more, not even an error")]
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{text}").and_then(|()| stdout.flush())
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
