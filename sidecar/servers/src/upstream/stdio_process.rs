//! One process of a stdio server: its pipes, what it holds, and how its end is explained.
//!
//! What must stay true: only a response counts as an answer, so that a line such as `Server listening` does not end the
//! start timeout; [`StdioProcess::next`] is cancel-safe.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_process::Ended;
use relay_proto::code::Code;
use relay_proto::envelope::{self, IdValue, Kind, Strictness};
use relay_proto::json;
use tokio::time::{Instant, timeout_at};

use super::stdio::StdioEvent;
use super::{ProcessPipes, ProcessResources};
use crate::event::{Event, Role};

pub(crate) struct StdioProcess {
    pub(crate) pipes: ProcessPipes,
    pub(crate) resources: ProcessResources,
    /// The link under which the log has the process's stderr.
    link: Arc<str>,
    started: Instant,
    progress: StartProgress,
    /// The first line that the process printed and that is not an MCP message, as the harness may see it.
    stray_output: Option<Box<str>>,
    /// A request of which the process received no byte, until the exit status is known.
    unsent: Option<IdValue>,
    /// Until when an exit status is waited for, once the pipes are closed.
    exit_status_by: Option<Instant>,
}

/// Whether the process has answered a request. Other output, such as a log line on stdout, is no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StartProgress {
    Answered,
    Unanswered,
}

/// How long after its pipes are closed a process may take to exit, so that its exit status can be reported.
const EXIT_STATUS_TIME: Duration = Duration::from_millis(500);
/// A process that ends within this time without an answer ended right after its start.
const START_TIME: Duration = Duration::from_secs(30);

impl StdioProcess {
    pub(crate) fn new(pipes: ProcessPipes, resources: ProcessResources, link: &Arc<str>) -> Self {
        Self {
            pipes,
            resources,
            link: Arc::clone(link),
            started: Instant::now(),
            progress: StartProgress::Unanswered,
            stray_output: None,
            unsent: None,
            exit_status_by: None,
        }
    }

    /// Queues one message; its bytes are written in [`ProcessPipes::write_now`] and [`Self::next`].
    pub(crate) fn send(&mut self, message: &[u8]) {
        self.pipes.send(&json::line_safe(message));
    }

    /// Writes what is queued and waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event {
        if self.unsent.is_none() {
            match self.pipes.next().await {
                StdioEvent::Unsent { id } => self.unsent = Some(id),
                StdioEvent::Line(line) => return self.on_line(line),
                StdioEvent::Oversize { id } => return self.on_oversize(id),
                // If the wait below is cancelled, the pipes report this again.
                StdioEvent::Closed => {}
            }
        }
        self.wait_for_exit_status().await;
        let code = Code::ServerUnavailable;
        match self.unsent.take() {
            Some(id) if self.pipes.exit().is_some() => Event::did_not_run(id, code, &self.describe_exit()),
            Some(id) => Event::did_not_run(id, code, "the server takes no more requests"),
            None => Event::Gone { was: Role::Current, code, why: self.describe_exit() },
        }
    }

    /// A message that has already arrived.
    pub(crate) fn buffered(&mut self) -> Option<Event> {
        match self.pipes.buffered()? {
            StdioEvent::Line(line) => Some(self.on_line(line)),
            StdioEvent::Oversize { id } => Some(self.on_oversize(id)),
            StdioEvent::Closed | StdioEvent::Unsent { .. } => None,
        }
    }

    /// Whether the process has answered no request so far.
    pub(super) fn is_unanswered(&self) -> bool {
        self.progress == StartProgress::Unanswered
    }

    /// Keeps the first line that is not an MCP message, to be named where the process ends or does not answer.
    pub(crate) fn keep_stray_output(&mut self, excerpt: String) {
        self.stray_output.get_or_insert(excerpt.into());
    }

    /// Names the process's output that is not MCP; empty where there was none.
    pub(crate) fn describe_stray_output(&self) -> String {
        match &self.stray_output {
            Some(excerpt) => format!("; it printed `{excerpt}` to stdout, which is for MCP messages"),
            None => String::new(),
        }
    }

    /// Closes the pipes, then ends the process with its descendants.
    pub(super) async fn end(self, grace: Duration) -> Ended {
        let Self { pipes, resources, .. } = self;
        let ended = pipes.end(grace).await;
        drop(resources);
        ended
    }

    fn on_line(&mut self, line: bytes::BytesMut) -> Event {
        if self.is_unanswered() {
            let kind = envelope::read(&line, Strictness::Envelope).map(|envelope| envelope.kind);
            if let Ok(Kind::Response { id: Some(_), .. }) = kind {
                self.progress = StartProgress::Answered;
            }
        }
        Event::Message(line)
    }

    fn on_oversize(&mut self, id: Option<Box<[u8]>>) -> Event {
        if id.is_some() {
            self.progress = StartProgress::Answered;
        }
        Event::Oversize { id }
    }

    /// The exit status often follows the closed pipes by a moment. Cancel-safe.
    async fn wait_for_exit_status(&mut self) {
        let deadline = *self.exit_status_by.get_or_insert_with(|| Instant::now() + EXIT_STATUS_TIME);
        // A process that closed its pipes without exiting is described without an exit status.
        let _ = timeout_at(deadline, self.pipes.exited()).await;
    }

    fn describe_exit(&mut self) -> String {
        let exit = self.pipes.exit().map(|exit| format!(" ({exit})")).unwrap_or_default();
        let (stray, link) = (self.describe_stray_output(), &self.link);
        match self.is_unanswered() && self.started.elapsed() < START_TIME {
            true => format!(
                "the server ended right after its start{exit}{stray}; the host's log has its stderr under link={link}"
            ),
            false => format!("the server's process ended{exit}{stray}"),
        }
    }
}
