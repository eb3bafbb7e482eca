//! A conversation with a server, through a relay in this process.
//!
//! What must stay true: the relay has sent Goodbye before [`with_server`] returns, also after a signal; otherwise the
//! sidecar would keep the link and its server process for the grace period.

use std::io;
use std::time::Duration;

use relay_proto::name::Name;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::conversation::Conversation;
use crate::failure::Failure;
use crate::options::Options;
use crate::relay_loop;
use crate::stderr_log::StderrLog;
use crate::stdio::Stdio;
use crate::timing::Timing;

/// The signals that end a command.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal and returns its number.
    async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        kind.as_raw_value()
    }
}

/// How long a command waits for a sidecar: long enough for a hub that reconnects, short enough for a script.
const SIDECAR_WAIT: Duration = Duration::from_secs(10);

/// Opens a link to `server` (`None`: the only granted server), does the handshake, and runs `task`.
pub(super) async fn with_server<T>(
    options: &Options,
    server: Option<Name>,
    signals: &mut Signals,
    task: impl AsyncFnOnce(&mut Conversation) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failed = |error: io::Error| Failure::unavailable(&format!("create a pipe: {error}"));
    let (relay_input, to_relay) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let (from_relay, relay_output) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut conversation = Conversation::new(
        Stdio::output(to_relay).map_err(failed)?,
        Stdio::input(from_relay).map_err(failed)?,
    );
    let (input, output) =
        (Stdio::input(relay_input).map_err(failed)?, Stdio::output(relay_output).map_err(failed)?);
    let options = Options { server, ..options.clone() };
    let timing = Timing { handshake_wait: SIDECAR_WAIT, ..Timing::default() };
    let mut interrupted = None;
    let stop = async { interrupted = Some(signals.next().await) };
    // The log is silent because the relay's error responses contain the reason of a failure.
    let relay = relay_loop::run(options, timing, input, output, stop, StderrLog::silent());
    let outcome = async move {
        conversation.open().await?;
        task(&mut conversation).await
    };
    let (relayed, outcome) = tokio::join!(relay, outcome);
    match interrupted {
        Some(signal) => Err(Failure::interrupted(signal)),
        None => {
            relayed.map_err(|error| Failure::unavailable(&format!("start the relay: {error}")))?;
            outcome
        }
    }
}
