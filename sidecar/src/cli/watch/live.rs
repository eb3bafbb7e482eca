//! The live view: threads that fetch what it shows, and the loop that draws.
//!
//! What must stay true: each request is complete before the next, and what cannot be shown is dropped, so that a terminal that is
//! not read, or a stopped process, costs the sidecar one connection at most and this program no growing memory; the view ends at
//! once when it is told to, also while the terminal takes no output.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use cofferdam_audit::{Follower, HumanRecord};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{event, style};
use ratatui::{Terminal, TerminalOptions, Viewport};
use tokio::time::Instant;

use super::guard::{self, TerminalGuard};
use super::model::{KEPT_DECISIONS, Model, Next, Sample, Update};
use super::screen;
use crate::cli::commands::{admin_failure, refusal, unexpected_response};
use crate::daemon::admin::{AdminRequest, AdminResponse, client};
use crate::terminal::colour::Colours;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::interruption;

/// Between the end of one request and the next. Also how often leases count down.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at the audit's files.
const AUDIT_INTERVAL: Duration = Duration::from_millis(250);
/// News that wait while the view draws. What does not fit is dropped or sent later.
const QUEUE_LENGTH: usize = 16;
/// If so much is new in the audit, only its end is read.
const MAX_POLLS: usize = 64;
/// How long a view that was told to end may still wait for its terminal.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// `audit` is the directory of the audit, where the configuration names it.
pub(super) fn run(socket: &Path, audit: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::new(Sysexit::OperatingSystem, error);
    let mut model = Model::new(fetch(socket)?);
    let colours = Colours::of_stdout();
    // The choice was made already: without it, NO_COLOR would take precedence over `--color always` here.
    style::force_color_output(colours == Colours::Ansi);
    let (sender, updates) = sync_channel(QUEUE_LENGTH);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let interrupted = runtime.block_on(async { interruption() }).map_err(failed)?;
    let _guard = TerminalGuard::new().map_err(failed)?;
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(failed)
    };
    let (socket, to_view) = (socket.to_owned(), sender.clone());
    start("watch-sessions", Box::new(move || follow_sessions(&socket, &to_view)))?;
    let to_view = sender.clone();
    start("watch-audit", Box::new(move || follow_audit(audit.as_deref(), &to_view)))?;
    let to_view = sender.clone();
    start("watch-keys", Box::new(move || read_keys(&to_view)))?;
    let signalled = move || {
        runtime.block_on(interrupted);
        // If the queue is full, the view is stuck or notices the next attempt.
        let until = Instant::now() + STUCK_AFTER;
        while Instant::now() < until {
            let _ = sender.try_send(Update::Quit);
            std::thread::sleep(Duration::from_millis(50));
        }
        guard::give_up();
    };
    start("watch-signals", Box::new(signalled))?;
    show(&mut model, &updates, colours).map_err(failed)
}

/// Draws after every news, and every second.
fn show(model: &mut Model, updates: &Receiver<Update>, colours: Colours) -> io::Result<ExitCode> {
    let options = TerminalOptions { viewport: Viewport::Fullscreen };
    let mut terminal = Terminal::with_options(CrosstermBackend::new(io::stdout()), options)?;
    loop {
        terminal.draw(|frame| screen::draw(frame, model, Instant::now(), colours))?;
        let mut update = match updates.recv_timeout(SAMPLE_INTERVAL) {
            Ok(update) => Some(update),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
        };
        while let Some(news) = update {
            if model.apply(news) == Next::Quit {
                return Ok(ExitCode::SUCCESS);
            }
            update = updates.try_recv().ok();
        }
    }
}

fn fetch(socket: &Path) -> Result<Sample, Failure> {
    match client::send(socket, &AdminRequest::Sessions).map_err(admin_failure)? {
        AdminResponse::Sessions { sessions, attached, attachments } => {
            Ok(Sample { at: Instant::now(), sessions, attached, attachments })
        }
        AdminResponse::Refused { code, why } => Err(refusal(&code, why)),
        _ => Err(unexpected_response()),
    }
}

fn follow_sessions(socket: &Path, to_view: &SyncSender<Update>) {
    loop {
        std::thread::sleep(SAMPLE_INTERVAL);
        let update = match fetch(socket) {
            Ok(sample) => Update::Sample(sample),
            Err(failure) => Update::NoSample(failure.what()),
        };
        // A sample that the view has no room for is dropped: the next one is newer.
        if let Err(TrySendError::Disconnected(_)) = to_view.try_send(update) {
            return;
        }
    }
}

/// Sends the newest decisions. Without a directory, or where it cannot be read, says so.
fn follow_audit(directory: Option<&Path>, to_view: &SyncSender<Update>) {
    let unknown =
        "the configuration cannot be read, so the place of the audit is not known; see `cofferdam check`";
    let Some(directory) = directory else {
        let _ = to_view.send(Update::NoDecisions(unknown.to_owned()));
        return;
    };
    let mut follower = None;
    let mut waiting = VecDeque::new();
    loop {
        let update = match read_decisions(directory, &mut follower, &mut waiting) {
            Ok(()) => Update::Decisions(waiting.drain(..).collect()),
            Err(error) => {
                follower = None;
                let shown = directory.display();
                Update::NoDecisions(format!(
                    "the audit in `{shown}` cannot be read: {error}; run this as the sidecar's user"
                ))
            }
        };
        let is_news = !matches!(&update, Update::Decisions(records) if records.is_empty());
        if is_news {
            match to_view.try_send(update) {
                Ok(()) | Err(TrySendError::Full(Update::NoDecisions(_))) => {}
                Err(TrySendError::Full(Update::Decisions(records))) => waiting.extend(records),
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
        std::thread::sleep(AUDIT_INTERVAL);
    }
}

/// Adds what is new; at most the newest [`KEPT_DECISIONS`] are kept.
fn read_decisions(
    directory: &Path,
    follower: &mut Option<Follower>,
    waiting: &mut VecDeque<HumanRecord>,
) -> io::Result<()> {
    // Outcomes and events are between the decisions.
    let from_end = || Follower::from_last(directory, 4 * KEPT_DECISIONS as u64);
    let mut current = match follower.take() {
        Some(follower) => follower,
        None => from_end()?,
    };
    for poll in 0.. {
        if poll == MAX_POLLS {
            current = from_end()?;
        }
        let lines = current.poll()?;
        if lines.is_empty() || poll > 2 * MAX_POLLS {
            break;
        }
        let records = lines.iter().filter_map(|line| HumanRecord::of(line).ok());
        waiting.extend(records.filter(|record| record.kind == "decision"));
        waiting.drain(..waiting.len().saturating_sub(KEPT_DECISIONS));
    }
    *follower = Some(current);
    Ok(())
}

/// Ends where there is no terminal to read keys from.
fn read_keys(to_view: &SyncSender<Update>) {
    while let Ok(event) = event::read() {
        if to_view.send(Update::Input(event)).is_err() {
            return;
        }
    }
}
