//! What ends a command that stays: SIGINT or SIGTERM.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Is over when one of them comes. From now on neither ends the process by itself.
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
