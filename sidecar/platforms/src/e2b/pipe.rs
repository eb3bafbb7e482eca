//! The pipe to a hub: its stdout comes as the events of its process, its stdin goes as an input stream.
//!
//! What must stay true: one task owns both streams and ends them together, because a byte that is lost in one of them
//! breaks the pipe; when the pipe is dropped, the hub is ended. Nothing is sent to a sandbox that may be paused: on some of
//! them any request wakes it. So after a cut the hub is left alone, and ended by the next one's start.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_net::BodySender;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::control::Control;
use super::envd::{Envd, EventStream, describe_end, late};
use super::messages::{
    ProcessConfig, ProcessEvent, Selector, Signal, StartRequest, input_data, input_keep_alive, input_start,
};
use crate::guest::Guest as _;
use crate::{Pipe, PlatformError, SandboxId, SandboxState};

const START: &str = "start the hub in the sandbox";
const CARRY: &str = "carry the pipe to the hub";
const END: &str = "end the hub in the sandbox";
/// Until the hub's first byte, which it sends at once; a hub may wait two seconds for its predecessor.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(20);
/// What travels in one message; a multiple of three, so that base64 needs no padding.
const PIECE: usize = 48 * 1024;
/// Bytes in each direction that wait for the other side.
const BUFFER: usize = 256 * 1024;
/// For the last bytes to reach the hub, once the pipe is closed.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// For a hub to exit after the end of its input, and again after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Of stderr that is kept for an error.
const MAX_STDERR: usize = 4096;

/// A hub to start, and what is needed to end it.
pub(super) struct Hub {
    pub(super) control: Arc<Control>,
    pub(super) envd: Envd,
    pub(super) sandbox: SandboxId,
    /// The path of the shim in the sandbox.
    pub(super) shim: String,
    pub(super) pin: String,
    /// How often the platform is to send a sign of life; without one for three times as long, the pipe ends.
    pub(super) keep_alive: Duration,
}

/// How a pipe ended.
enum PipeEnd {
    /// This side closed it, and the hub was ended if that was possible.
    Closed(Result<(), PlatformError>),
    /// The platform or the sandbox ended it. The hub may still run.
    Broken(PlatformError),
    /// The hub ended.
    Exited,
}

/// Told once: the pipe works, or why not.
type Opened = oneshot::Sender<Result<(), PlatformError>>;

impl Hub {
    /// Starts the hub and waits for its first byte. If the future is dropped, the hub is ended.
    pub(super) async fn open(self, tasks: &TaskTracker) -> Result<Pipe, PlatformError> {
        let (near, far) = duplex(BUFFER);
        let (opened, result) = oneshot::channel();
        tasks.spawn(self.run(far, opened));
        match timeout(FIRST_BYTE_TIMEOUT, result).await {
            Ok(Ok(Ok(()))) => Ok(Box::new(near)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) | Err(_) => Err(late(START, FIRST_BYTE_TIMEOUT)),
        }
    }

    async fn run(self, far: DuplexStream, opened: Opened) {
        let tag = self.tag();
        // A predecessor has lost its client and would keep the sandbox's relay socket until it notices.
        let started = match self.envd.signal(START, Selector::Tag(&tag), Signal::Kill).await {
            Ok(()) => self.start(&tag).await,
            Err(error) => Err(error),
        };
        match started {
            Err(error) => tell(opened, Err(error)),
            Ok((pid, events)) => match self.carry(pid, events, far, opened).await {
                PipeEnd::Closed(Ok(())) | PipeEnd::Exited => {}
                PipeEnd::Closed(Err(error)) => {
                    tracing::warn!(sandbox = %self.sandbox, %error, "the hub may still run in the sandbox");
                }
                PipeEnd::Broken(error) => {
                    tracing::debug!(sandbox = %self.sandbox, %error, "the pipe to the hub broke");
                }
            },
        }
    }

    /// Names this sidecar's hub in the sandbox.
    fn tag(&self) -> String {
        format!("cofferdam-hub:{}", self.pin)
    }

    async fn start(&self, tag: &str) -> Result<(u32, EventStream), PlatformError> {
        let process = ProcessConfig { cmd: &self.shim, args: vec!["hub", "--pin", &self.pin] };
        let start = StartRequest { process, tag: Some(tag), stdin: true };
        let mut events = self.envd.start(START, &start, self.keep_alive).await?;
        loop {
            let event = timeout(FIRST_BYTE_TIMEOUT, events.next()).await;
            match event.unwrap_or_else(|_| Err(late(START, FIRST_BYTE_TIMEOUT)))? {
                ProcessEvent::Started(pid) => return Ok((pid, events)),
                ProcessEvent::KeepAlive => {}
                ProcessEvent::Ended(_) | ProcessEvent::Stderr(_) | ProcessEvent::Stdout(_) => {
                    let why = "the process's first event is not its start".to_owned();
                    return Err(PlatformError::Protocol { doing: START, why });
                }
            }
        }
    }

