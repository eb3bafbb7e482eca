//! The signals of a run: which end it, which are for the command, and how they get there.

use std::fs;
use std::io;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use tokio::signal::unix::{self, SignalKind, signal};

use super::kinds::SignalTarget;

/// Signals that this process has got. Once this exists, none of them ends the process by itself.
pub(super) struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    terminate: unix::Signal,
    window: unix::Signal,
}

/// A signal that is for the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Received {
    /// The command decides what it means: SIGINT, SIGQUIT.
    Passed(Signal),
    /// The command has to end: SIGTERM, SIGHUP.
    Ending(Signal),
    /// The size of the terminal's window changed.
    Window,
}

/// More processes than this inside are not looked through; groups are few.
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

    /// The next signal. Cancel-safe.
    pub(super) async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.hangup.recv() => Received::Ending(Signal::SIGHUP),
            _ = self.interrupt.recv() => Received::Passed(Signal::SIGINT),
            _ = self.quit.recv() => Received::Passed(Signal::SIGQUIT),
            _ = self.terminate.recv() => Received::Ending(Signal::SIGTERM),
            _ = self.window.recv() => Received::Window,
        }
    }

    /// The next signal that ends a run before its command has started. Cancel-safe.
    pub(super) async fn interruption(&mut self) -> Signal {
        loop {
            if let Received::Passed(signal) | Received::Ending(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// Whether there was a process to take a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Delivery {
    Done,
    /// The command has not started yet.
    TooEarly,
}

/// Sends a signal to what runs in the sandbox. `program` is the sandbox's program, a child of this process that was not
/// waited for, so its id is its own.
pub(super) fn send(target: SignalTarget, program: u32, signal: Signal) -> Delivery {
    let Ok(program) = i32::try_from(program).map(Pid::from_raw) else { return Delivery::Done };
    match target {
        SignalTarget::Program => {
            // It may have exited already.
            let _ = kill(program, signal);
            Delivery::Done
        }
        SignalTarget::GroupsInside => {
            let groups = groups_inside(program);
            for group in &groups {
                let _ = killpg(*group, signal);
            }
            if groups.is_empty() { Delivery::TooEarly } else { Delivery::Done }
        }
    }
}

/// The process groups of the command and its descendants. The program's child is the first process of the sandbox, to which
/// most signals mean nothing; the command is below it.
fn groups_inside(program: Pid) -> Vec<Pid> {
    let own = getpgid(Some(program)).ok();
    let mut processes: Vec<Pid> = children_of(program).into_iter().flat_map(children_of).collect();
    let mut groups = Vec::new();
    let mut index = 0;
    while let Some(process) = processes.get(index).copied()
        && processes.len() < MAX_PROCESSES
    {
        index += 1;
        if let Ok(group) = getpgid(Some(process))
            && Some(group) != own
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
