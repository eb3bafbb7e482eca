//! Measures the scrubber alone: 1 MiB results by what they contain, with one value to search for and with many.

pub(crate) mod search;
mod texts;

use std::time::Duration;

use cofferdam_scrub::shared::SharedValues;
use cofferdam_scrub::{Naming, Needle, Scrubber};

use crate::bench_error::BenchError;
use crate::clock::now;
use texts::{LETTERS, Random};

/// The name of this measurement for `--only`.
pub(crate) const SCRUBBING: &str = "scrubbing";

/// The 10,000 values of the second of the two measurements of each text. They are learned in groups with a search after each,
/// so that they are in indexes of different sizes, as in a sidecar that has been running.
const MANY_VALUES: [usize; 3] = [9_400, 570, 30];

/// The first text is the plain one that the others are compared with.
#[derive(Clone, Debug)]
pub(crate) struct ScrubbingResults {
    pub(crate) texts: Vec<ScrubbedText>,
}

#[derive(Clone, Debug)]
pub(crate) struct ScrubbedText {
    pub(crate) what: &'static str,
    /// The best round, for a whole result of 1 MiB.
    pub(crate) one_value: Duration,
    pub(crate) many_values: Duration,
}

impl ScrubbingResults {
    pub(crate) fn plain(&self) -> Option<&ScrubbedText> {
        self.texts.first()
    }

    pub(crate) fn slowest(&self) -> Option<&ScrubbedText> {
        self.texts.iter().max_by_key(|text| text.one_value)
    }
}

/// The texts are measured in turns, so that they can be compared.
pub(crate) fn run(rounds: usize) -> Result<ScrubbingResults, BenchError> {
    let messages: Vec<(&'static str, Vec<u8>)> =
        texts::texts().into_iter().map(|(what, text)| (what, message(&text))).collect();
    let unmeasured = |(what, _): &(&'static str, Vec<u8>)| ScrubbedText {
        what,
        one_value: Duration::MAX,
        many_values: Duration::MAX,
    };
    let mut results = ScrubbingResults { texts: messages.iter().map(unmeasured).collect() };
    let (one, many) = (scrubber(&[1]), scrubber(&MANY_VALUES));
    for _ in 0..rounds.max(1) {
        for ((_, message), text) in messages.iter().zip(&mut results.texts) {
            text.one_value = text.one_value.min(scrubbing_time(&one, message));
            text.many_values = text.many_values.min(scrubbing_time(&many, message));
        }
    }
    Ok(results)
}

fn scrubbing_time(scrubber: &Scrubber, message: &[u8]) -> Duration {
    let began = now();
    let scrubbed = scrubber.message(message);
    let took = began.elapsed();
    drop(scrubbed);
    took
}

fn message(text: &str) -> Vec<u8> {
    let message =
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#);
    message.into_bytes()
}

/// A scrubber of a sidecar that learned this many values like those of a common service, one group after the other.
fn scrubber(groups: &[usize]) -> Scrubber {
    let random = &mut Random(0xD1B5_4A32_D192_ED03);
    let needle = |number: usize| Needle {
        label: format!("server{number}.token").into(),
        value: format!("ghp_{}", random.letters(&LETTERS[..62], 36)).into_bytes().into(),
    };
    let mut needles = (0..groups.iter().sum()).map(needle);
    let values = SharedValues::default();
    // Every sidecar searches for its own keys too, which are no text.
    let key: Vec<u8> = (0..32_u32).map(|at| (at * 73 + 131) as u8).collect();
    values.learn(&[Needle { label: "audit.key".into(), value: key.into() }]);
    for count in groups {
        values.learn(&needles.by_ref().take(*count).collect::<Vec<_>>());
        // The indexes are built when something is to be searched.
        values.scrubber(Naming::All);
    }
    values.scrubber(Naming::All)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_json_message_of_about_a_mebibyte() {
        for (what, text) in texts::texts() {
            let message = message(&text);
            assert!(
                (texts::SIZE * 15 / 16..texts::SIZE * 5 / 4).contains(&message.len()),
                "{what}: {}",
                message.len()
            );
            assert!(serde_json::from_slice::<serde_json::Value>(&message).is_ok(), "{what}");
        }
    }

    #[test]
    fn plain_text_comes_first() {
        let texts = texts::texts();
        assert_eq!(texts[0].0, "prose in lines");
        let message = message(&texts[0].1);
        assert_eq!(scrubber(&[1]).message(&message).redactions, 0);
    }
}
