//! A server's stderr: bounded, scrubbed, into the log and into the server's file.
//!
//! The pipe is always drained, so that a flood never blocks the server; what exceeds the bounds is counted, not kept.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::RateLimiter;
use cofferdam_secrets::credentials::Credentials;
use relay_proto::name::Name;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use crate::stderr_files::{Origin, StderrRecord, StderrSink};

/// The origin of the lines, the secrets to be scrubbed from them, and their limits.
pub(crate) struct LogContext {
    pub(crate) server: Name,
    pub(crate) link: Arc<str>,
    pub(crate) process: u32,
    pub(crate) sink: StderrSink,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) line_bytes: usize,
    pub(crate) lines_per_second: u32,
}

const TOO_MANY_LINES: &str = "more than `limits.stderr-lines-per-second`";

impl LogContext {
    fn origin(&self) -> Origin {
        let (session, link) = (self.sink.session.to_string(), self.link.to_string());
        Origin { session, link, process: self.process }
    }

    /// `record` is scrubbed.
    fn write_to_file(&self, record: StderrRecord) {
        self.sink.files.write(&self.server, record);
    }
}

/// Logs lines until the pipe closes.
pub(crate) async fn log(mut pipe: pipe::Receiver, context: LogContext) {
    let mut scrubbing = Arc::new(context.credentials.scrubber()).stream();
    let limit = RateLimiter::per_second(context.lines_per_second);
    let mut lines = Lines { context, line: Vec::new(), cut: 0, limit, dropped: 0, reported: Instant::now() };
    let mut chunk = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        scrubbing.update(Arc::new(lines.context.credentials.scrubber()));
        lines.push(&scrubbing.push(&chunk[..count]).bytes);
    }
    lines.push(&scrubbing.finish().bytes);
    lines.end_line();
    lines.report_dropped();
}

struct Lines {
    context: LogContext,
    line: Vec<u8>,
    /// Bytes of this line that were discarded because it is too long.
    cut: usize,
    limit: RateLimiter,
    dropped: u64,
    /// When dropped lines were last reported: at most once a second.
    reported: Instant,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let ended = piece.ends_with(b"\n");
            let piece = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = self.context.line_bytes.saturating_sub(self.line.len()).min(piece.len());
            self.line.extend_from_slice(&piece[..room]);
            self.cut += piece.len() - room;
            if ended {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.reported) >= Duration::from_secs(1) {
            self.report_dropped();
            self.reported = now;
        }
        match self.limit.allows(now) {
            true => {
                let text = String::from_utf8_lossy(&self.line);
                let text = text.trim_end();
                tracing::info!(server = %self.context.server, link = %self.context.link, cut = self.cut, stderr = %text);
                self.context.write_to_file(StderrRecord::line(self.context.origin(), text, self.cut));
            }
            false => self.dropped += 1,
        }
        self.line.clear();
        self.cut = 0;
    }

    fn report_dropped(&mut self) {
        if self.dropped > 0 {
            tracing::warn!(server = %self.context.server, link = %self.context.link, lines = self.dropped, "stderr lines dropped: {TOO_MANY_LINES}");
            let origin = Some(self.context.origin());
            self.context.write_to_file(StderrRecord::dropped(origin, self.dropped, TOO_MANY_LINES));
            self.dropped = 0;
        }
    }
}
