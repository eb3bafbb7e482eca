//! What the command line and the demo print: data on stdout; progress on stderr, and failures with an exit code.

pub(crate) mod failure;
pub(crate) mod progress;

use std::io::{self, Write};

/// Writes one line of data. A closed pipe ends the program without an error, as with `head`.
#[expect(clippy::exit, reason = "the output is closed: nothing more can be printed, and it is not an error")]
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{text}").and_then(|()| stdout.flush())
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
