//! The shim with short timeouts: seconds where the real one waits for a minute. Nothing else differs.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_shim::options::{self, Command};
use cofferdam_shim::timing::Timing;

fn main() -> ExitCode {
    let Ok(Command::Relay(options)) =
        options::parse(std::env::args_os().skip(1), |name| std::env::var_os(name))
    else {
        return ExitCode::from(64);
    };
    let timing = Timing {
        handshake_wait: Duration::from_secs(2),
        call_wait: Duration::from_secs(2),
        first_retry: Duration::from_millis(5),
        longest_retry_waiting: Duration::from_millis(100),
        longest_retry_idle: Duration::from_millis(200),
        welcome_timeout: Duration::from_millis(500),
        ..Timing::default()
    };
    let relayed = || -> std::io::Result<()> {
        let input = std::io::stdin().as_fd().try_clone_to_owned()?;
        let output = std::io::stdout().as_fd().try_clone_to_owned()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(cofferdam_shim::relay(options, timing, input, output, std::future::pending()))
    };
    match relayed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quick-shim: {error}");
            ExitCode::FAILURE
        }
    }
}
