//! Runs the sandbox's program to its end: at a terminal of its own whose bytes are carried to and from the user's, or on the
//! stdio of this process.
//!
//! What must stay true: the user's terminal has its mode back however the program ends; the program never waits for output
//! that is not read because input is not taken.

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
use super::signals::{Delivery, Received, Signals, send};

/// How the sandbox's program ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramEnd {
    pub(super) status: ExitStatus,
    /// It was sent a signal, or was killed because it did not end in time. It may have ended before it had cleaned up.
    pub(super) signalled: bool,
}

/// For a command to end after SIGTERM or SIGHUP; then it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Between attempts to pass on a signal that came before the command had started.
const EARLY_PAUSE: Duration = Duration::from_millis(10);
/// For what is still in the terminal when the program has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const BUFFER_BYTES: usize = 16 * 1024;

/// Starts the program and waits for its end.
pub(super) async fn run(
    line: &CommandLine,
    stdio: Stdio,
    target: SignalTarget,
    signals: &mut Signals,
) -> io::Result<ProgramEnd> {
    let mut command = line.command();
    match stdio {
        Stdio::Pipes => {
            if target == SignalTarget::GroupsInside {
                command.process_group(0);
            }
            let child = Command::from(command).kill_on_drop(true).spawn()?;
            Program { child, target, early: None, kill_at: None, signalled: false }.wait(signals).await
        }
        Stdio::Terminal => {
            let pty = Pty::open(Window::of(io::stdin())?)?;
            let end = || pty.inside.try_clone().map(ProcessStdio::from);
            command.stdin(end()?).stdout(end()?).stderr(end()?).process_group(0);
            let child = Command::from(command).kill_on_drop(true).spawn()?;
            let Pty { host, inside } = pty;
            // The program has its own; with this one open the end of its output would not be seen.
            drop(inside);
            let _raw = RawMode::enter(io::stdin())?;
            let mut relay = Relay::start(host)?;
            Program { child, target, early: None, kill_at: None, signalled: false }
                .wait_at(&mut relay, signals)
                .await
        }
    }
}

/// The running program.
struct Program {
    child: Child,
    target: SignalTarget,
    /// A signal that came before the command had started.
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
                received = signals.next() => self.pass(received),
                () = Self::pass_early(&mut self.early, self.target, id) => {}
                () = expired(self.kill_at) => return self.kill().await,
            }
        }
    }

    async fn wait_at(mut self, relay: &mut Relay, signals: &mut Signals) -> io::Result<ProgramEnd> {
        let mut hung_up = false;
        let id = self.child.id();
        loop {
            tokio::select! {
                status = self.child.wait() => {
                    relay.drain().await;
                    return Ok(ProgramEnd { status: status?, signalled: self.signalled });
                }
                received = signals.next() => {
                    if received == Received::Window {
                        relay.resize();
                        // Programs that are not of the terminal's session are not told by the kernel.
                        if self.target == SignalTarget::Program && let Some(id) = self.child.id() {
                            send(self.target, id, Signal::SIGWINCH);
                        }
                    }
                    self.pass(received);
                }
                () = Self::pass_early(&mut self.early, self.target, id) => {}
                () = expired(self.kill_at) => return self.kill().await,
                _ = &mut relay.gone, if !hung_up => {
                    hung_up = true;
                    self.pass(Received::Ending(Signal::SIGHUP));
                }
            }
        }
    }

    fn pass(&mut self, received: Received) {
        let Some(id) = self.child.id() else { return };
        let signal = match received {
            Received::Passed(signal) => signal,
            Received::Ending(signal) => {
                self.kill_at.get_or_insert(Instant::now() + END_TIMEOUT);
                signal
            }
            Received::Window => return,
        };
        self.signalled = true;
        self.early = (send(self.target, id, signal) == Delivery::TooEarly).then_some(signal);
    }

    /// Sends a signal again that came too early. Never returns. Cancel-safe.
    async fn pass_early(early: &mut Option<Signal>, target: SignalTarget, id: Option<u32>) {
        while let (Some(signal), Some(id)) = (*early, id) {
            sleep(EARLY_PAUSE).await;
            if send(target, id, signal) == Delivery::Done {
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

/// Carries bytes between the user's terminal and that of the sandbox, by two threads that wait in the kernel: neither
/// direction holds up the other. They end with the terminals; the one that reads from the user's may wait until this
/// process ends.
struct Relay {
    host: File,
    /// Completes when all output was shown.
    shown: oneshot::Receiver<()>,
    /// Completes when the user's terminal is gone.
    gone: oneshot::Receiver<()>,
}

impl Relay {
    fn start(host: OwnedFd) -> io::Result<Self> {
        let host = File::from(host);
        let (finished, shown) = oneshot::channel();
        let (from_sandbox, to_user) = (host.try_clone()?, io::stdout().as_fd().try_clone_to_owned()?);
        thread("terminal-output", move || {
            copy(from_sandbox, File::from(to_user));
            let _ = finished.send(());
        })?;
        let (lost, gone) = oneshot::channel();
        let (from_user, to_sandbox) = (io::stdin().as_fd().try_clone_to_owned()?, host.try_clone()?);
        thread("terminal-input", move || {
            copy(File::from(from_user), to_sandbox);
            let _ = lost.send(());
        })?;
        Ok(Self { host, shown, gone })
    }

    /// Waits until what the program has written before its end is shown.
    async fn drain(&mut self) {
        // Processes that it left behind may keep the terminal open.
        let _ = timeout(DRAIN_TIMEOUT, &mut self.shown).await;
    }

    fn resize(&self) {
        if let Ok(window) = Window::of(io::stdin()) {
            // A terminal that is gone has no size.
            let _ = window.apply(&self.host);
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Until one of them is closed. A terminal whose other end is closed fails to be read.
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
