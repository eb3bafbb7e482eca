//! The pipe to a hub: the hub's stdout arrives as events of its process, and its stdin is sent as an input stream.
//!
//! What must stay true: one task owns both streams and ends them together, because a byte that is lost in one of them
//! breaks the pipe; when the pipe is dropped, the hub is ended. Nothing is sent to a sandbox that may be paused, because any
//! request resumes some sandboxes. So after a disconnect the hub is not ended; the start of the next hub kills it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_net::BodySender;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::control::Control;
use super::envd::{Envd, EventStream, describe_end, timed_out};
use super::messages::{
    ProcessConfig, ProcessEvent, Selector, Signal, StartRequest, input_data, input_keep_alive, input_start,
};
use crate::guest::Guest as _;
use crate::{Pipe, PlatformError, SandboxId, SandboxState};

const START: &str = "start the hub in the sandbox";
const CARRY: &str = "transfer data to and from the hub";
const END: &str = "end the hub in the sandbox";
/// For the hub's first byte. The hub sends it at once, but may first wait two seconds for its predecessor to exit.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(20);
/// The most input in one message; a multiple of three, so that base64 needs no padding.
const PIECE_BYTES: usize = 48 * 1024;
/// The size of the buffer in each direction.
const BUFFER_BYTES: usize = 256 * 1024;
/// For the last bytes to reach the hub after the pipe was closed. With twice `EXIT_TIMEOUT`, as long as the sidecar waits for
/// a client to finish.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(1500);
/// For a hub to exit after the end of its input, and again after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// How much of the end of stderr is stored for an error.
const MAX_STDERR: usize = 4096;

/// A hub to start, and what is needed to end it.
pub(super) struct Hub {
    pub(super) control: Arc<Control>,
    pub(super) envd: Arc<Envd>,
    pub(super) sandbox: SandboxId,
    /// The path of the shim in the sandbox.
    pub(super) shim: String,
    pub(super) pin: String,
    /// The interval at which both sides send a keep-alive; if none arrives for three intervals, the pipe ends.
    pub(super) keep_alive: Duration,
}

/// How a pipe ended.
enum PipeEnd {
    /// The pipe was dropped. The result says whether the hub was ended.
    Closed(Result<(), PlatformError>),
    /// The platform or the sandbox closed a stream. The hub may still run.
    Broken(PlatformError),
    /// The hub exited, or the pipe could not be opened.
    Exited,
}

/// Gets one message: the pipe is open, or why it could not be opened.
type OpenResultSender = oneshot::Sender<Result<(), PlatformError>>;

impl Hub {
    /// Starts the hub and waits for its first byte. If the future is dropped, the hub is ended.
    pub(super) async fn open(self, tasks: &TaskTracker) -> Result<Pipe, PlatformError> {
        let (near, far) = duplex(BUFFER_BYTES);
        let (opened, result) = oneshot::channel();
        tasks.spawn(self.run(far, opened));
        match timeout(FIRST_BYTE_TIMEOUT, result).await {
            Ok(Ok(Ok(()))) => Ok(Box::new(near)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) | Err(_) => Err(timed_out(START, FIRST_BYTE_TIMEOUT)),
        }
    }

