//! Several indexes that are searched for in one pass.

use super::*;
use crate::generations::Generations;
use crate::index::{Index, JointFilter};
use crate::patterns::Place;

/// Different values of this length, which begin alike.
fn values(count: u64, length: usize) -> Vec<Vec<u8>> {
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ length as u64;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"[(state >> 33) as usize % 62]
    };
    (0..count)
        .map(|_| b"ghp_".iter().copied().chain(std::iter::repeat_with(&mut letter)).take(length).collect())
        .collect()
}

fn index(values: &[Vec<u8>]) -> Arc<ValueIndex> {
    let needle = |value: &Vec<u8>| Needle { label: "some.token".into(), value: value.clone().into() };
    Arc::new(ValueIndex::new(&(0..).map(ValueId).zip(values.iter().map(needle)).collect::<Vec<_>>()))
}

#[test]
fn values_of_all_generations_are_found_once_at_every_position() {
    // Long values allow longer steps than short ones do; values under 16 bytes are searched for separately.
    let generations = [values(2, 17), values(3, 9), values(40, 24), values(300, 64), values(1, 40)];
    for count in 1..=generations.len() {
        let all = Generations::new(generations[..count].iter().map(|values| index(values)).collect());
        for (number, values) in generations[..count].iter().enumerate() {
            for (at, value) in values.iter().enumerate() {
                for before in 0..70 {
                    let text = [&vec![b'.'; before], &value[..], b" and more text"].concat();
                    let mut found = Vec::new();
                    all.find(Place::Text, &text, |index, span, value, _| found.push((index, span, value)));
                    assert_eq!(found, [(number, before..before + value.len(), at)], "{text:?}");
                }
            }
        }
    }
}

/// Values without ASCII are searched for by the letters that stand for them.
#[test]
fn values_of_all_generations_are_found_in_base64() {
    let cyrillic = |value: &Vec<u8>| -> Vec<u8> {
        value
            .iter()
            .map(|byte| char::from_u32(0x410 + u32::from(byte % 64)).unwrap())
            .collect::<String>()
            .into()
    };
    let generations = [values(2, 17), values(40, 24), values(1, 40)];
    let generations = generations.map(|values| values.iter().map(cyrillic).collect::<Vec<_>>());
    let indexes = Arc::new(Generations::new(generations.iter().map(|values| index(values)).collect()));
    let scrubber = Scrubber { indexes, naming: Naming::All };
    for value in generations.iter().flatten() {
        for before in ["", "u", "us"] {
            let encoded = base64(&[before.as_bytes(), value].concat(), b"+/");
            let text = format!("Basic {encoded} sent");
            let scrubbed = scrubber.text(text.as_bytes());
            assert_eq!(scrubbed.redactions, 1, "{text}");
            assert!(scrubbed.bytes.len() < 40, "{}", scrubbed.bytes.escape_ascii());
        }
    }
}

#[test]
fn long_values_are_searched_for_together_as_soon_as_two_generations_have_some() {
    let index = |length| Index::new(values(3, length).into_iter().map(Into::into).collect());
    let (long, longer, short) = (index(16), index(40), index(15));
    assert!(JointFilter::of([&long, &longer, &short].into_iter()).is_some());
    assert!(JointFilter::of([&long, &short].into_iter()).is_none());
    assert!(JointFilter::of([&short].into_iter()).is_none());
}
