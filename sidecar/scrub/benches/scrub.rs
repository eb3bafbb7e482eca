//! Time to scrub one message, by what it contains and by how many values are searched for.
//!
//! All rows are measured in one run, in turns, so that they can be compared. The first row is plain text.
//!
//! Run with `cargo bench -p cofferdam-scrub --bench scrub`, and for some rows only with `-- PART_OF_THEIR_NAMES`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![expect(clippy::print_stdout, reason = "the result of a benchmark is its output")]

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_scrub::{Needle, Scrubber};

const SIZE: usize = 128 << 10;
/// Many, because the least is taken: in some of them no other process disturbs the measurement.
const ROUNDS: usize = 400;

/// Pseudorandom numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn letters(&mut self, alphabet: &[u8], count: usize) -> String {
        (0..count).map(|_| char::from(alphabet[(self.next() >> 33) as usize % alphabet.len()])).collect()
    }
}

const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn prose(random: &mut Random, line_end: &str) -> String {
    const WORDS: [&str; 12] = [
        "the",
        "server",
        "answers",
        "with",
        "a",
        "list",
        "of",
        "files",
        "that",
        "it",
        "found,",
        "unfortunately",
    ];
    let mut text = String::new();
    let mut column = 0;
    while text.len() < SIZE {
        let word = WORDS[(random.next() >> 33) as usize % WORDS.len()];
        text.push_str(word);
        column += word.len() + 1;
        if column > 72 {
            text.push_str(line_end);
            column = 0;
        } else {
            text.push(' ');
        }
    }
    text
}

fn repeated(unit: &str) -> String {
    unit.repeat(SIZE / unit.len())
}

/// Each escape needs bytes that are escaped in another way.
const MIXED: &str = "%5Cu0025&#52;&#x31;\\\\u0025\\u0034";

/// The text as many strings of a message.
fn in_strings(text: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        // Not within an escape.
        let end = (1200.min(rest.len())..=rest.len())
            .find(|end| !rest[..*end].ends_with('\\') && !rest[..*end].rsplit('\\').next().is_some_and(|last| last.len() < 6))
            .unwrap_or(rest.len());
        let (part, others) = rest.split_at(end);
        parts.push(part);
        rest = others;
    }
    parts.join("\",\"text\":\"")
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn inputs() -> Vec<(&'static str, String)> {
    let random = &mut Random(0x9E37_79B9_7F4A_7C15);
    let prose_in_one_line = prose(random, " ");
    let prose_in_lines = prose(random, "\\n");
    let code = repeated(
        "    if (row[\\\"name\\\"] != null) {\\n        rows.push({name: row[\\\"name\\\"], path: \\\"/srv/data\\\"});\\n    }\\n",
    );
    let image = random.letters(LETTERS, SIZE);
    let mut wrapped = String::new();
    while wrapped.len() < SIZE {
        let line = random.letters(LETTERS, 76);
        let _ = write!(wrapped, "{line}\\n");
    }
    let numbers: String = (0..SIZE / 6).map(|at| format!("{:05},", (at * 7919) % 99_991)).collect();
    let random_hex = random.letters(b"0123456789abcdef", SIZE);
    let mut dump = String::new();
    while dump.len() < SIZE {
        let _ = write!(dump, "{} ", random.letters(b"0123456789abcdef", 2));
    }
    let nested = (0..6).fold("{\"a\":\"b\\u0041\"}".to_owned(), |inner, _| quoted(&inner));
    let nested = &nested[1..nested.len() - 1];
    let texty_in_all_phases = random.letters(b"VUEQFBRA", SIZE);
    vec![
        ("prose in one line", prose_in_one_line),
        ("prose in lines", prose_in_lines),
        ("source code", code),
        ("one letter repeated", repeated("x")),
        ("base64 of an image", image),
        ("base64 in lines", wrapped),
        ("numbers", numbers),
        ("hexadecimal", random_hex),
        ("hexadecimal with spaces", dump),
        ("escapes: \\\\u0041", repeated("\\u0041")),
        ("escaped backslashes", repeated("\\\\")),
        ("JSON in JSON, six deep", repeated(nested)),
        ("percent: %41", repeated("%41")),
        ("percent of percent", repeated("%2525252541")),
        ("entities: &#65;", repeated("&#65;")),
        ("mixed escapes", repeated(MIXED)),
        ("ampersands", repeated("&")),
        ("percent signs", repeated("%")),
        ("marks in turns", repeated("&%")),
        ("beginnings of entities", repeated("&a")),
        ("beginnings of escapes", repeated("%4\\\\u00")),
        ("line ends", repeated("\\n")),
        ("escaped NUL", repeated("\\u0000a")),
        ("base64 of text, by every phase", texty_in_all_phases.clone()),
        ("the same, in many strings", in_strings(&texty_in_all_phases)),
        ("mixed escapes, in many strings", in_strings(&repeated(MIXED))),
        ("base64 of base64", repeated("VmxaV1ZsWldWbFpXVmxaV1ZsWldWbFpXVmxaV")),
        ("base32", random.letters(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", SIZE)),
        ("lower-case letters", random.letters(b"abcdefghijklmnopqrstuvwxyz", SIZE)),
    ]
}

fn scrubber(values: usize) -> Arc<Scrubber> {
    let random = &mut Random(0xD1B5_4A32_D192_ED03);
    let needle = |number: usize| Needle {
        label: format!("server{number}.token").into(),
        value: format!("ghp_{}", random.letters(&LETTERS[..62], 36)).into_bytes().into(),
    };
    Arc::new(Scrubber::new((0..values).map(needle).collect()))
}

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let messages: Vec<(&str, Vec<u8>)> = inputs()
        .into_iter()
        .filter(|(name, _)| name.contains(&wanted))
        .map(|(name, text)| {
            (
                name,
                format!(
                    r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
                )
                .into_bytes(),
            )
        })
        .collect();
    let scrubbers = [("1 value", scrubber(1)), ("10,000 values", scrubber(10_000))];
    let mut times = vec![vec![Duration::MAX; scrubbers.len()]; messages.len()];
    let mut redactions = vec![0; messages.len()];
    for _ in 0..ROUNDS {
        for (((_, message), times), redactions) in messages.iter().zip(&mut times).zip(&mut redactions) {
            for ((_, scrubber), best) in scrubbers.iter().zip(times) {
                let start = Instant::now();
                let scrubbed = scrubber.message(message);
                *best = (*best).min(start.elapsed());
                *redactions = scrubbed.redactions;
            }
        }
    }
    println!(
        "{:32} {:>12} {:>10} {:>14}",
        "ns per byte (the least of all rounds)", "1 value", "of plain", "10,000 values"
    );
    let plain = times[0][0].as_secs_f64() / messages[0].1.len() as f64;
    for (((name, message), times), redactions) in messages.iter().zip(&times).zip(&redactions) {
        let per_byte = |time: Duration| time.as_secs_f64() / message.len() as f64;
        println!(
            "{name:35} {:>12.3} {:>9.1}x {:>14.3} {redactions:>3}",
            per_byte(times[0]) * 1e9,
            per_byte(times[0]) / plain,
            per_byte(times[1]) * 1e9,
        );
    }
}
