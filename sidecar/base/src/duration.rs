//! Durations as text: `500ms`, `20s`, `2h30m`.
//!
//! What must stay true: [`parse`] reads the output of [`write`] as the same duration, in whole milliseconds.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// The units in milliseconds, largest first: the parts of a duration are written in this order, each at most once.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// What [`parse`] expects, for error messages.
pub const EXPECTED: &str = "a duration such as \"500ms\", \"20s\" or \"2h30m\"";

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected {EXPECTED}")]
pub struct InvalidDuration;

pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let mut units = UNITS.iter();
    let mut milliseconds = 0_u64;
    let mut rest = text;
    loop {
        let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| InvalidDuration)?;
        let unit_end = after.find(|character: char| character.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let (_, scale) = units.find(|(name, _)| *name == unit).ok_or(InvalidDuration)?;
        let part = number.checked_mul(*scale).ok_or(InvalidDuration)?;
        milliseconds = milliseconds.checked_add(part).ok_or(InvalidDuration)?;
        if after.is_empty() {
            return Ok(Duration::from_millis(milliseconds));
        }
        rest = after;
    }
}

/// Writes whole milliseconds; smaller parts are dropped.
pub fn write(duration: Duration, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut rest = duration.as_millis();
    if rest == 0 {
        return f.write_str("0s");
    }
    for (name, scale) in UNITS {
        let number = rest / u128::from(scale);
        rest %= u128::from(scale);
        if number > 0 {
            write!(f, "{number}{name}")?;
        }
    }
    Ok(())
}

/// The two largest units of a duration, rounded down to whole seconds: `99d23h`, `7h59m`, `45s`. For people: a list of expiry
/// times needs no seconds where days are left.
pub fn rounded(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = UNITS.map(|(name, milliseconds)| (name, milliseconds / 1000));
    let Some(first) = units.iter().position(|(_, scale)| *scale > 0 && seconds >= *scale) else {
        return "0s".to_owned();
    };
    let mut rest = seconds;
    let mut text = String::new();
    for (name, scale) in units.iter().skip(first).take(2).filter(|(_, scale)| *scale > 0) {
        let number = rest / scale;
        rest %= scale;
        if number > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{number}{name}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_duration_has_at_most_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (1, "1s"),
            (59, "59s"),
            (60, "1m"),
            (252, "4m12s"),
            (3600, "1h"),
            (3601, "1h"),
            (28_799, "7h59m"),
            (28_800, "8h"),
            (86_400, "1d"),
            (86_459, "1d"),
            (8_636_400, "99d23h"),
        ] {
            assert_eq!(rounded(Duration::from_secs(seconds)), text);
        }
        assert_eq!(rounded(Duration::from_millis(999)), "0s");
        assert_eq!(parse("99d23h"), Ok(Duration::from_secs(8_636_400)));
    }
}