    async fn run(self, far: DuplexStream, opened: OpenResultSender) {
        let tag = self.tag();
        // A predecessor has lost its connection, but would hold the sandbox's relay socket until it detects that.
        let started = match self.envd.signal(START, Selector::Tag(&tag), Signal::Kill).await {
            Ok(()) => self.start(&tag).await,
            Err(error) => Err(error),
        };
        match started {
            Err(error) => report(opened, Err(error)),
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

    /// The tag of the process of this sidecar's hub in the sandbox.
    fn tag(&self) -> String {
        format!("cofferdam-hub:{}", self.pin)
    }

    async fn start(&self, tag: &str) -> Result<(u32, EventStream), PlatformError> {
        let process = ProcessConfig { cmd: &self.shim, args: vec!["hub", "--pin", &self.pin] };
        let start = StartRequest { process, tag: Some(tag), stdin: true };
        let mut events = self.envd.start(START, &start, self.keep_alive).await?;
        loop {
            let event = timeout(FIRST_BYTE_TIMEOUT, events.next()).await;
            match event.unwrap_or_else(|_| Err(timed_out(START, FIRST_BYTE_TIMEOUT)))? {
                ProcessEvent::Started(pid) => return Ok((pid, events)),
                ProcessEvent::KeepAlive => {}
                ProcessEvent::Ended(_) | ProcessEvent::Stderr(_) | ProcessEvent::Stdout(_) => {
                    let why = "the process's first event is not its start".to_owned();
                    return Err(PlatformError::Protocol { action: START, why });
                }
            }
        }
    }

    async fn carry(
        &self,
        pid: u32,
        events: EventStream,
        far: DuplexStream,
        opened: OpenResultSender,
    ) -> PipeEnd {
        let (reader, writer) = split(far);
        let (input, response) = self.envd.stream_input(CARRY);
        let mut down = std::pin::pin!(self.carry_output(events, writer, opened));
        let mut up = std::pin::pin!(carry_input(pid, reader, input, self.keep_alive));
        let mut input_end = std::pin::pin!(async {
            match response.await {
                Ok(response) => self.envd.input_end(CARRY, response).await,
                Err(error) => error,
            }
        });
        tokio::select! {
            end = &mut down => return end,
            error = &mut input_end => return PipeEnd::Broken(error),
            () = &mut up => {}
        }
        // The pipe was closed. The response to the input stream arrives when the hub has got its last bytes.
        tokio::select! {
            end = &mut down => return end,
            _ = timeout(FLUSH_TIMEOUT, input_end) => {}
        }
        PipeEnd::Closed(self.end(pid, down).await)
    }

    /// Copies from the hub to the pipe, until the hub exits or its events end.
    async fn carry_output(
        &self,
        mut events: EventStream,
        mut writer: impl AsyncWrite + Unpin,
        opened: OpenResultSender,
    ) -> PipeEnd {
        let silence = 3 * self.keep_alive;
        let mut opened = Some(opened);
        let mut stderr = Vec::new();
        loop {
            match timeout(silence, events.next()).await.unwrap_or_else(|_| Err(timed_out(CARRY, silence))) {
                Ok(ProcessEvent::Stdout(bytes)) => {
                    if let Some(opened) = opened.take() {
                        report(opened, Ok(()));
                    }
                    // An error means that the pipe was closed; then `carry_input` ends too, after it has sent the last bytes.
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
                        report(opened, Err(PlatformError::Sandbox { action: START, why }));
                    }
                    return PipeEnd::Exited;
                }
                Ok(ProcessEvent::KeepAlive | ProcessEvent::Started(_)) => {}
                Err(error) => {
                    let Some(opened) = opened.take() else { return PipeEnd::Broken(error) };
                    report(opened, Err(error));
                    return PipeEnd::Exited;
                }
            }
        }
    }

    /// Ends the hub by closing its stdin, or else by signals. Does nothing if the sandbox is suspended.
    async fn end(
        &self,
        pid: u32,
        mut events: Pin<&mut impl Future<Output = PipeEnd>>,
    ) -> Result<(), PlatformError> {
        if matches!(self.control.find(&self.sandbox).await?.state, SandboxState::Suspended(_)) {
            return Ok(());
        }
        let mut exited = std::pin::pin!(async {
            match events.as_mut().await {
                PipeEnd::Exited => {}
                PipeEnd::Broken(_) | PipeEnd::Closed(_) => std::future::pending().await,
            }
        });
        let process = Selector::Pid(pid);
        // `envd` before 0.5.2 does not have this request; then a signal follows.
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

/// Copies from the pipe to the hub, and returns when the pipe is closed. Never returns if the request has ended.
async fn carry_input(pid: u32, mut reader: impl AsyncRead + Unpin, input: BodySender, keep_alive: Duration) {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut next = input_start(Selector::Pid(pid));
    while input.send_data(next).await.is_ok() {
        next = match timeout(keep_alive, reader.read(&mut buffer)).await {
            Err(_) => input_keep_alive(),
            Ok(Ok(count)) if count > 0 => input_data(buffer.get(..count).unwrap_or_default()),
            Ok(_) => return,
        };
    }
    // The request has ended; the error is in its response.
    std::future::pending().await
}

/// Removes whole lines at the start until at most `limit` bytes are left: a part of a line could begin inside a secret, which
/// would then not be found.
fn keep_last_lines(text: &mut Vec<u8>, limit: usize) {
    if let Some(excess) = text.len().checked_sub(limit + 1) {
        let end_of_line = text.iter().skip(excess).position(|byte| *byte == b'\n');
        text.drain(..end_of_line.map_or(text.len(), |position| excess + position + 1));
    }
}

fn report(opened: OpenResultSender, result: Result<(), PlatformError>) {
    // The caller may have stopped waiting.
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
