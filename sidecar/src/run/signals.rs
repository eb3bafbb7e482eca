//! The signals that `run` receives: which ones end the run, and how others are forwarded to the command.

use std::fs;
use std::io;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use tokio::signal::unix::{self, SignalKind, signal};

use super::kinds::SignalTarget;

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
pub(super) enum Delivery {
    Sent,
    /// The command has not started yet.
    TooEarly,
}

/// Sends a signal to the command in the sandbox. `program` is the process id of the sandbox's program, a child of this process
/// that was not waited for, so the id cannot belong to another process.
pub(super) fn send(target: SignalTarget, program: u32, signal: Signal) -> Delivery {
    let Ok(program) = i32::try_from(program).map(Pid::from_raw) else { return Delivery::Sent };
    match target {
        SignalTarget::Program => {
            // An error is ignored: the program may have exited already.
            let _ = kill(program, signal);
            Delivery::Sent
        }
        SignalTarget::GroupsInside => {
            let groups = groups_inside(program);
            for group in &groups {
                let _ = killpg(*group, signal);
            }
            if groups.is_empty() { Delivery::TooEarly } else { Delivery::Sent }
        }
    }
}

/// The process groups of the command and its descendants. The child of the sandbox's program is process 1 of the sandbox, which
/// ignores most signals; the command is a child of that process.
fn groups_inside(program: Pid) -> Vec<Pid> {
    let program_group = getpgid(Some(program)).ok();
    let mut processes: Vec<Pid> = children_of(program).into_iter().flat_map(children_of).collect();
    let mut groups = Vec::new();
    let mut index = 0;
    while let Some(process) = processes.get(index).copied()
        && processes.len() < MAX_PROCESSES
    {
        index += 1;
        if let Ok(group) = getpgid(Some(process))
            && Some(group) != program_group
            && !groups.contains(&group)
        {
            groups.push(group);
        }
        processes.extend(children_of(process));
    }
    groups
}

fn children_of(process: Pid) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| Some(Pid::from_raw(id.parse().ok()?))).collect()
}
