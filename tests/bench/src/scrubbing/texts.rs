//! The texts that are scrubbed: what servers usually send, and what takes long.

use std::fmt::Write as _;

/// About the length of each text.
pub(super) const SIZE: usize = 1 << 20;

/// Pseudorandom numbers that are the same in each run.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    pub(super) fn letters(&mut self, alphabet: &[u8], count: usize) -> String {
        (0..count).map(|_| char::from(alphabet[self.below(alphabet.len())])).collect()
    }
}

pub(super) const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn prose(random: &mut Random, line_end: &str, size: usize) -> String {
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
    while text.len() < size {
        let word = WORDS[random.below(WORDS.len())];
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

/// As many strings of a message with this text as fit.
fn in_strings(text: &str) -> String {
    let separator = r#"","text":""#;
    vec![text; SIZE / (text.len() + separator.len())].join(separator)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Each kind of text, as the inside of a JSON string. The first is the plain text that the others are compared with.
pub(super) fn texts() -> Vec<(&'static str, String)> {
    let random = &mut Random(0x9E37_79B9_7F4A_7C15);
    let prose_in_one_line = prose(random, " ", SIZE);
    let prose_in_lines = prose(random, "\\n", SIZE);
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
        ("prose in lines", prose_in_lines),
        ("prose in one line", prose_in_one_line),
        ("source code", code),
        ("one letter repeated", repeated("x")),
        ("base64 of an image", image),
        ("base64 in lines", wrapped),
        ("numbers", numbers),
        ("hexadecimal", random_hex),
        ("hexadecimal with spaces", dump),
        ("letters as escapes", repeated("\\u0041")),
        ("escaped backslashes", repeated("\\\\")),
        ("JSON in JSON, six deep", repeated(nested)),
        ("letters, percent-encoded", repeated("%41")),
        ("the same, encoded repeatedly", repeated("%2525252541")),
        ("letters as entities", repeated("&#65;")),
        ("mixed escapes", repeated(MIXED)),
        ("ampersands", repeated("&")),
        ("percent signs", repeated("%")),
        ("marks in turns", repeated("&%")),
        ("beginnings of entities", repeated("&a")),
        ("beginnings of escapes", repeated("%4\\\\u00")),
        ("line ends", repeated("\\n")),
        ("escaped NUL", repeated("\\u0000a")),
        ("base64 of text, whichever letter it begins with", texty_in_all_phases.clone()),
        ("the same, in many strings", in_strings(&texty_in_all_phases[..1200])),
        ("mixed escapes, in many strings", in_strings(&MIXED.repeat(40))),
        ("base64 of base64", repeated("VmxaV1ZsWldWbFpXVmxaV1ZsWldWbFpXVmxaV")),
        ("digits in three encodings at once", repeated(&format!("{}.", "4".repeat(48)))),
        ("the same in short runs", repeated(&format!("{}.", "4".repeat(24)))),
        ("base64 of NUL bytes after percent signs", repeated("%2AAAAAAAAAAAAAAAAAAb_")),
        ("base64 of words, percent-encoded blanks", repeated("VGhlIHF1aWNrIGJyb3du%20")),
        ("base32", random.letters(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", SIZE)),
        ("lower-case letters", random.letters(b"abcdefghijklmnopqrstuvwxyz", SIZE)),
    ]
}
