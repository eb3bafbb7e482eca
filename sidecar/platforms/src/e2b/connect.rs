//! The frames of the Connect protocol: a byte of flags, the length, a message in JSON.
//!
//! What must stay true: a frame that is too large is refused by its length, before it is buffered; a frame may arrive in any
//! number of pieces.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// `envd` sends at most 32 KiB of output in a message, some 44 KiB in JSON.
const MAX_FRAME: usize = 1024 * 1024;
const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END_OF_STREAM: u8 = 2;

/// One received frame.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Frame {
    Message(Bytes),
    /// The last frame, with an error if there is one.
    End(Bytes),
}

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame is compressed, which was not offered")]
    Compressed,
    #[error("a frame has {0} bytes; the limit is {MAX_FRAME}")]
    TooLarge(usize),
}

/// Splits the received bytes into frames.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    received: BytesMut,
}

impl FrameDecoder {
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.received.extend_from_slice(piece);
    }

    /// The next frame; `None` if it is not complete yet.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(mut head) = self.received.get(..HEAD) else { return Ok(None) };
        let flags = head.get_u8();
        let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(FrameError::TooLarge(length));
        }
        if flags & COMPRESSED != 0 {
            return Err(FrameError::Compressed);
        }
        if self.received.len() < HEAD + length {
            return Ok(None);
        }
        self.received.advance(HEAD);
        let body = self.received.split_to(length).freeze();
        Ok(Some(if flags & END_OF_STREAM != 0 { Frame::End(body) } else { Frame::Message(body) }))
    }
}

/// Encodes a message as a frame.
///
/// # Panics
/// For a message above 4 GiB, which is never sent.
pub(super) fn encode_frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("our messages are small"));
    frame.put_slice(message);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_decoded_from_pieces_of_any_size() {
        let mut bytes = encode_frame(b"{\"a\":1}").to_vec();
        bytes.extend_from_slice(&encode_frame(b""));
        bytes.extend_from_slice(&[END_OF_STREAM, 0, 0, 0, 2, b'{', b'}']);
        let expected = [
            Frame::Message(Bytes::from_static(b"{\"a\":1}")),
            Frame::Message(Bytes::new()),
            Frame::End(Bytes::from_static(b"{}")),
        ];
        for size in 1..=bytes.len() {
            let mut decoder = FrameDecoder::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_when_its_head_has_arrived() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&[0, 0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLarge(0x7fff_ffff)));
    }

    #[test]
    fn a_compressed_frame_is_refused() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&[COMPRESSED, 0, 0, 0, 1, b'x']);
        assert_eq!(decoder.next_frame(), Err(FrameError::Compressed));
    }
}
