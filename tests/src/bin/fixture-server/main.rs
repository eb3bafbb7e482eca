//! A small MCP server over stdio that misbehaves on demand and counts the calls that really ran.
//!
//! It parses as laxly as any server might: it splits lines wherever the reader of some language would, accepts keys in
//! any case, the last of two equal keys, and whole batches. So if the sidecar forwards a hidden call, the call runs
//! here and is counted.
//!
//! Argument: a mode (see [`mode::Mode`]). Environment: `COUNT_FILE` gets a line per executed tool call, `PID_FILE` a
//! line per process, `RECEIVED_FILE` a line per message received, `SECRET` is what it leaks. Processes are named by their
//! numbers on the host, for which [`output::process_id`] asks the test.

mod leak;
mod lines;
mod message;
mod mode;
mod output;
mod tools;

use std::io::Read;
use std::process::ExitCode;

use mode::Mode;
use output::Output;

fn main() -> ExitCode {
    let mode = match std::env::args().nth(1).map(|text| text.parse::<Mode>()).transpose() {
        Ok(mode) => mode.unwrap_or(Mode::Plain),
        Err(problem) => {
            eprintln!("fixture-server: {problem}");
            return ExitCode::from(64);
        }
    };
    output::record("PID_FILE", &format!("{} {mode:?}\n", output::process_id()));
    if let Some(end) = mode.before_serving() {
        return end;
    }
    serve(mode);
    mode.after_the_end_of_input();
    ExitCode::SUCCESS
}

/// Reads until end of input; each message is answered by [`message::handle`].
fn serve(mode: Mode) {
    let output = Output::new();
    let pending = message::Pending::default();
    let mut lines = lines::Splitter::default();
    let mut input = std::io::stdin().lock();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match input.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                for line in lines.feed(&buffer[..count]) {
                    message::handle_line(mode, &line, &output, &pending);
                }
            }
        }
    }
}
