//! Decodes any bytes, whole and in pieces: there is no panic, both give the same frames, and these frames are the same
//! after encoding and decoding again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, Frame, PREFACE};

fuzz_target!(|input: (u8, &[u8])| {
    let (piece_length, bytes) = input;
    let piece_length = usize::from(piece_length).max(1);
    for bytes in [bytes, &[PREFACE, bytes].concat()] {
        let (frames, error) = decode(bytes.chunks(piece_length));
        let (expected, expected_error) = decode([bytes].into_iter());
        assert_eq!(frames, expected);
        assert_eq!(error.is_some(), expected_error.is_some());
        let mut encoded = PREFACE.to_vec();
        frames.iter().for_each(|frame| frame.encode(&mut encoded));
        assert_eq!(decode([encoded.as_slice()].into_iter()), (frames, None));
    }
});

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<DecodeError>) {
    let (mut decoder, mut frames) = (Decoder::new(), Vec::new());
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}
