//! Reads the wall clock, which no other module does; formats times (RFC 3339, UTC, milliseconds) and parses them.
//!
//! This clock can jump, so durations and deadlines are measured with `tokio::time::Instant` instead.

use std::fmt;
use std::time::{Duration, SystemTime};

/// The wall-clock time.
#[expect(clippy::disallowed_methods, reason = "the only function that reads the wall clock")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// A time as text, without an allocation: `2026-11-16T02:16:03.123Z`.
///
/// Always 24 bytes, so that times sort as text. Times outside the years 1970 to 9999 are clamped.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub struct Rfc3339([u8; 24]);

impl Rfc3339 {
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and punctuation are ASCII")
    }

    pub fn as_bytes(&self) -> &[u8; 24] {
        &self.0
    }
}

impl From<SystemTime> for Rfc3339 {
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).min(LAST);
        let seconds = since_epoch.as_secs();
        let (year, month, day) = civil_from_days(seconds / 86_400);
        let second_of_day = seconds % 86_400;

        let mut text = *b"0000-00-00T00:00:00.000Z";
        put_digits(&mut text[0..4], year);
        put_digits(&mut text[5..7], month);
        put_digits(&mut text[8..10], day);
        put_digits(&mut text[11..13], second_of_day / 3600);
        put_digits(&mut text[14..16], second_of_day / 60 % 60);
        put_digits(&mut text[17..19], second_of_day % 60);
        put_digits(&mut text[20..23], u64::from(since_epoch.subsec_millis()));
        Self(text)
    }
}

impl fmt::Debug for Rfc3339 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

/// Parses a time of the years 1970 to 9999, with any offset. Fractions of a millisecond are dropped.
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    let number = |from: usize, digits: usize| -> Option<u64> {
        let digits = bytes.get(from..from + digits)?;
        let valid = digits.iter().all(u8::is_ascii_digit);
        valid.then(|| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
    };
    let one_of = |at: usize, allowed: &[u8]| bytes.get(at).filter(|byte| allowed.contains(byte)).map(drop);
    one_of(4, b"-")
        .and(one_of(7, b"-"))
        .and(one_of(10, b"Tt "))
        .and(one_of(13, b":"))
        .and(one_of(16, b":"))?;
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    // A leap second (60) is allowed, and counts as the second before it.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let fraction_length = match bytes.get(19) {
        Some(b'.') => bytes[20..].iter().take_while(|byte| byte.is_ascii_digit()).count() + 1,
        _ => 0,
    };
    let milliseconds = match fraction_length {
        1 => return None,
        0 => 0,
        length => {
            let digits = length.min(4) - 1;
            number(20, digits)? * 10_u64.pow(3 - digits as u32)
        }
    };
    let offset = 19 + fraction_length;
    let seconds_east = match (bytes.get(offset)?, bytes.len() - offset) {
        (b'Z' | b'z', 1) => 0,
        (sign @ (b'+' | b'-'), 6) => {
            one_of(offset + 3, b":")?;
            let (hours, minutes) = (number(offset + 1, 2)?, number(offset + 4, 2)?);
            let seconds = (hours * 3600 + minutes * 60) as i64;
            match (hours, minutes) {
                (0..24, 0..60) => {
                    if *sign == b'+' {
                        seconds
                    } else {
                        -seconds
                    }
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    let days = days_from_civil(year, month, day)?;
    let seconds =
        (days * 86_400 + hour * 3600 + minute * 60 + second.min(59)).checked_add_signed(-seconds_east)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(milliseconds))
}

/// The inverse of [`civil_from_days`]; `None` before 1970 and for a day that does not exist.
fn days_from_civil(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year_from_march = year - u64::from(month <= 2);
    let (era, year_of_era) = (year_from_march / 400, year_from_march % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    (civil_from_days(days) == (year, month, day)).then_some(days)
}

/// 9999-12-31T23:59:59.999Z, the last time with a year of four digits.
const LAST: Duration = Duration::from_millis(253_402_300_799_999);

/// Converts days since 1970-01-01 to year, month and day.
///
/// Years are counted from March, so that the leap day is the last day of a year. 400 such years always have 146,097
/// days. From March on the month lengths 31, 30, 31, 30, 31 repeat: 153 is the number of days in five months.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_FROM_0000_03_01: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_FROM_0000_03_01;
    let era = days / DAYS_IN_400_YEARS;
    let day_of_era = days % DAYS_IN_400_YEARS;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

fn put_digits(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(milliseconds: u64) -> String {
        Rfc3339::from(SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)).to_string()
    }

    #[test]
    fn known_times_are_formatted_as_rfc_3339() {
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(text(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(text(951_868_800_001), "2000-03-01T00:00:00.001Z");
        assert_eq!(text(1_234_567_890_123), "2009-02-13T23:31:30.123Z");
        assert_eq!(text(4_107_542_399_000), "2100-02-28T23:59:59.000Z");
        assert_eq!(text(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn times_with_any_offset_are_parsed_and_invalid_ones_refused() {
        for milliseconds in [0, 951_782_399_999, 951_782_400_000, 1_234_567_890_123, 253_402_300_799_999] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
            assert_eq!(parse_rfc3339(&text(milliseconds)), Some(time), "{milliseconds}");
        }
        let reformatted = |text: &str| parse_rfc3339(text).map(|time| Rfc3339::from(time).to_string());
        for (text, expected) in [
            ("2026-11-18T09:30:00Z", "2026-11-18T09:30:00.000Z"),
            ("2026-11-18t09:30:00z", "2026-11-18T09:30:00.000Z"),
            ("2026-11-18 09:30:00.5Z", "2026-11-18T09:30:00.500Z"),
            ("2026-11-18T09:30:00.123456789Z", "2026-11-18T09:30:00.123Z"),
            ("2026-11-18T09:30:00+05:30", "2026-11-18T04:00:00.000Z"),
            ("2026-12-31T23:30:00-01:00", "2027-01-01T00:30:00.000Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(reformatted(text).as_deref(), Some(expected), "{text}");
        }
        for invalid in [
            "",
            "2026-11-18",
            "2026-11-18T09:30:00",
            "2026-11-18T09:30Z",
            "2026-11-18T09:30:00.Z",
            "2026-11-18T09:30:00Zulu",
            "2026-02-29T09:30:00Z",
            "2026-00-18T09:30:00Z",
            "2026-11-18T24:30:00Z",
            "2026-11-18T09:30:00+24:00",
            "2026-11-18T09:30:00+0530",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+026-11-18T09:30:00Z",
            "2026-11-18T09:30:0äZ",
            "1763458200",
        ] {
            assert_eq!(parse_rfc3339(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn all_days_of_400_years_are_converted_in_both_directions() {
        let is_leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let mut expected = (1970, 1, 1);
        for days in 0..400 * 366 {
            assert_eq!(civil_from_days(days), expected, "day {days}");
            assert_eq!(days_from_civil(expected.0, expected.1, expected.2), Some(days));
            let (year, month, day) = expected;
            let length = match month {
                2 if is_leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == length => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }

    #[test]
    fn times_outside_four_digit_years_are_clamped() {
        assert_eq!(text(u64::MAX / 2), "9999-12-31T23:59:59.999Z");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Rfc3339::from(before).as_str(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn now_is_after_the_year_2024() {
        assert!(Rfc3339::from(now()).as_str() > "2025-01-01");
    }
}
