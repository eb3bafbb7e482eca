//! The envelope reader and an independent parser read the same in every message, or the reader refuses it.

mod envelope_oracle;

use std::cell::Cell;

use envelope_oracle::{agree, generate_message};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use relay_proto::envelope::Strictness;

#[test]
fn every_message_means_the_same_to_an_independent_parser() {
    let (passed, refused) = (Cell::new(0), Cell::new(0));
    let usual = ProptestConfig::default();
    let config = ProptestConfig { cases: usual.cases.max(12_000), failure_persistence: None, ..usual };
    let choices = vec(any::<u8>(), 0..400);
    TestRunner::new(config)
        .run(&choices, |choices| {
            let (depth, message) = generate_message(&choices);
            for strictness in [Strictness::Whole, Strictness::Envelope] {
                let count = if agree(&message, strictness, depth) { &passed } else { &refused };
                count.set(count.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    let (passed, refused) = (passed.get(), refused.get());
    assert!(passed > 4_000 && refused > 4_000, "both outcomes occur: {passed} passed, {refused} refused");
}
