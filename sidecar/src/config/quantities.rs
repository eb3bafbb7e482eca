//! Durations, sizes and counts in the file: `2h30m`, `64KiB`, `256`.
//!
//! What must stay true: the printed form of a value parses to the same value.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use cofferdam_base::duration::{self, InvalidDuration};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

const SIZE_EXPECTED: &str = "a size such as \"64KiB\" or \"10MiB\", or a number of bytes";
const COUNT_EXPECTED: &str = "a whole number, zero or more";

const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RawDuration(pub(super) Duration);

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RawSize(pub(super) u64);

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RawCount(pub(super) u64);

/// A text that is not such a quantity. Holds a description of what was expected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected {0}")]
pub(super) struct InvalidQuantity(&'static str);

impl FromStr for RawDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        duration::parse(text).map(Self)
    }
}

impl FromStr for RawSize {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = InvalidQuantity(SIZE_EXPECTED);
        let (number, unit) = leading_number(text).ok_or(invalid)?;
        let (_, scale) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or(invalid)?;
        number.checked_mul(*scale).map(Self).ok_or(invalid)
    }
}

impl FromStr for RawCount {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| InvalidQuantity(COUNT_EXPECTED))
    }
}

impl fmt::Display for RawDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        duration::write(self.0, f)
    }
}

impl fmt::Display for RawSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole =
            SIZE_UNITS.into_iter().find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale));
        let (name, scale) = whole.unwrap_or(("B", 1));
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl fmt::Display for RawCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

struct DurationVisitor;
struct SizeVisitor;
struct CountVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = RawDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(duration::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RawDuration, E> {
        text.parse().map_err(E::custom)
    }
}

impl Visitor<'_> for SizeVisitor {
    type Value = RawSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SIZE_EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RawSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawSize, E> {
        u64::try_from(number).map(RawSize).map_err(|_| E::custom(InvalidQuantity(SIZE_EXPECTED)))
    }
}

impl Visitor<'_> for CountVisitor {
    type Value = RawCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(COUNT_EXPECTED)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawCount, E> {
        u64::try_from(number).map(RawCount).map_err(|_| E::custom(InvalidQuantity(COUNT_EXPECTED)))
    }
}

impl<'de> Deserialize<'de> for RawDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

impl<'de> Deserialize<'de> for RawSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl<'de> Deserialize<'de> for RawCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

impl JsonSchema for RawDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A duration in days, hours, minutes, seconds and milliseconds, largest first.",
            "pattern": "^([0-9]+(d|h|m|s|ms))+$",
            "examples": ["500ms", "20s", "2h30m"]
        })
    }
}

impl JsonSchema for RawSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size with its unit, or a number of bytes.",
            "anyOf": [
                { "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$" },
                { "type": "integer", "minimum": 0 }
            ],
            "examples": ["64KiB", "10MiB"]
        })
    }
}

impl JsonSchema for RawCount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}

fn leading_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_parse_with_their_units_in_order() {
        for (text, milliseconds) in [
            ("5m", 300_000),
            ("2h30m", 9_000_000),
            ("20s", 20_000),
            ("500ms", 500),
            ("1d1ms", 86_400_001),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(RawDuration(Duration::from_millis(milliseconds))), "{text}");
        }
        for text in [
            "",
            "5",
            "m",
            "5 m",
            "-5m",
            "5m2h",
            "5m5m",
            "1.5h",
            "5min",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            assert!(text.parse::<RawDuration>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_parse_with_binary_units() {
        for (text, bytes) in [("10MiB", 10 << 20), ("64KiB", 64 << 10), ("1GiB", 1 << 30), ("7B", 7)] {
            assert_eq!(text.parse(), Ok(RawSize(bytes)), "{text}");
        }
        for text in ["", "10", "10MB", "10 MiB", "MiB", "-1KiB", "99999999999999999999B", "99999999999999GiB"]
        {
            assert!(text.parse::<RawSize>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_values_parse_to_the_same_value(milliseconds in 0_u64..10_000_000_000, bytes in 0_u64..1 << 40) {
            let (time, size) = (RawDuration(Duration::from_millis(milliseconds)), RawSize(bytes));
            prop_assert_eq!(time.to_string().parse(), Ok(time));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
