//! Reads the clock; no other module does.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures real time, and reads the clock only here"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Today in UTC, as `2026-01-31`.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made")]
pub(crate) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// A point in time until which something must be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(time: Duration) -> Self {
        Self(now() + time)
    }

    /// The deadline that is `time` after this one.
    pub(crate) fn later(self, time: Duration) -> Self {
        Self(self.0 + time)
    }

    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }
}

/// Days since 1970 as a date of the Gregorian calendar, counted from the first of March so that leap days come last.
fn date(days: u64) -> String {
    let days = days + 719_468; // from 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_around_leap_days() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(11_017), "2000-03-01");
        assert_eq!(date(20_088), "2024-12-31");
    }
}