    async fn carry(&self, pid: u32, events: EventStream, far: DuplexStream, opened: Opened) -> PipeEnd {
        let (reader, writer) = split(far);
        let (input, response) = self.envd.stream_input(CARRY);
        let mut down = std::pin::pin!(self.carry_output(events, writer, opened));
        let mut up = std::pin::pin!(carry_input(pid, reader, input, self.keep_alive));
        let mut answer = std::pin::pin!(async {
            match response.await {
                Ok(response) => self.envd.input_end(CARRY, response).await,
                Err(error) => error,
            }
        });
        tokio::select! {
            end = &mut down => return end,
            error = &mut answer => return PipeEnd::Broken(error),
            () = &mut up => {}
        }
        // The pipe was closed. Its last bytes first: the end of the request is answered when the hub has them.
        tokio::select! {
            end = &mut down => return end,
            _ = timeout(FAREWELL_TIMEOUT, answer) => {}
        }
        PipeEnd::Closed(self.end(pid, down).await)
    }

    /// From the hub to the pipe, until the process or its events end.
    async fn carry_output(
        &self,
        mut events: EventStream,
        mut writer: impl AsyncWrite + Unpin,
        opened: Opened,
    ) -> PipeEnd {
        let silence = 3 * self.keep_alive;
        let mut opened = Some(opened);
        let mut stderr = Vec::new();
        loop {
            match timeout(silence, events.next()).await.unwrap_or_else(|_| Err(late(CARRY, silence))) {
                Ok(ProcessEvent::Stdout(bytes)) => {
                    if let Some(opened) = opened.take() {
                        tell(opened, Ok(()));
                    }
                    // If the pipe is closed, its input ends too, and is carried to its end first.
                    let _ = writer.write_all(&bytes).await;
                }
                Ok(ProcessEvent::Stderr(bytes)) => {
                    stderr.extend_from_slice(&bytes);
                    keep_last_lines(&mut stderr, MAX_STDERR);
                }
                Ok(ProcessEvent::Ended(end)) => {
                    let why = describe_end(&end, &stderr, self.envd.redactor());
                    tracing::debug!(sandbox = %self.sandbox, why, "the hub ended");
                    if let Some(opened) = opened.take() {
                        tell(opened, Err(PlatformError::Sandbox { doing: START, why }));
                    }
                    return PipeEnd::Exited;
                }
                Ok(ProcessEvent::KeepAlive | ProcessEvent::Started(_)) => {}
                Err(error) => {
                    let Some(opened) = opened.take() else { return PipeEnd::Broken(error) };
                    tell(opened, Err(error));
                    return PipeEnd::Exited;
                }
            }
        }
    }

    /// Ends the hub, unless the sandbox is suspended: by the end of its input, or else by signals.
    async fn end(
        &self,
        pid: u32,
        mut events: Pin<&mut impl Future<Output = PipeEnd>>,
    ) -> Result<(), PlatformError> {
        if self.control.find(&self.sandbox).await?.state == SandboxState::Suspended {
            return Ok(());
        }
        let mut exited = std::pin::pin!(async {
            match events.as_mut().await {
                PipeEnd::Exited => {}
                PipeEnd::Broken(_) | PipeEnd::Closed(_) => std::future::pending().await,
            }
        });
        let process = Selector::Pid(pid);
        // Versions of `envd` before 0.5.2 do not know it; a signal follows.
        let _ = self.envd.close_stdin(END, process).await;
        if timeout(EXIT_TIMEOUT, &mut exited).await.is_ok() {
            return Ok(());
        }
        self.envd.signal(END, process, Signal::Terminate).await?;
        if timeout(EXIT_TIMEOUT, exited).await.is_ok() {
            return Ok(());
        }
        self.envd.signal(END, process, Signal::Kill).await
    }
}

/// From the pipe to the hub, until the pipe ends or the request does.
async fn carry_input(
    pid: u32,
    mut reader: impl AsyncRead + Unpin,
    mut input: BodySender,
    keep_alive: Duration,
) {
    let mut buffer = vec![0; PIECE];
    let mut next = input_start(Selector::Pid(pid));
    while input.send_data(next).await.is_ok() {
        next = match timeout(keep_alive, reader.read(&mut buffer)).await {
            Err(_) => input_keep_alive(),
            Ok(Ok(count)) if count > 0 => input_data(buffer.get(..count).unwrap_or_default()),
            Ok(_) => return,
        };
    }
    // The request has ended; its response says why.
    std::future::pending().await
}

/// Drops whole lines at the start until at most `limit` bytes are left. The rest of a line that was cut could begin inside
/// a secret, which would not be found then.
fn keep_last_lines(text: &mut Vec<u8>, limit: usize) {
    if let Some(excess) = text.len().checked_sub(limit + 1) {
        let end_of_line = text.iter().skip(excess).position(|byte| *byte == b'\n');
        text.drain(..end_of_line.map_or(text.len(), |position| excess + position + 1));
    }
}

fn tell(opened: Opened, result: Result<(), PlatformError>) {
    // The caller may have given up.
    let _ = opened.send(result);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_messages_are_shortened_by_whole_lines() {
        let kept = |text: &str, limit| {
            let mut text = text.as_bytes().to_vec();
            keep_last_lines(&mut text, limit);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(kept("ab\ncd\n", 6), "ab\ncd\n");
        assert_eq!(kept("ab\ncd\n", 5), "cd\n");
        assert_eq!(kept("ab\ncd\n", 3), "cd\n");
        assert_eq!(kept("abcdefgh", 7), "");
    }
}
