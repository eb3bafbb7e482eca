//! One line of a file of stderr: a JSON object.

use cofferdam_base::clock::{self, Rfc3339};
use cofferdam_base::text::visible_lines;
use serde::{Deserialize, Serialize};

/// Where a line comes from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Origin {
    pub session: String,
    pub link: String,
    /// The process id of the server on the host.
    pub process: u32,
}

/// A line that a server wrote, or the number of lines that are missing here.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StderrRecord {
    /// RFC 3339, UTC.
    pub time: String,
    /// `None` where lines of several processes are missing.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    #[serde(flatten)]
    pub content: Content,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    Text {
        /// Scrubbed, without control characters.
        text: String,
        /// How many bytes of the line were left out because it is longer than `limits.stderr-line-bytes`.
        #[serde(default, skip_serializing_if = "is_zero")]
        cut: usize,
    },
    Dropped {
        /// How many lines are missing.
        dropped: u64,
        reason: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl StderrRecord {
    /// `text` must be scrubbed. Control characters in it are written as escapes.
    pub fn line(origin: Origin, text: &str, cut: usize) -> Self {
        let text = visible_lines(text).replace('\n', r"\n");
        Self::now(Some(origin), Content::Text { text, cut })
    }

    pub fn dropped(origin: Option<Origin>, dropped: u64, reason: &str) -> Self {
        Self::now(origin, Content::Dropped { dropped, reason: reason.to_owned() })
    }

    fn now(origin: Option<Origin>, content: Content) -> Self {
        Self { time: Rfc3339::from(clock::now()).as_str().to_owned(), origin, content }
    }

    /// Reads a line of a file. `None` if it is not one that the sidecar wrote whole.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// As a person wants to read it. Safe on a terminal, whatever the file holds.
    pub fn human(&self) -> String {
        let origin = match &self.origin {
            Some(Origin { session, link, process }) => format!(" {session}/{link} {process}"),
            None => String::new(),
        };
        let content = match &self.content {
            Content::Text { text, cut: 0 } => text.clone(),
            Content::Text { text, cut } => format!("{text} [{cut} more bytes]"),
            Content::Dropped { dropped, reason } => format!("[{dropped} lines dropped: {reason}]"),
        };
        visible_lines(&format!("{}{origin}  {content}", self.time)).replace('\n', r"\n")
    }

    /// What the server wrote. `None` where lines are missing.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text { text, .. } => Some(text),
            Content::Dropped { .. } => None,
        }
    }

    /// The bytes that it takes in memory, about.
    pub(super) fn size(&self) -> usize {
        let content = match &self.content {
            Content::Text { text, .. } => text.len(),
            Content::Dropped { reason, .. } => reason.len(),
        };
        size_of::<Self>() + content
    }
}
