//! Looks for texts that take long to scrub.
//!
//! A text is a few parts, repeated: letters of some alphabet, escapes, separators. Texts are put together at random, and
//! the slowest ones found so far are changed at random in turn. Which texts are tried depends on the times measured, so
//! each search is a different one.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use cofferdam_scrub::Scrubber;

use super::texts::{self, LETTERS, Random};
use super::{message, scrubber, scrubbing_time};
use crate::bench_error::BenchError;

/// Part of a text, as the inside of a JSON string.
#[derive(Clone, Debug)]
enum Part {
    /// So many letters of an alphabet, which differ in each repetition.
    Letters {
        alphabet: &'static [u8],
        count: usize,
    },
    Fixed(&'static str),
}

#[derive(Clone, Debug)]
struct Candidate {
    parts: Vec<Part>,
    /// How much longer it takes than prose in lines of the same size.
    ratio: f64,
}

/// What letters may be chosen from. With some of them, nearly everything decodes to text.
const ALPHABETS: [&[u8]; 16] = [
    b"4",
    b"x",
    b"A",
    b"234567",
    b"0123456789",
    b"23456789",
    b"4567",
    b"0123456789abcdef",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    b"abcdefghijklmnopqrstuvwxyz",
    b"ABCDEFabcdef",
    b"VUEQFBRA",
    b"GI4TM3",
    b"gi4tm3",
    b"MDAwMTIz",
    LETTERS,
];

const FIXED: [&str; 40] = [
    ".",
    " ",
    ",",
    ":",
    "=",
    "!",
    "0x",
    "+",
    "-",
    "_",
    "A",
    "a",
    "\\n",
    "\\n    ",
    "\\r\\n",
    "\\n> ",
    "\\t",
    "%",
    "%5C",
    "%20",
    "%41",
    "%2541",
    "%252525252541",
    "\\\\",
    "\\\\n",
    "\\\\\\\\",
    "\\\"",
    "\\u0041",
    "\\\\u0041",
    "\\u0000",
    "&",
    "&#65;",
    "&amp;",
    "&amp;lt;",
    "é",
    "\\u00e9",
    "VGhlIHF1aWNrIGJyb3du",
    "KRUGKIDROVUWG2ZAMJZG653O",
    "54686520717569636b206272",
    "VkdobElIRjFhV05ySUdKeWIzZHU",
];

/// The size of the texts that are tried; the slowest of all are measured again in full size.
const TRIED: usize = texts::SIZE / 4;
/// How many of the slowest texts are changed further.
const KEPT: usize = 24;
/// How many are listed.
const LISTED: usize = 10;
const MOST_PARTS: usize = 6;

/// Tries this many texts, and prints the slowest.
pub(crate) fn run(count: usize) -> Result<(), BenchError> {
    let scrubber = scrubber(&[1]);
    let random = &mut Random(std::process::id().into());
    let mut kept: Vec<Candidate> = Vec::new();
    for _ in 0..count {
        let parts = match kept.len() {
            KEPT if random.below(4) > 0 => changed(&kept[random.below(KEPT)].parts, random),
            _ => (0..=random.below(MOST_PARTS)).map(|_| part(random)).collect(),
        };
        let ratio = ratio(&scrubber, &parts, TRIED, 3, random);
        kept.push(Candidate { parts, ratio });
        kept.sort_by(|one, other| other.ratio.total_cmp(&one.ratio));
        kept.truncate(KEPT);
    }
    for candidate in &mut kept {
        candidate.ratio = ratio(&scrubber, &candidate.parts, texts::SIZE, 15, random);
    }
    kept.sort_by(|one, other| other.ratio.total_cmp(&one.ratio));
    let mut report = String::from("| × prose in lines | the text, repeated |\n|--:|---|\n");
    for Candidate { parts, ratio } in kept.iter().take(LISTED) {
        // Writing to a string cannot fail.
        let _ = writeln!(report, "| {ratio:.2} | {} |", described(parts));
    }
    let printed = std::io::stdout().write_all(report.as_bytes());
    printed.map_err(|source| BenchError::Write { what: "the report to the terminal".into(), source })
}

/// Both are measured in turns, the best round of each counts.
fn ratio(scrubber: &Scrubber, parts: &[Part], size: usize, rounds: usize, random: &mut Random) -> f64 {
    let prose = message(&texts::prose(random, "\\n", size));
    let tried = message(&text(parts, size, random));
    let (mut of_prose, mut of_tried) = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        of_prose = of_prose.min(scrubbing_time(scrubber, &prose));
        of_tried = of_tried.min(scrubbing_time(scrubber, &tried));
    }
    let per_byte = |time: Duration, message: &[u8]| time.as_secs_f64() / message.len() as f64;
    per_byte(of_tried, &tried) / per_byte(of_prose, &prose)
}

fn text(parts: &[Part], size: usize, random: &mut Random) -> String {
    let mut text = String::with_capacity(size + 1024);
    while text.len() < size {
        for part in parts {
            match part {
                Part::Letters { alphabet, count } => text.push_str(&random.letters(alphabet, *count)),
                Part::Fixed(part) => text.push_str(part),
            }
        }
    }
    text
}

fn part(random: &mut Random) -> Part {
    match random.below(2) {
        0 => {
            let alphabet = ALPHABETS[random.below(ALPHABETS.len())];
            let most = [12, 40, 100, 2000][random.below(4)];
            Part::Letters { alphabet, count: 1 + random.below(most) }
        }
        _ => Part::Fixed(FIXED[random.below(FIXED.len())]),
    }
}

fn changed(parts: &[Part], random: &mut Random) -> Vec<Part> {
    let mut parts = parts.to_vec();
    for _ in 0..=random.below(2) {
        let at = random.below(parts.len());
        match random.below(4) {
            0 if parts.len() > 1 => drop(parts.remove(at)),
            1 if parts.len() < MOST_PARTS => parts.insert(at, part(random)),
            2 => {
                if let Part::Letters { count, .. } = &mut parts[at] {
                    *count = (*count + random.below(9)).saturating_sub(4).max(1);
                }
            }
            _ => parts[at] = part(random),
        }
    }
    parts
}

fn described(parts: &[Part]) -> String {
    let described = |part: &Part| match part {
        Part::Letters { alphabet, count } => format!("{count} of `{}`", String::from_utf8_lossy(alphabet)),
        Part::Fixed(text) => format!("`{text}`"),
    };
    parts.iter().map(described).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_the_inside_of_a_json_string() {
        let random = &mut Random(1);
        let letters = ALPHABETS.map(|alphabet| Part::Letters { alphabet, count: 9 });
        for part in letters.into_iter().chain(FIXED.map(Part::Fixed)) {
            let parts = [part];
            let text = message(&text(&parts, 100, random));
            assert!(serde_json::from_slice::<serde_json::Value>(&text).is_ok(), "{parts:?}");
        }
    }

    #[test]
    fn a_changed_text_has_parts_and_not_too_many() {
        let random = &mut Random(7);
        let mut parts = vec![part(random)];
        for _ in 0..1000 {
            parts = changed(&parts, random);
            assert!((1..=MOST_PARTS).contains(&parts.len()), "{}", described(&parts));
        }
    }
}
