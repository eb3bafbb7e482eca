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

/// Sends a signal to what runs in the sandbox. `program` is the sandbox's program, a child of this process that was not
/// waited for, so its id is its own.
pub(super) fn send(target: SignalTarget, program: u32, signal: Signal) {
    let Ok(program) = i32::try_from(program).map(Pid::from_raw) else { return };
    match target {
        SignalTarget::Program => {
            // It may have exited already.
            let _ = kill(program, signal);
        }
        SignalTarget::GroupsInside => {
            for group in groups_below(program) {
                let _ = killpg(group, signal);
            }
        }
    }
}

/// The process groups of the program's descendants, without its own.
fn groups_below(program: Pid) -> Vec<Pid> {
    let own = getpgid(Some(program)).ok();
    let mut groups = Vec::new();
    let mut processes = vec![program];
    let mut index = 0;
    while let Some(process) = processes.get(index).copied()
        && processes.len() < MAX_PROCESSES
    {
        index += 1;
        let children =
            fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| Some(Pid::from_raw(id.parse().ok()?)));
        for child in children {
            processes.push(child);
            if let Ok(group) = getpgid(Some(child))
                && Some(group) != own
                && !groups.contains(&group)
            {
                groups.push(group);
            }
        }
    }
    groups
}
