//! The log: written to stderr, scrubbed, one line per event.
//!
//! What must stay true: text of a server or a sandbox cannot change the terminal that shows the log. Control, direction
//! and separator characters are escaped, after scrubbing, so that an escape never hides a secret from the scrubber.

use std::io::{self, Write};
use std::sync::Arc;

use cofferdam_base::text::visible_lines;
use cofferdam_scrub::Naming;
use cofferdam_scrub::shared::SharedValues;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Chooses what is logged, as in `cofferdam=debug`.
const FILTER_VARIABLE: &str = "COFFERDAM_LOG";

const DEFAULT_FILTER: &str = "info";

/// Starts the log.
pub(crate) fn start(scrubber: Arc<SharedValues>) {
    let written = std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.is_empty());
    let parsed = written.map_or_else(|| Ok(EnvFilter::new(DEFAULT_FILTER)), EnvFilter::try_new);
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let filter = parsed.unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(ScrubbingWriter(scrubber));
    // Fails if the log was started before in this process, which then goes on.
    let _ = subscriber.try_init();
    if let Some(problem) = problem {
        tracing::warn!(
            problem,
            "{FILTER_VARIABLE} cannot be read, so `{DEFAULT_FILTER}` applies; write for example `cofferdam=debug`"
        );
    }
}

struct ScrubbingWriter(Arc<SharedValues>);

impl<'a> MakeWriter<'a> for ScrubbingWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { scrubber: &self.0, text: Vec::new() }
    }
}

/// One event, written when dropped: collected first, so that a credential split between two writes is found.
struct Line<'a> {
    scrubber: &'a SharedValues,
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
        let scrubbed = self.scrubber.scrubber(Naming::All).text(&self.text);
        let text = String::from_utf8_lossy(&scrubbed.bytes);
        // There is nowhere to report that the log cannot be written.
        let _ = io::stderr().write_all(visible_lines(&text).as_bytes());
    }
}
