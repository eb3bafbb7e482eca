//! Replaces what differs from run to run by constants of the same width, so that columns and line ends stay as they were.

/// What is replaced: `9` stands for a decimal digit, `f` for a lower-case hexadecimal one, anything else for itself.
const PATTERNS: &[(&str, &str)] = &[
    ("9999-99-99T99:99:99.999Z", "2026-11-18T12:00:00.000Z"),
    ("9999-99-99T99:99:99", "2026-11-18T12:00:00"),
    ("9999-99-99 99:99:99", "2026-11-18 12:00:00"),
    ("99:99:99", "12:00:00"),
    ("effffffffffffffff", "e0123456789abcdef"),
    ("lffffffffffffffff", "l0123456789abcdef"),
    ("sffffffffffffffff", "s0123456789abcdef"),
];

const NEXT_UPDATE: &str = "next update in ";

/// The screen with constant times, ids, process ids, durations and versions.
pub(crate) fn normalised(screen: &str, pids: &[String]) -> String {
    let text = with_pids(&screen.replace(env!("CARGO_PKG_VERSION"), "0.0.0"), pids);
    let mut found = String::with_capacity(text.len());
    let mut rest = text.as_str();
    // After a colour's code, which ends with a letter.
    let mut is_boundary = false;
    'outer: while let Some(character) = rest.chars().next() {
        if let Some(length) = colour_length(rest) {
            found.push_str(&rest[..length]);
            rest = &rest[length..];
            is_boundary = true;
            continue;
        }
        let follows_word = !is_boundary && found.ends_with(|last: char| last.is_ascii_alphanumeric());
        is_boundary = false;
        for (pattern, constant) in PATTERNS {
            if !follows_word && matches(rest, pattern) {
                found.push_str(constant);
                rest = &rest[pattern.len()..];
                continue 'outer;
            }
        }
        if !follows_word && let Some(length) = duration_length(rest) {
            found.push_str("1.0 ms");
            rest = &rest[length..];
            continue;
        }
        if let Some(after) = rest.strip_prefix(NEXT_UPDATE) {
            // When a credential is read again is chosen at random.
            found.push_str(NEXT_UPDATE);
            found.push_str("7d12h");
            rest = after.trim_start_matches(|character: char| character.is_ascii_alphanumeric());
            continue;
        }
        found.push(character);
        rest = &rest[character.len_utf8()..];
    }
    found
}

fn matches(text: &str, pattern: &str) -> bool {
    let text = text.as_bytes();
    pattern.bytes().enumerate().all(|(index, expected)| {
        let Some(byte) = text.get(index) else { return false };
        match expected {
            b'9' => byte.is_ascii_digit(),
            b'f' => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'),
            literal => *byte == literal,
        }
    })
}

/// The length of the code of a colour at the beginning of the text.
fn colour_length(text: &str) -> Option<usize> {
    text.strip_prefix("\u{1b}[")?;
    text.find('m').map(|end| end + 1)
}

/// The length of `12.3 ms`, `999 µs` or `1.0 s` at the beginning of the text.
fn duration_length(text: &str) -> Option<usize> {
    let number = text.find(|character: char| !character.is_ascii_digit() && character != '.')?;
    let unit = [" ms", " µs", " s"].into_iter().find(|unit| text[number..].starts_with(unit))?;
    let after = text[number + unit.len()..].chars().next();
    let is_whole = number > 0 && after.is_none_or(|character| !character.is_alphanumeric());
    is_whole.then_some(number + unit.len())
}

/// The column of process ids is as wide as the longest: it becomes as wide as for five digits.
fn with_pids(text: &str, pids: &[String]) -> String {
    let shown = pids.iter().map(String::len).max().unwrap_or_default().max("PID".len());
    let mut text = text.to_owned();
    for pid in pids {
        text = text.replace(&format!("  {pid:<shown$}"), "  12345");
        text = text.replace(&format!("process {pid}"), "process 12345");
    }
    // A title has the codes that end its style before the spaces.
    for end in ["", "\u{1b}[0m\u{1b}[39m\u{1b}[49m"] {
        let spaces = " ".repeat(shown - "PID".len());
        text = text.replace(&format!("PID{end}{spaces}  "), &format!("PID{end}    "));
    }
    text
}
