//! Waits for a program and keeps the end of what it wrote to stderr.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio::time::timeout;

/// How much of the end of stderr is kept.
const KEPT_BYTES: usize = 1_000;
/// How long stderr is read after the program has exited: a process that outlives the program may keep stderr open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the exit status of a program, and the end of what it wrote to stderr, which has to be a pipe.
pub(super) async fn wait_with_stderr(child: &mut Child) -> io::Result<(ExitStatus, String)> {
    let (mut stderr, mut kept) = (child.stderr.take(), Vec::new());
    let status = tokio::select! {
        status = child.wait() => status?,
        () = read_last_bytes(stderr.as_mut(), &mut kept) => child.wait().await?,
    };
    let _ = timeout(DRAIN_TIMEOUT, read_last_bytes(stderr.as_mut(), &mut kept)).await;
    Ok((status, String::from_utf8_lossy(&kept).trim().to_owned()))
}

/// Reads a stream to its end and keeps its last bytes.
async fn read_last_bytes(stream: Option<&mut (impl AsyncRead + Unpin)>, kept: &mut Vec<u8>) {
    let Some(stream) = stream else { return };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..length]);
        kept.drain(..kept.len().saturating_sub(KEPT_BYTES));
    }
}
