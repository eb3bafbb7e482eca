//! Any bytes in any split: no panic, the same frames, and the frames are the same after encoding and decoding again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, Frame, PREFACE};

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let piece = usize::from(piece).max(1);
    for bytes in [bytes, &[PREFACE, bytes].concat()] {
        let (frames, error) = decode(bytes.chunks(piece));
        let (whole, whole_error) = decode([bytes].into_iter());
        assert_eq!(frames, whole);
        assert_eq!(error.is_some(), whole_error.is_some());
        let mut again = PREFACE.to_vec();
        frames.iter().for_each(|frame| frame.encode(&mut again));
        assert_eq!(decode([again.as_slice()].into_iter()), (frames, None));
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
