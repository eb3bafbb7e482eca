//! Waits for SIGINT or SIGTERM, which end a long-running command.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Returns a future that completes at the first of the two signals. From this call on, neither signal ends the process by
/// itself.
pub(crate) fn interruption() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
