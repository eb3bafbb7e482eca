//! Durations as text: `500ms`, `20s`, `2h30m`.
//!
//! What must stay true: [`parse`] reads the output of [`write`] as the same duration, in whole milliseconds.

use std::fmt;
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
