//! Waits for SIGINT or SIGTERM, which end a long-running command.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// The returned future completes at the first of the two signals. Once this was called, neither signal ends the process
/// by itself.
pub(super) fn interruption() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
