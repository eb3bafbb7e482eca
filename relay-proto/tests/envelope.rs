//! For every message, the envelope reader either agrees with an independent parser or refuses it as that parser does.

mod envelope_oracle;

use std::cell::Cell;

use envelope_oracle::{assert_parsers_agree, generate_message};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use relay_proto::envelope::Strictness;

#[test]
fn the_reader_agrees_with_an_independent_parser() {
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let usual = ProptestConfig::default();
    let config = ProptestConfig { cases: usual.cases.max(12_000), failure_persistence: None, ..usual };
    let choices = vec(any::<u8>(), 0..400);
    TestRunner::new(config)
        .run(&choices, |choices| {
            let (depth, message) = generate_message(&choices);
            for strictness in [Strictness::Whole, Strictness::Envelope] {
                let count =
                    if assert_parsers_agree(&message, strictness, depth) { &accepted } else { &refused };
                count.set(count.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    let (accepted, refused) = (accepted.get(), refused.get());
    assert!(
        accepted > 4_000 && refused > 4_000,
        "too few of one outcome: {accepted} accepted, {refused} refused"
    );
}
