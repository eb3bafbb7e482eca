//! Splits input wherever the line reader of any language would: LF, CR, U+0085, U+2028, U+2029.

/// Keeps an unfinished line between reads.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    rest: Vec<u8>,
}

impl Splitter {
    /// The lines that are complete now; empty ones are left out.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let complete: Vec<u8> = self.rest.drain(..=end).collect();
        split(&complete)
    }
}

const BREAKS: [&[u8]; 5] = [b"\n", b"\r", "\u{85}".as_bytes(), "\u{2028}".as_bytes(), "\u{2029}".as_bytes()];

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut lines, mut line, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        match BREAKS.iter().find(|mark| bytes[at..].starts_with(mark)) {
            Some(mark) => {
                lines.push(std::mem::take(&mut line));
                at += mark.len();
            }
            None => {
                line.push(bytes[at]);
                at += 1;
            }
        }
    }
    lines.push(line);
    lines.retain(|line| !line.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_ending_ends_a_line() {
        let mut splitter = Splitter::default();
        assert!(splitter.feed(b"a").is_empty());
        assert_eq!(splitter.feed("\r\nb\u{2028}c\u{85}d\re\n".as_bytes()), [b"a", b"b", b"c", b"d", b"e"]);
    }
}
