//! Runs the sandbox's program until it exits: at a new pseudo-terminal whose bytes are copied to and from the user's terminal,
//! or with the stdio of this process.
//!
//! What must stay true: the mode of the user's terminal is restored however the program exits; output is read even while the
//! program does not read its input.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitStatus, Stdio as ProcessStdio};
use std::time::Duration;

use cofferdam_process::{Pty, RawMode, Window};
use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::kinds::{CommandLine, SignalTarget, Stdio};
use super::signals::{Delivery, ReceivedSignal, Signals, send};

/// How the sandbox's program ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramEnd {
    pub(super) status: ExitStatus,
    /// Whether a signal was sent to the program, or it was killed because it did not exit in time. It may not have cleaned up.
    pub(super) signalled: bool,
}

/// How long a command has to exit after SIGTERM or SIGHUP before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a signal that was received before the command had started is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(10);
/// How long output that is still in the terminal is read after the program has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const BUFFER_BYTES: usize = 16 * 1024;

/// Starts the program and waits until it exits.
pub(super) async fn run(
    command_line: &CommandLine,
    stdio: Stdio,
    target: SignalTarget,
    signals: &mut Signals,
) -> io::Result<ProgramEnd> {
    let mut command = command_line.command();
    match stdio {
        Stdio::Inherited => {
            if target == SignalTarget::GroupsInside {
                command.process_group(0);
            }
            let child = Command::from(command).kill_on_drop(true).spawn()?;
            Program { child, target, early: None, kill_at: None, signalled: false }.wait(signals).await
        }
        Stdio::Terminal => {
            let pty = Pty::open(Window::of(io::stdin())?)?;
            let stdio = || pty.inside.try_clone().map(ProcessStdio::from);
            command.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?).process_group(0);
            let child = Command::from(command).kill_on_drop(true).spawn()?;
            let Pty { host, inside } = pty;
            // The program has its own descriptors. While this one is open, reading its output would never reach the end.
            drop(inside);
            let _raw = RawMode::enter(io::stdin())?;
            let mut relay = TerminalRelay::start(host)?;
            Program { child, target, early: None, kill_at: None, signalled: false }
                .wait_at_terminal(&mut relay, signals)
                .await
        }
    }
}

/// The running program.
struct Program {
    child: Child,
    target: SignalTarget,
    /// A signal that was received before the command had started.
    early: Option<Signal>,
    kill_at: Option<Instant>,
    signalled: bool,
}

impl Program {
    async fn wait(mut self, signals: &mut Signals) -> io::Result<ProgramEnd> {
        let id = self.child.id();
        loop {
            tokio::select! {
                status = self.child.wait() => return Ok(ProgramEnd { status: status?, signalled: self.signalled }),
                received = signals.next() => self.forward(received),
                () = Self::resend_early(&mut self.early, self.target, id) => {}
                () = expired(self.kill_at) => return self.kill().await,
            }
        }
    }

    async fn wait_at_terminal(
        mut self,
        relay: &mut TerminalRelay,
        signals: &mut Signals,
    ) -> io::Result<ProgramEnd> {
        let mut hung_up = false;
        let id = self.child.id();
        loop {
            tokio::select! {
                status = self.child.wait() => {
                    relay.drain().await;
                    return Ok(ProgramEnd { status: status?, signalled: self.signalled });
                }
                received = signals.next() => {
                    if received == ReceivedSignal::WindowChange {
                        relay.resize();
                        // The kernel sends SIGWINCH only to the foreground process group, which may be another one.
                        if self.target == SignalTarget::Program && let Some(id) = self.child.id() {
                            send(self.target, id, Signal::SIGWINCH);
                        }
                    }
                    self.forward(received);
                }
                () = Self::resend_early(&mut self.early, self.target, id) => {}
                () = expired(self.kill_at) => return self.kill().await,
                _ = &mut relay.gone, if !hung_up => {
                    hung_up = true;
                    self.forward(ReceivedSignal::Terminate(Signal::SIGHUP));
                }
            }
        }
    }

    fn forward(&mut self, received: ReceivedSignal) {
        let Some(id) = self.child.id() else { return };
        let signal = match received {
            ReceivedSignal::Forward(signal) => signal,
            ReceivedSignal::Terminate(signal) => {
                self.kill_at.get_or_insert(Instant::now() + END_TIMEOUT);
                signal
            }
            ReceivedSignal::WindowChange => return,
        };
        self.signalled = true;
        self.early = (send(self.target, id, signal) == Delivery::TooEarly).then_some(signal);
    }

    /// Sends the signal of `early` again until there is a process that gets it. Never returns. Cancel-safe.
    async fn resend_early(early: &mut Option<Signal>, target: SignalTarget, id: Option<u32>) {
        while let (Some(signal), Some(id)) = (*early, id) {
            sleep(RESEND_INTERVAL).await;
            if send(target, id, signal) == Delivery::Sent {
                *early = None;
            }
        }
        std::future::pending().await
    }

    async fn kill(mut self) -> io::Result<ProgramEnd> {
        self.child.start_kill()?;
        Ok(ProgramEnd { status: self.child.wait().await?, signalled: true })
    }
}

async fn expired(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Copies bytes between the user's terminal and that of the sandbox, in a thread for each direction, so that neither blocks
/// the other. The threads end when a terminal is closed; the one that reads from the user's may block until this process
/// exits.
struct TerminalRelay {
    host: File,
    /// Completes when all output was written to the user's terminal.
    shown: oneshot::Receiver<()>,
    /// Completes when one of the terminals cannot be read or written any more.
    gone: oneshot::Receiver<()>,
}

impl TerminalRelay {
    fn start(host: OwnedFd) -> io::Result<Self> {
        let host = File::from(host);
        let (finished, shown) = oneshot::channel();
        let (from_sandbox, to_user) = (host.try_clone()?, io::stdout().as_fd().try_clone_to_owned()?);
        spawn_thread("terminal-output", move || {
            copy(from_sandbox, File::from(to_user));
            let _ = finished.send(());
        })?;
        let (lost, gone) = oneshot::channel();
        let (from_user, to_sandbox) = (io::stdin().as_fd().try_clone_to_owned()?, host.try_clone()?);
        spawn_thread("terminal-input", move || {
            copy(File::from(from_user), to_sandbox);
            let _ = lost.send(());
        })?;
        Ok(Self { host, shown, gone })
    }

    /// Waits until all output of the program was written to the user's terminal.
    async fn drain(&mut self) {
        // The wait is limited, because processes that outlive the program may keep the terminal open.
        let _ = timeout(DRAIN_TIMEOUT, &mut self.shown).await;
    }

    fn resize(&self) {
        if let Ok(window) = Window::of(io::stdin()) {
            // An error is ignored: the terminal may be closed already.
            let _ = window.apply(&self.host);
        }
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Copies until one of the two is closed. Reading a terminal whose other end is closed fails.
fn copy(mut from: File, mut to: File) {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) if to.write_all(&buffer[..length]).is_err() => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
