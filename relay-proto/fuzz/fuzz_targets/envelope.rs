//! For any message, the envelope reader agrees with an independent parser.

#![no_main]

#[path = "../../tests/envelope_oracle/mod.rs"]
mod envelope_oracle;

use envelope_oracle::{assert_parsers_agree, generate_message};
use libfuzzer_sys::fuzz_target;
use relay_proto::envelope::Strictness;

fuzz_target!(|input: (u8, &[u8])| {
    let (selector, bytes) = input;
    // Even: the bytes are the message, with the depth limit `selector / 2`. Odd: a message is generated from them.
    let (depth, message) = match selector % 2 {
        0 => (usize::from(selector / 2), bytes.to_vec()),
        _ => generate_message(bytes),
    };
    for strictness in [Strictness::Whole, Strictness::Envelope] {
        assert_parsers_agree(&message, strictness, depth);
    }
});
