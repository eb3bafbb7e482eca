//! How the command line and the demo print: data to stdout, progress and failures to stderr.

pub(crate) mod colour;
pub(crate) mod failure;
pub(crate) mod interruption;
pub(crate) mod progress;
pub(crate) mod prompt;
pub(crate) mod table;
pub(crate) mod wrap;

use std::io::{self, Write};

use failure::Sysexit;

/// Prints one line of data to stdout. The program exits if that fails: without an error if the pipe is closed, for example by
/// `head`; otherwise, for example on a full disk, with an error, so that a script does not use incomplete output.
#[expect(clippy::exit, reason = "nothing more can be printed, and every caller would have to stop")]
pub(crate) fn print_line(text: &str) {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: cannot write to standard output: {error}");
            std::process::exit(Sysexit::Io as i32);
        }
    }
}
