//! Encodes and decodes frames repeatedly, so that the instructions of the codec alone can be counted.

use std::hint::black_box;

use relay_proto::decoder::Decoder;
use relay_proto::frame::{Frame, PREFACE, PartFlags, encode_part};
use relay_proto::limits::MAX_MESSAGE_PART;

/// The content of the frames.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// A small tool call.
    Small,
    /// As many bytes as one frame may have.
    Full,
}

/// Encodes and decodes `count` message frames.
///
/// # Errors
/// When a frame cannot be decoded, or is decoded to another frame number.
pub(crate) fn run(body: Body, count: u64) -> Result<(), String> {
    let call =
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"How deep is the water today?"}}}"#;
    let bytes = match body {
        Body::Small => call.to_vec(),
        Body::Full => vec![b'x'; MAX_MESSAGE_PART],
    };
    let mut decoder = Decoder::new();
    decoder.feed(PREFACE);
    let mut wire = Vec::new();
    for seq in 1..=count {
        wire.clear();
        encode_part(seq, &PartFlags::default(), black_box(&bytes), &mut wire);
        decoder.feed(black_box(&wire));
        match decoder.next() {
            Ok(Some(Frame::Message(part))) if part.seq == seq => drop(black_box(part)),
            other => return Err(format!("frame {seq} came back as {other:?}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_frames_are_decoded_in_order() {
        assert_eq!(run(Body::Small, 100), Ok(()));
        assert_eq!(run(Body::Full, 3), Ok(()));
    }
}
