//! Messages on their way to the harness.
//!
//! What must stay true: [`Replies`] accepts only a [`ScrubbedLine`], and only [`scrub_message`] and [`scrub_response`]
//! make one.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use cofferdam_scrub::Scrubber;
use relay_proto::envelope::{self, Kind, Strictness};
use relay_proto::json;

/// Scrubbed lines, in order, until the link delivers them.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// All lines, concatenated.
    bytes: Vec<u8>,
    /// Where each line ends in `bytes`.
    ends: Vec<usize>,
}

/// A message is larger than the harness accepts.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// A message that was scrubbed and is one line.
pub(crate) struct ScrubbedLine<'a> {
    line: Cow<'a, [u8]>,
    pub(super) redactions: u32,
}

/// Buffers larger than this are freed once they are empty.
const KEPT_BUFFER: usize = 64 * 1024;

impl Replies {
    pub(super) fn push(&mut self, scrubbed: &ScrubbedLine<'_>) {
        self.bytes.extend_from_slice(&scrubbed.line);
        self.ends.push(self.bytes.len());
    }

    /// Removes all lines and passes them to `take`, in order.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let mut start = 0;
        for end in self.ends.drain(..) {
            take(&self.bytes[start..end]);
            start = end;
        }
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BUFFER {
            self.bytes = Vec::new();
        }
    }
}

impl Deref for ScrubbedLine<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.line
    }
}

impl ScrubbedLine<'_> {
    pub(super) fn into_owned(self) -> ScrubbedLine<'static> {
        ScrubbedLine { line: Cow::Owned(self.line.into_owned()), redactions: self.redactions }
    }
}

/// A reason, scrubbed and then short enough for a model. The order matters, because what is left of a credential that was
/// cut in two is not recognised.
pub(super) fn shortened(scrubber: &Scrubber, why: &str) -> String {
    const MAX_REASON_BYTES: usize = 1000;
    let mut why = scrubber.name(why).into_owned();
    if why.len() > MAX_REASON_BYTES {
        why.truncate(why.floor_char_boundary(MAX_REASON_BYTES));
        why.push('…');
    }
    why
}

/// Scrubs a request or notification of a server, or a response that the sidecar itself made.
pub(super) fn scrub_message<'a>(
    scrubber: &Scrubber,
    message: &'a [u8],
    max_message_bytes: usize,
) -> Result<ScrubbedLine<'a>, TooLarge> {
    let scrubbed = scrubber.message(message);
    let mut bytes = scrubbed.bytes;
    if scrubbed.redactions > 0
        && let (Some(own), Some(shown)) = (response_id(message), response_id(&bytes))
    {
        // The harness matches a response by its own id, so the id stays as the harness chose it.
        bytes = Cow::Owned(json::replace(&bytes, shown, &message[own]));
    }
    let line = match json::line_safe(&bytes) {
        Cow::Borrowed(_) => None,
        Cow::Owned(line) => Some(line),
    };
    let line = line.map_or(bytes, Cow::Owned);
    match line.len() > max_message_bytes {
        true => Err(TooLarge),
        false => Ok(ScrubbedLine { line, redactions: scrubbed.redactions }),
    }
}

/// Scrubs a response of a server and writes its id as the harness wrote it (`harness_id`). `None` if the id was
/// redacted and cannot be found.
pub(super) fn scrub_response<'a>(
    scrubber: &Scrubber,
    response: Cow<'a, [u8]>,
    id: &[u8],
    harness_id: &[u8],
) -> Option<ScrubbedLine<'a>> {
    let (redactions, changed) = {
        let scrubbed = scrubber.message(&response);
        let changed = match scrubbed.bytes {
            Cow::Borrowed(_) => None,
            Cow::Owned(bytes) => Some(bytes),
        };
        (scrubbed.redactions, changed)
    };
    let mut bytes = changed.map_or(response, Cow::Owned);
    if id != harness_id || redactions > 0 {
        let span = response_id(&bytes)?;
        bytes = Cow::Owned(json::replace(&bytes, span, harness_id));
    }
    let line = match json::line_safe(&bytes) {
        Cow::Borrowed(_) => None,
        Cow::Owned(line) => Some(line),
    };
    Some(ScrubbedLine { line: line.map_or(bytes, Cow::Owned), redactions })
}

/// The range of the id of a response; none where the id was redacted into something that is not an id.
fn response_id(message: &[u8]) -> Option<Range<usize>> {
    match envelope::read(message, Strictness::Envelope).ok()?.kind {
        Kind::Response { id: Some(id), .. } => Some(id.span),
        Kind::Notification { .. } | Kind::Request { .. } | Kind::Response { id: None, .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_scrub::Needle;

    use super::*;

    #[test]
    fn a_reason_is_scrubbed_before_it_is_cut() {
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let needle = Needle { label: "github.token".into(), value: token.as_bytes().to_vec().into() };
        let scrubber = Scrubber::new(vec![needle]);
        for before in 940..1010 {
            let why = shortened(&scrubber, &format!("{} {token} and more", "x".repeat(before)));
            assert!(!why.contains("ghp_"), "{before}: {why}");
            assert!(why.len() < 1010, "{before}: {}", why.len());
        }
    }
}
