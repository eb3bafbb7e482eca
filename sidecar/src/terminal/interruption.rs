//! Waits for SIGINT or SIGTERM, which end a long-running command.

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that interrupt a command. While this exists, neither of them ends the process by itself.
pub(crate) struct Interruptions {
    interrupt: Signal,
    terminate: Signal,
}

/// A signal that has interrupted the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Interruption {
    Interrupt,
    Terminate,
}

impl Interruptions {
    pub(crate) fn new() -> io::Result<Self> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
    }

    /// Completes at the next of the two signals.
    pub(crate) async fn next(&mut self) -> Interruption {
        tokio::select! {
            _ = self.interrupt.recv() => Interruption::Interrupt,
            _ = self.terminate.recv() => Interruption::Terminate,
        }
    }
}

impl Interruption {
    /// What shells report for a process that the signal has ended.
    pub(crate) fn exit_code(self) -> ExitCode {
        let signal = match self {
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
        };
        ExitCode::from(128_u8.wrapping_add(signal.as_raw_value() as u8))
    }
}

/// Returns a future that completes at the first of the two signals. From this call on, neither signal ends the process by
/// itself.
pub(crate) fn interruption() -> io::Result<impl Future<Output = ()>> {
    let mut interruptions = Interruptions::new()?;
    Ok(async move {
        interruptions.next().await;
    })
}
