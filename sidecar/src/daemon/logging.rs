//! The log: to stderr, one event a line, scrubbed on its way out.
//!
//! What must stay true: text of a server or a sandbox cannot change the terminal that shows the log. Control, direction
//! and separator characters are escaped, after scrubbing, so that an escape never hides a secret from the scrubber.

use std::io::{self, Write};
use std::sync::Arc;

use cofferdam_base::text::visible_lines;
use cofferdam_scrub::log_scrubber::LogScrubber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Starts the log. `COFFERDAM_LOG` chooses what is logged, as in `cofferdam=debug`.
pub(crate) fn start(scrubber: Arc<LogScrubber>) {
    let filter = EnvFilter::try_from_env("COFFERDAM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(Scrubbing(scrubber));
    // A second start in one process changes nothing.
    let _ = subscriber.try_init();
}

struct Scrubbing(Arc<LogScrubber>);

impl<'a> MakeWriter<'a> for Scrubbing {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { scrubber: &self.0, text: Vec::new() }
    }
}

/// One event, collected whole so that nothing is missed between two writes.
struct Line<'a> {
    scrubber: &'a LogScrubber,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let scrubbed = self.scrubber.current().text(&self.text);
        let text = String::from_utf8_lossy(&scrubbed.bytes);
        // There is nowhere to report that the log cannot be written.
        let _ = io::stderr().write_all(visible_lines(&text).as_bytes());
    }
}
