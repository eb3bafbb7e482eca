//! Lines of a server that are not MCP messages, such as a greeting on stdout: logged, and named where the server fails.
//!
//! What must stay true: a line is scrubbed whole before it is cut, so that no part of a secret is left at the cut; a
//! flood of lines is counted, not logged.

use cofferdam_base::text::visible_lines;
use cofferdam_base::{PacedLines, RateLimiter};
use cofferdam_scrub::Scrubber;

use super::CallerContext;

/// Logs such lines of one link.
#[derive(Debug)]
pub(super) struct StrayOutputLog {
    pace: RateLimiter,
}

/// A server can cause these lines as fast as it prints.
static STRAY_LINES: PacedLines =
    PacedLines::new("the server printed a line that is not an MCP message to stdout");

/// Enough for the greeting of any server.
const LINES_PER_MINUTE: u32 = 30;
/// A longer line is not scrubbed for an excerpt: only its length is given.
const MAX_LINE: usize = 4096;
/// Enough to recognise the line.
const EXCERPT_CHARACTERS: usize = 80;

impl Default for StrayOutputLog {
    fn default() -> Self {
        Self { pace: RateLimiter::per_minute(LINES_PER_MINUTE) }
    }
}

impl StrayOutputLog {
    /// Logs a line; returns an excerpt that the harness may see.
    pub(super) fn log(&mut self, caller: &CallerContext, line: &[u8]) -> String {
        let excerpt = excerpt(&caller.session.credentials.scrubber(), line);
        if let Some(left_out) = STRAY_LINES.admit_within(&mut self.pace) {
            let CallerContext { server, link, .. } = caller;
            tracing::warn!(%server, %link, stdout = %excerpt, left_out, "the server printed a line that is not an MCP message to stdout");
        }
        excerpt
    }
}

fn excerpt(scrubber: &Scrubber, line: &[u8]) -> String {
    if line.len() > MAX_LINE {
        return format!("a line of {} bytes", line.len());
    }
    let scrubbed = scrubber.text(line).bytes;
    let text = String::from_utf8_lossy(&scrubbed);
    let visible = visible_lines(text.trim());
    match visible.char_indices().nth(EXCERPT_CHARACTERS) {
        Some((end, _)) => format!("{}…", &visible[..end]),
        None => visible.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_scrub::Needle;

    use super::*;

    #[test]
    fn an_excerpt_is_short_and_visible() {
        let scrubber = Scrubber::new(vec![]);
        assert_eq!(excerpt(&scrubber, b"  Server listening\r"), "Server listening");
        assert_eq!(excerpt(&scrubber, b"\x1b[1mbold\xff"), "\\u{1b}[1mbold\u{fffd}");
        assert_eq!(excerpt(&scrubber, &[b'x'; 100]), format!("{}…", "x".repeat(EXCERPT_CHARACTERS)));
        assert_eq!(excerpt(&scrubber, &[b'x'; 5000]), "a line of 5000 bytes");
    }

    #[test]
    fn a_secret_at_the_cut_is_not_shown_in_part() {
        let secret = "a-secret-of-forty-characters-0123456789a";
        let needle = Needle { label: "local.value".into(), value: secret.as_bytes().to_vec().into() };
        let line = format!("{}{secret}", "x".repeat(EXCERPT_CHARACTERS - 30));
        let excerpt = excerpt(&Scrubber::new(vec![needle]), line.as_bytes());
        assert!(!excerpt.contains("a-secret"), "{excerpt}");
    }
}
