//! The signals that `run` receives: which ones end the run, and how others are forwarded to the command.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use tokio::process::Command;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::kinds::{CommandLine, SignalTarget};

/// Receives the signals of this process. Once this exists, none of them terminates the process.
pub(super) struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    terminate: unix::Signal,
    window: unix::Signal,
}

/// A signal that was received, by what it means for the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReceivedSignal {
    /// SIGINT or SIGQUIT, which is forwarded; the command decides what to do.
    Forward(Signal),
    /// SIGTERM or SIGHUP, which is forwarded; the command must exit within a time limit.
    Terminate(Signal),
    /// SIGWINCH: the size of the terminal has changed.
    WindowChange,
}

/// How many processes in the sandbox are searched for their process groups at most.
const MAX_PROCESSES: usize = 4_096;

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            window: signal(SignalKind::window_change())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub(super) async fn next(&mut self) -> ReceivedSignal {
        tokio::select! {
            _ = self.hangup.recv() => ReceivedSignal::Terminate(Signal::SIGHUP),
            _ = self.interrupt.recv() => ReceivedSignal::Forward(Signal::SIGINT),
            _ = self.quit.recv() => ReceivedSignal::Forward(Signal::SIGQUIT),
            _ = self.terminate.recv() => ReceivedSignal::Terminate(Signal::SIGTERM),
            _ = self.window.recv() => ReceivedSignal::WindowChange,
        }
    }

    /// Waits for a signal that interrupts a run before its command has started. Cancel-safe.
    pub(super) async fn interruption(&mut self) -> Signal {
        loop {
            if let ReceivedSignal::Forward(signal) | ReceivedSignal::Terminate(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// Whether there was a process to send the signal to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Delivery {
    Sent,
    /// The command has not started yet.
    TooEarly,
}

/// The signals that have to be sent to the command in a sandbox, in order.
#[derive(Debug)]
pub(super) struct SignalQueue<'a> {
    target: &'a SignalTarget,
    /// The process id of the sandbox's program, a child of this process that was not waited for, so the id cannot belong to
    /// another process.
    program: Option<u32>,
    unsent: VecDeque<Signal>,
    /// The command that sends the first signal of `unsent`. It is a task, so that a signal is not sent twice.
    sending: JoinSet<Delivery>,
}

/// More signals are dropped: the command has not even started.
const MAX_UNSENT: usize = 16;
/// The interval at which a signal that was received before the command had started is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(10);
/// For the command that sends a signal.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

impl<'a> SignalQueue<'a> {
    pub(super) fn new(target: &'a SignalTarget, program: Option<u32>) -> Self {
        Self { target, program, unsent: VecDeque::new(), sending: JoinSet::new() }
    }

    /// Sends a signal, at once if that is possible.
    pub(super) fn send(&mut self, signal: Signal) {
        if self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back(signal);
        }
        if self.unsent.len() == 1 && !matches!(self.target, SignalTarget::Command(_)) {
            self.send_first();
        }
    }

    /// Sends the signals that could not be sent at once. Never returns. Cancel-safe.
    pub(super) async fn send_remaining(&mut self) {
        while let Some(signal) = self.unsent.front().copied() {
            if let SignalTarget::Command(line) = self.target {
                if self.sending.is_empty() {
                    self.sending.spawn(send_by(line.clone(), signal));
                }
                let delivery = self.sending.join_next().await;
                if !matches!(delivery, Some(Ok(Delivery::TooEarly))) {
                    self.unsent.pop_front();
                    continue;
                }
                sleep(RESEND_INTERVAL).await;
            } else {
                sleep(RESEND_INTERVAL).await;
                self.send_first();
            }
        }
        std::future::pending().await
    }

    fn send_first(&mut self) {
        let (Some(signal), Some(program)) = (self.unsent.front().copied(), self.program) else { return };
        let Ok(program) = i32::try_from(program).map(Pid::from_raw) else { return };
        let is_sent = match self.target {
            SignalTarget::Program => {
                // An error is ignored: the program may have exited already.
                let _ = kill(program, signal);
                true
            }
            SignalTarget::GroupsInside => {
                let groups = groups_inside(program);
                for group in &groups {
                    let _ = killpg(*group, signal);
                }
                !groups.is_empty()
            }
            SignalTarget::Command(_) => false,
        };
        if is_sent {
            self.unsent.pop_front();
        }
    }
}

/// Sends a signal with a command, which fails if the sandbox's command has not started.
async fn send_by(mut line: CommandLine, signal: Signal) -> Delivery {
    line.arguments.push(signal.as_str().into());
    let mut command = line.command();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let status = timeout(SEND_TIMEOUT, Command::from(command).kill_on_drop(true).status()).await;
    match status.is_ok_and(|status| status.is_ok_and(|status| status.success())) {
        true => Delivery::Sent,
        false => Delivery::TooEarly,
    }
}

/// The process groups of the command and its descendants. The first process of the sandbox's PID namespace ignores most
/// signals, so a group counts only if it has another process.
fn groups_inside(program: Pid) -> Vec<Pid> {
    let program_group = getpgid(Some(program)).ok();
    let program_ids = ids_of(program).len();
    let mut processes: Vec<Pid> = children_of(program);
    let mut groups = Vec::new();
    let mut index = 0;
    while let Some(process) = processes.get(index).copied()
        && processes.len() < MAX_PROCESSES
    {
        index += 1;
        let ids = ids_of(process);
        let is_inside = ids.len() > program_ids && ids.last().is_some_and(|id| id != "1");
        if let Ok(group) = getpgid(Some(process))
            && is_inside
            && Some(group) != program_group
            && !groups.contains(&group)
        {
            groups.push(group);
        }
        processes.extend(children_of(process));
    }
    groups
}

/// The ids of a process in this and in every inner PID namespace.
fn ids_of(process: Pid) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    ids.split_whitespace().map(str::to_owned).collect()
}

fn children_of(process: Pid) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| Some(Pid::from_raw(id.parse().ok()?))).collect()
}
