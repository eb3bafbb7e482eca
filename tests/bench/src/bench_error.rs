//! Errors of the benchmark. Their messages are shown in the report, so each names what has failed.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{what} exited{}", with_log_line(.last_log_line))]
    Ended { what: String, last_log_line: String },
    #[error("missing: {0}")]
    Missing(String),
    #[error("{what} is not ready after {within:?}{}", with_log_line(.last_log_line))]
    NotReady { what: String, within: Duration, last_log_line: String },
    #[error("no response to request {id} within {within:?}{}", with_log_line(.last_log_line))]
    NoResponse { id: u64, within: Duration, last_log_line: String },
    #[error("cannot read {what}")]
    Read {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot start {what}")]
    Start {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("unexpected response: {0}")]
    UnexpectedResponse(String),
    #[error("cannot write {what}")]
    Write {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl BenchError {
    /// The error and its causes in one line.
    pub(crate) fn with_causes(&self) -> String {
        let mut with_causes = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            with_causes = format!("{with_causes}: {error}");
            cause = error.source();
        }
        with_causes
    }
}

/// The last line of a process's log, shortened to fit a table.
pub(crate) fn last_log_line(log: &str) -> String {
    let line = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    line.chars().take(160).collect()
}

fn with_log_line(last_log_line: &str) -> String {
    match last_log_line {
        "" => String::new(),
        line => format!("; its last log line: {line}"),
    }
}
