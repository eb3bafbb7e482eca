//! Formats numbers for the report.

use std::time::Duration;

pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s < 1e-3 => format!("{} µs", rounded(s * 1e6)),
        s if s < 1.0 => format!("{} ms", rounded(s * 1e3)),
        s => format!("{} s", rounded(s)),
    }
}

pub(super) fn megabytes(bytes: u64) -> String {
    format!("{} MB", rounded(bytes as f64 / 1e6))
}

/// Formats a number with a thin space between the thousands.
pub(super) fn grouped(number: u64) -> String {
    let plain = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in plain.chars().enumerate() {
        if index > 0 && (plain.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

pub(super) fn rate(per_second: f64) -> String {
    match per_second < 100.0 {
        true => rounded(per_second),
        false => grouped(per_second.round() as u64),
    }
}

/// About three significant digits: two below 1 (0.36), and a whole number from 100.
pub(super) fn rounded(number: f64) -> String {
    match number.abs() {
        n if n > 0.0 && n < 0.0995 => {
            let places = 1 - n.log10().floor() as i32;
            format!("{number:.*}", usize::try_from(places).unwrap_or(2).min(9))
        }
        n if n < 9.995 => format!("{number:.2}"),
        n if n < 99.95 => format!("{number:.1}"),
        _ => grouped(number.round() as u64),
    }
}

/// Replaces absolute paths by their last part: a report names no directories of the machine.
pub(super) fn without_directories(text: &str) -> String {
    let ends_path = |letter: char| letter.is_whitespace() || "\"'`,;:()[]{}<>".contains(letter);
    let mut out = String::new();
    let mut rest = text;
    let mut before = ' ';
    while let Some(letter) = rest.chars().next() {
        let starts_path = letter == '/' && (ends_path(before) || before == '=') && !rest.starts_with("//");
        let length = match starts_path {
            true => rest.find(ends_path).unwrap_or(rest.len()),
            false => letter.len_utf8(),
        };
        let (piece, after) = rest.split_at(length);
        out.push_str(if starts_path { piece.rsplit('/').next().unwrap_or_default() } else { piece });
        before = letter;
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_times_have_a_unit() {
        assert_eq!(time(Duration::from_nanos(9_994)), "9.99 µs");
        assert_eq!(time(Duration::from_nanos(9_996)), "10.0 µs");
        assert_eq!(time(Duration::from_micros(2_346)), "2.35 ms");
        assert_eq!(time(Duration::from_millis(1_500)), "1.50 s");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(rounded(0.000_462), "0.00046");
        assert_eq!(rounded(0.36), "0.36");
        assert_eq!(rate(45_678.2), "45\u{202f}678");
    }

    #[test]
    fn paths_lose_their_directories_and_addresses_stay() {
        let text = "open /home/me/a.sock: unix:/run/x/b.sock, http://127.0.0.1:1/mcp and 1/2";
        assert_eq!(without_directories(text), "open a.sock: unix:b.sock, http://127.0.0.1:1/mcp and 1/2");
    }
}
