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
use nix::sys::termios::{LocalFlags, SpecialCharacterIndices, tcgetattr};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::kinds::{Prepared, SignalTarget, StartCheck, Stdio};
use super::signals::{ReceivedSignal, SignalQueue, Signals};

/// How the sandbox's program ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramEnd {
    pub(super) status: ExitStatus,
    /// The first signal that was sent to the program. The program may not have cleaned up.
    pub(super) interruption: Option<Interruption>,
}

/// A signal that was sent to the sandbox's program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interruption {
    pub(super) signal: Signal,
    pub(super) container: ContainerState,
}

/// Whether podman or docker had created the container when a signal was sent to them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ContainerState {
    Created,
    NotCreated,
}

/// How long a command has to exit after SIGTERM or SIGHUP before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long output that is still in the terminal is read after the program has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const BUFFER_BYTES: usize = 16 * 1024;

/// Starts the program and waits until it exits.
pub(super) async fn run(prepared: &Prepared, stdio: Stdio, signals: &mut Signals) -> io::Result<ProgramEnd> {
    let mut command = prepared.command.command();
    match stdio {
        Stdio::Inherited => {
            // In a process group of its own, the sandbox's program does not get the signals of the terminal. They would end it
            // and the sandbox, so this run sends them to the processes inside the sandbox instead.
            if !matches!(prepared.signals, SignalTarget::Program) {
                command.process_group(0);
            }
            let child = Command::from(command).kill_on_drop(true).spawn()?;
            Program::new(child, prepared).wait(signals).await
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
            let keys = match prepared.signals {
                SignalTarget::Command(_) => SignalKeys::Recognised,
                SignalTarget::Program | SignalTarget::GroupsInside => SignalKeys::LeftToKernel,
            };
            let mut relay = TerminalRelay::start(host, keys)?;
            Program::new(child, prepared).wait_at_terminal(&mut relay, signals).await
        }
    }
}

/// The running program.
struct Program<'a> {
    child: Child,
    target: &'a SignalTarget,
    start_check: Option<&'a StartCheck>,
    signals: SignalQueue<'a>,
    kill_at: Option<Instant>,
    interruption: Option<Interruption>,
}

impl<'a> Program<'a> {
    fn new(child: Child, prepared: &'a Prepared) -> Self {
        let (target, start_check) = (&prepared.signals, prepared.start_check.as_ref());
        let signals = SignalQueue::new(target, child.id());
        Self { child, target, start_check, signals, kill_at: None, interruption: None }
    }

    async fn wait(mut self, signals: &mut Signals) -> io::Result<ProgramEnd> {
        loop {
            tokio::select! {
                status = self.child.wait() => return Ok(ProgramEnd { status: status?, interruption: self.interruption }),
                received = signals.next() => self.forward(received),
                () = self.signals.send_remaining() => {}
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
        loop {
            tokio::select! {
                status = self.child.wait() => {
                    relay.drain().await;
                    return Ok(ProgramEnd { status: status?, interruption: self.interruption });
                }
                received = signals.next() => {
                    if received == ReceivedSignal::WindowChange {
                        relay.resize();
                        // The kernel sends SIGWINCH only to the foreground process group, which may be another one.
                        if !matches!(self.target, SignalTarget::GroupsInside) {
                            self.signals.send(Signal::SIGWINCH);
                        }
                    }
                    self.forward(received);
                }
                Some(signal) = relay.keys.recv() => self.forward(ReceivedSignal::Forward(signal)),
                () = self.signals.send_remaining() => {}
                () = expired(self.kill_at) => return self.kill().await,
                _ = &mut relay.gone, if !hung_up => {
                    hung_up = true;
                    self.forward(ReceivedSignal::Terminate(Signal::SIGHUP));
                }
            }
        }
    }

    fn forward(&mut self, received: ReceivedSignal) {
        let signal = match received {
            ReceivedSignal::Forward(signal) => signal,
            ReceivedSignal::Terminate(signal) => {
                self.kill_at.get_or_insert(Instant::now() + END_TIMEOUT);
                signal
            }
            ReceivedSignal::WindowChange => return,
        };
        if self.interruption.is_none() {
            let is_created = self.start_check.is_none_or(|check| check.id_file.exists());
            let container = if is_created { ContainerState::Created } else { ContainerState::NotCreated };
            self.interruption = Some(Interruption { signal, container });
        }
        self.signals.send(signal);
    }

    async fn kill(mut self) -> io::Result<ProgramEnd> {
        self.child.start_kill()?;
        Ok(ProgramEnd { status: self.child.wait().await?, interruption: self.interruption })
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
    /// Completes when the user's terminal cannot be read any more, or the sandbox's terminal cannot be written.
    gone: oneshot::Receiver<()>,
    /// The signals of keys, if they are recognised here.
    keys: mpsc::Receiver<Signal>,
}

/// How keys such as Ctrl-C become signals.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SignalKeys {
    /// The sandbox's terminal is the controlling terminal of the command or of the sandbox's program.
    LeftToKernel,
    /// It is the controlling terminal of no process, so the run looks for the keys itself.
    Recognised,
}

/// Signals of keys that were not sent yet; further ones are dropped.
const MAX_KEYS: usize = 16;

impl TerminalRelay {
    fn start(host: OwnedFd, signal_keys: SignalKeys) -> io::Result<Self> {
        let host = File::from(host);
        let (finished, shown) = oneshot::channel();
        let (from_sandbox, to_user) = (host.try_clone()?, io::stdout().as_fd().try_clone_to_owned()?);
        spawn_thread("terminal-output", move || {
            copy(from_sandbox, File::from(to_user), |_, _| {});
            let _ = finished.send(());
        })?;
        let (lost, gone) = oneshot::channel();
        let (from_user, to_sandbox) = (io::stdin().as_fd().try_clone_to_owned()?, host.try_clone()?);
        let (pressed, keys) = mpsc::channel(MAX_KEYS);
        spawn_thread("terminal-input", move || {
            copy(File::from(from_user), to_sandbox, |bytes, terminal| {
                if signal_keys == SignalKeys::Recognised {
                    for signal in signals_of_keys(bytes, terminal) {
                        // The program does not take signals any more if this fails, or has many to take already.
                        let _ = pressed.try_send(signal);
                    }
                }
            });
            let _ = lost.send(());
        })?;
        Ok(Self { host, shown, gone, keys })
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

/// The signals that these bytes cause at a terminal in its present mode, as the kernel does for a controlling terminal.
fn signals_of_keys(bytes: &[u8], terminal: &File) -> Vec<Signal> {
    let Ok(mode) = tcgetattr(terminal) else { return Vec::new() };
    if !mode.local_flags.contains(LocalFlags::ISIG) {
        return Vec::new();
    }
    let keys =
        [(SpecialCharacterIndices::VINTR, Signal::SIGINT), (SpecialCharacterIndices::VQUIT, Signal::SIGQUIT)];
    let of_byte = |byte: &u8| {
        let key = keys.iter().find(|(key, _)| mode.control_chars[*key as usize] == *byte);
        key.map(|(_, signal)| *signal)
    };
    bytes.iter().filter_map(of_byte).take(MAX_KEYS).collect()
}

/// Copies until one of the two is closed. Reading a terminal whose other end is closed fails. `observe` gets what was copied,
/// and where to.
fn copy(mut from: File, mut to: File, observe: impl Fn(&[u8], &File)) {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) if to.write_all(&buffer[..length]).is_err() => return,
            Ok(length) => observe(&buffer[..length], &to),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
