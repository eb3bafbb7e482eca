//! What can go wrong with a contender. The words end up in the report, so each says what was being done.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("{what} ended{}", said(.last_words))]
    Ended { what: String, last_words: String },
    #[error("not there: {0}")]
    Missing(String),
    #[error("{what} is not ready after {within:?}{}", said(.last_words))]
    NotReady { what: String, within: Duration, last_words: String },
    #[error("no answer to request {id} within {within:?}{}", said(.last_words))]
    NoAnswer { id: u64, within: Duration, last_words: String },
    #[error("read {what}")]
    Read {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("start {what}")]
    Start {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("an answer that was not asked for: {0}")]
    WrongAnswer(String),
    #[error("write {what}")]
    Write {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl Trouble {
    /// The whole chain in one line.
    pub(crate) fn sentence(&self) -> String {
        let mut sentence = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            sentence = format!("{sentence}: {error}");
            cause = error.source();
        }
        sentence
    }
}

/// The end of what a process wrote to its log, shortened to what a table can hold.
pub(crate) fn last_words(log: &str) -> String {
    let words = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    words.chars().take(160).collect()
}

fn said(last_words: &str) -> String {
    match last_words {
        "" => String::new(),
        words => format!("; it said last: {words}"),
    }
}
