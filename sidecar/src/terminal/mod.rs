//! How the command line and the demo print: data to stdout, progress and failures to stderr.

pub(crate) mod failure;
pub(crate) mod progress;

use std::io::{self, Write};

/// Prints one line of data to stdout. If the pipe is closed, for example by `head`, the program exits without an error.
#[expect(clippy::exit, reason = "the output is closed: nothing more can be printed, and it is not an error")]
pub(crate) fn print_line(text: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{text}").and_then(|()| stdout.flush())
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
