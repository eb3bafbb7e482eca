//! Any message: the envelope reader agrees with an independent parser, or refuses the message.

#![no_main]

#[path = "../../tests/envelope_oracle/mod.rs"]
mod envelope_oracle;

use envelope_oracle::{agree, generate_message};
use libfuzzer_sys::fuzz_target;
use relay_proto::envelope::Strictness;

fuzz_target!(|input: (u8, &[u8])| {
    let (way, bytes) = input;
    let (depth, message) = match way % 2 {
        0 => (usize::from(way / 2), bytes.to_vec()),
        _ => generate_message(bytes),
    };
    for strictness in [Strictness::Whole, Strictness::Envelope] {
        agree(&message, strictness, depth);
    }
});
