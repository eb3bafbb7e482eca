//! Values that work after their session, because their source cannot revoke them.
//!
//! What must stay true: an earlier value of a secret counts until it has expired; the number of remembered values is
//! bounded, and the one that is valid longest is never forgotten.

use tokio::time::Instant;

/// Values of one secret that are valid after the session, the newest and earlier ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutlivingValues {
    /// At least this many; see [`MAX_EARLIER_VALUES`].
    pub count: usize,
    pub until: ValidUntil,
}

/// Until when a value is valid if it is not revoked.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ValidUntil {
    Time(Instant),
    /// No expiry is known. Sorts after every time.
    Unknown,
}

/// The earlier values of one secret that may still be valid.
#[derive(Debug, Default)]
pub(super) struct EarlierValues(Vec<ValidUntil>);

/// More than a session has of one secret at a time: a value is usually replaced when most of its life is over.
const MAX_EARLIER_VALUES: usize = 64;

impl ValidUntil {
    pub fn time(self) -> Option<Instant> {
        match self {
            Self::Time(end) => Some(end),
            Self::Unknown => None,
        }
    }

    fn has_passed(self, now: Instant) -> bool {
        self.time().is_some_and(|end| end <= now)
    }
}

impl OutlivingValues {
    /// Combines the newest value, if it outlives the session, with the earlier ones. `None` if none outlives it.
    pub(super) fn of(newest: Option<ValidUntil>, earlier: &[ValidUntil], now: Instant) -> Option<Self> {
        let valid = || newest.into_iter().chain(earlier.iter().copied()).filter(|end| !end.has_passed(now));
        Some(Self { count: valid().count(), until: valid().max()? })
    }
}

impl EarlierValues {
    pub(super) fn add(&mut self, until: ValidUntil, now: Instant) {
        self.0.retain(|end| !end.has_passed(now));
        self.0.push(until);
        if self.0.len() > MAX_EARLIER_VALUES {
            let first_to_end = self.0.iter().enumerate().min_by_key(|(_, end)| **end);
            if let Some((index, _)) = first_to_end {
                self.0.swap_remove(index);
            }
        }
    }

    pub(super) fn as_slice(&self) -> &[ValidUntil] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_value_that_is_valid_longest_is_reported_and_expired_ones_are_not() {
        let now = Instant::now();
        let after = |seconds: u64| ValidUntil::Time(now + Duration::from_secs(seconds));
        assert_eq!(OutlivingValues::of(None, &[], now), None);
        assert_eq!(OutlivingValues::of(Some(after(0)), &[after(0)], now), None);
        let reported = |newest, earlier: &[ValidUntil]| {
            let outliving = OutlivingValues::of(newest, earlier, now).unwrap();
            (outliving.count, outliving.until)
        };
        assert_eq!(reported(Some(after(60)), &[after(0), after(90)]), (2, after(90)));
        assert_eq!(reported(Some(after(60)), &[ValidUntil::Unknown]), (2, ValidUntil::Unknown));
        assert_eq!(reported(None, &[after(5)]), (1, after(5)), "the newest value has a lease");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_earlier_values_is_bounded_and_the_longest_valid_one_is_kept() {
        let now = Instant::now();
        let mut earlier = EarlierValues::default();
        earlier.add(ValidUntil::Unknown, now);
        for seconds in (1..500).rev() {
            earlier.add(ValidUntil::Time(now + Duration::from_secs(seconds)), now);
        }
        assert_eq!(earlier.as_slice().len(), MAX_EARLIER_VALUES);
        assert!(earlier.as_slice().contains(&ValidUntil::Unknown));
        let longest = ValidUntil::Time(now + Duration::from_secs(499));
        assert!(earlier.as_slice().contains(&longest), "{earlier:?}");
        earlier.add(ValidUntil::Unknown, now + Duration::from_secs(600));
        assert_eq!(earlier.as_slice(), [ValidUntil::Unknown; 2]);
    }
}
