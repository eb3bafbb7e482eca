//! How the fixture process behaves, independently of which tool is called.

use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use super::output::{process_id, process_number, record};

/// How the fixture behaves: its first argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Each process announces different capabilities.
    ChangesItsCapabilities,
    /// Refuses every request until the handshake is complete, as strict servers do.
    DemandsHandshake,
    /// Starts a daemon that ignores signals, then serves.
    DoubleFork,
    /// Records that it was sent SIGHUP, and the content of `TOKEN_FILE` at that time.
    RecordsSighup,
    /// Every process after the first has one tool more.
    GainsATool,
    /// `GainsATool` and `ListsInPages` together.
    GainsAToolInPages,
    /// Exits before it reads anything.
    ExitsAtOnce,
    /// Never answers `tools/list`.
    HidesItsTools,
    /// Serves, and outlives SIGTERM and the end of its input.
    IgnoresTerm,
    /// The middle process of a double fork.
    Intermediate,
    /// Its tools are named and described with its secret.
    LeaksInList,
    /// Supports `initialize`, not `server/discover`.
    Legacy,
    /// One tool on each page of its list.
    ListsInPages,
    /// Reads, never writes.
    NeverAnswers,
    /// Neither reads nor writes.
    NeverReads,
    /// The daemon of a double fork.
    Orphan,
    /// Supports both `initialize` and `server/discover`.
    Plain,
    /// Writes string ids with `\u` escapes.
    EscapesIds,
    /// Supports `server/discover`, not `initialize`.
    Stateless,
    /// The second and third process exit before they read anything.
    SecondAndThirdExit,
    /// Every process after the first takes two seconds to begin.
    StartsSlowly,
    /// Writes garbage to stdout before it serves.
    StartsWithGarbage,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "changes-its-capabilities" => Self::ChangesItsCapabilities,
            "demands-handshake" => Self::DemandsHandshake,
            "double-fork" => Self::DoubleFork,
            "gains-a-tool" => Self::GainsATool,
            "gains-a-tool-in-pages" => Self::GainsAToolInPages,
            "exits-at-once" => Self::ExitsAtOnce,
            "records-sighup" => Self::RecordsSighup,
            "hides-its-tools" => Self::HidesItsTools,
            "escapes-ids" => Self::EscapesIds,
            "ignores-term" => Self::IgnoresTerm,
            "intermediate" => Self::Intermediate,
            "leaks-in-list" => Self::LeaksInList,
            "legacy" => Self::Legacy,
            "lists-in-pages" => Self::ListsInPages,
            "never-answers" => Self::NeverAnswers,
            "never-reads" => Self::NeverReads,
            "orphan" => Self::Orphan,
            // `stdio` is what many real servers are started with.
            "plain" | "stdio" => Self::Plain,
            "stateless" => Self::Stateless,
            "second-and-third-exit" => Self::SecondAndThirdExit,
            "starts-slowly" => Self::StartsSlowly,
            "starts-with-garbage" => Self::StartsWithGarbage,
            unknown => return Err(format!("unknown mode {unknown:?}")),
        })
    }
}

impl Mode {
    /// What the process does first; in some modes it exits after that.
    pub(crate) fn before_serving(self) -> Option<ExitCode> {
        match self {
            Self::DoubleFork => {
                if let Ok(mut middle) = start_self("intermediate") {
                    let _ = middle.wait();
                }
                None
            }
            Self::ExitsAtOnce => Some(ExitCode::from(3)),
            Self::IgnoresTerm => {
                block_termination_signals();
                None
            }
            Self::Intermediate => {
                let _ = start_self("orphan");
                Some(ExitCode::SUCCESS)
            }
            Self::NeverReads => {
                linger();
                Some(ExitCode::SUCCESS)
            }
            Self::Orphan => {
                block_termination_signals();
                let _ = nix::unistd::setsid();
                linger();
                Some(ExitCode::SUCCESS)
            }
            Self::RecordsSighup => {
                record_sighups();
                None
            }
            Self::SecondAndThirdExit => (2..=3).contains(&process_number()).then(|| ExitCode::from(3)),
            Self::StartsSlowly => {
                if process_number() > 1 {
                    std::thread::sleep(Duration::from_secs(2));
                }
                None
            }
            Self::StartsWithGarbage => {
                super::Output::new()
                    .bytes(b"starting up...\n\xff\xfe\n{\"half\": \n[1,2\n42\nnull\n\"text\"\n");
                None
            }
            Self::ChangesItsCapabilities
            | Self::DemandsHandshake
            | Self::GainsATool
            | Self::GainsAToolInPages
            | Self::HidesItsTools
            | Self::LeaksInList
            | Self::Legacy
            | Self::ListsInPages
            | Self::NeverAnswers
            | Self::Plain
            | Self::EscapesIds
            | Self::Stateless => None,
        }
    }

    pub(crate) fn after_the_end_of_input(self) {
        if self == Self::IgnoresTerm {
            linger();
        }
    }
}

/// Sleeps longer than any test, but not for ever, in case the test is killed.
fn linger() {
    std::thread::sleep(Duration::from_secs(300));
}

/// Blocks SIGHUP before any other thread is started, so that only the thread below receives it.
fn record_sighups() {
    let hangup = SigSet::from(Signal::SIGHUP);
    let _ = hangup.thread_block();
    std::thread::spawn(move || {
        while hangup.wait().is_ok() {
            let file = std::env::var("TOKEN_FILE").unwrap_or_default();
            let params = serde_json::json!({"found": std::fs::read_to_string(file).ok()});
            let received = serde_json::json!({"process": process_id(), "method": "SIGHUP", "params": params});
            record("RECEIVED_FILE", &format!("{received}\n"));
        }
    });
}

/// Blocked signals have the same effect as ignored ones here, and need no handler.
fn block_termination_signals() {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGPIPE, Signal::SIGTERM] {
        set.add(signal);
    }
    let _ = set.thread_block();
}

#[expect(
    clippy::disallowed_methods,
    reason = "the fixture starts a process itself, as a misbehaving server does"
)]
fn start_self(mode: &str) -> std::io::Result<std::process::Child> {
    let program = std::env::current_exe()?;
    Command::new(program).arg(mode).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
