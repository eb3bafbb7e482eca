//! The log: to stderr, one event a line, scrubbed on its way out.

use std::io::{self, Write};
use std::sync::Arc;

use cofferdam_scrub::Naming;
use cofferdam_scrub::shared::SharedValues;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Starts the log. `COFFERDAM_LOG` chooses what is logged, as in `cofferdam=debug`.
pub(crate) fn start(scrubber: Arc<SharedValues>) {
    let filter = EnvFilter::try_from_env("COFFERDAM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(Scrubbing(scrubber));
    // A second start in one process changes nothing.
    let _ = subscriber.try_init();
}

struct Scrubbing(Arc<SharedValues>);

impl<'a> MakeWriter<'a> for Scrubbing {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { scrubber: &self.0, text: Vec::new() }
    }
}

/// One event, collected whole so that nothing is missed between two writes.
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
        // There is nowhere to report that the log cannot be written.
        let _ = io::stderr().write_all(&self.scrubber.scrubber(Naming::All).text(&self.text).bytes);
    }
}
