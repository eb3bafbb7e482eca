//! Runs a command and returns its output, within limits of time and size.
//!
//! What must stay true: the output is in memory that is wiped when dropped, and in no error; no process of the command
//! outlives the call.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::environment::allowed_environment;
use super::exit::Exit;
use super::launch::{Launch, LaunchError, launch_with};
use super::server::ProcessHandle;

/// Errors contain nothing that the command printed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("it failed: {0}")]
    Failed(Exit),
    #[error("no command is given")]
    NoCommand,
    #[error("it printed more than {limit} bytes")]
    OutputTooLarge { limit: usize },
    #[error("cannot read its output")]
    Read(#[source] io::Error),
    #[error(transparent)]
    Start(#[from] LaunchError),
    #[error("it did not end within {} ms", .0.as_millis())]
    Timeout(Duration),
}

/// Runs `command` in `/` with the allowed environment and returns its stdout; stdin and stderr are `/dev/null`. A command
/// that exceeds a limit is killed with all its descendants.
pub async fn run_bounded(
    command: &[String],
    time: Duration,
    max_output: usize,
) -> Result<Zeroizing<Vec<u8>>, RunError> {
    let (program, args) = command.split_first().ok_or(RunError::NoCommand)?;
    let launch = Launch {
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        environment: allowed_environment(Vec::new()),
        // Not the sidecar's working directory, which may be a project's: some interpreters load packages from it first.
        directory: Some("/".into()),
        walls: None,
    };
    let (output, child_output) = io::pipe().map_err(RunError::Read)?;
    let output = pipe::Receiver::from_owned_fd(output.into()).map_err(RunError::Read)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").map_err(RunError::Read)?;
    let stdio = [null.try_clone().map_err(RunError::Read)?.into(), child_output.into(), null.into()];
    let (mut handle, _) = launch_with(launch, stdio, None).await?;
    let result = timeout(time, read_output(&mut handle, output, max_output)).await;
    handle.end(Duration::ZERO).await;
    result.unwrap_or(Err(RunError::Timeout(time)))
}

async fn read_output(
    handle: &mut ProcessHandle,
    mut output: pipe::Receiver,
    limit: usize,
) -> Result<Zeroizing<Vec<u8>>, RunError> {
    // Allocated at once, because a growing buffer leaves copies that are not wiped. The extra byte detects
    // output above the limit.
    let mut bytes = Zeroizing::new(vec![0; limit + 1]);
    let mut length = 0;
    loop {
        match output.read(&mut bytes[length..]).await.map_err(RunError::Read)? {
            0 => break,
            count => length += count,
        }
        if length > limit {
            return Err(RunError::OutputTooLarge { limit });
        }
    }
    match handle.exited().await {
        Exit::Code(0) => {
            bytes.truncate(length);
            Ok(bytes)
        }
        exit => Err(RunError::Failed(exit)),
    }
}
