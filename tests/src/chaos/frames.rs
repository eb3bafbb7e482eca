//! Finds where the frames of a stream begin, so that the proxy can cut it at a chosen byte.
//!
//! This is independent of the product's decoder: a bug there must not move the cuts.

/// The length of the preface.
pub const PREFACE: usize = 18;
/// The size of a frame's header: length and kind.
pub const HEADER: usize = 5;
/// The size of what precedes a message's bytes in its frame: sequence number and flags.
pub const MESSAGE_HEADER: usize = 9;
const MESSAGE_KIND: u8 = 0x10;

/// A frame whose header has arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Found {
    pub start: usize,
    pub end: usize,
    pub kind: u8,
}

impl Found {
    pub fn is_message(&self) -> bool {
        self.kind == MESSAGE_KIND
    }
}

/// The frames whose headers are in this prefix of a stream, and the offset of the first frame whose header is not.
pub fn frames(stream: &[u8]) -> (Vec<Found>, usize) {
    let (mut found, mut start) = (Vec::new(), PREFACE);
    while let Some(header) = stream.get(start..start + HEADER) {
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let end = start + 4 + length.max(1);
        found.push(Found { start, end, kind: header[4] });
        start = end;
    }
    (found, start)
}

#[cfg(test)]
mod tests {
    use relay_proto::frame::{Frame, Part, PartFlags};

    use super::*;

    #[test]
    fn frames_are_found_as_far_as_their_headers_are_there() {
        let mut stream = relay_proto::frame::PREFACE.to_vec();
        assert_eq!(stream.len(), PREFACE);
        Frame::Ping.encode(&mut stream);
        let second = stream.len();
        let message = Part { seq: 1, flags: PartFlags::default(), bytes: b"{}".to_vec() };
        Frame::Message(message).encode(&mut stream);
        let (found, next) = frames(&stream);
        assert_eq!((found.len(), next), (2, stream.len()));
        assert!(!found[0].is_message() && found[1].is_message());
        assert_eq!(found[1].start, second);
        assert_eq!(found[1].end - found[1].start, HEADER + MESSAGE_HEADER + 2);
        for cut in second..second + HEADER {
            assert_eq!(frames(&stream[..cut]), (found[..1].to_vec(), second));
        }
    }
}
