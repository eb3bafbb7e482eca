//! Which values a session's scrubber searches for: every value that the session has read, except those that ended long ago.
//!
//! A session of eight hours with a credential of five seconds reads some ten thousand values. All sessions together would
//! hold too many to be kept in memory and indexed. So only the newest [`MAX_ENDED`] of the values that have
//! ended (expired, or revoked with their token or lease) are kept, and the newest [`MAX_KV_VERSIONS`] of key-value secrets,
//! whose former versions have no known end.
//!
//! What must stay true: a value that may still be valid is never forgotten, except the oldest key-value versions beyond
//! that limit.

use std::collections::HashSet;

use tokio::time::Instant;

use super::source::ValueEnd;
use cofferdam_scrub::Needle;

/// The number of ended values: those of the last minutes if there is a new credential every few seconds.
const MAX_ENDED: usize = 256;
/// The number of values of key-value secrets.
const MAX_KV_VERSIONS: usize = 512;

/// The values to search for, by the time when each was last added, oldest first.
#[derive(Default)]
pub(super) struct KnownValues(Vec<KnownValue>);

struct KnownValue {
    needle: Needle,
    end: ValueEnd,
    in_log: InLog,
}

/// Whether the log scrubber holds the value for this session. The log scrubber itself retains a limited number of released
/// values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum InLog {
    Held,
    Released,
}

/// The changes that new values require of the scrubbers.
pub(super) struct ScrubberChanges {
    pub(super) scrubber: ScrubberUpdate,
    /// Values that the log scrubber has to hold from now on.
    pub(super) added_to_log: Vec<Needle>,
    /// Values that the log scrubber need not hold any longer.
    pub(super) removed_from_log: Vec<Needle>,
}

/// Whether the session's scrubber has to be built again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ScrubberUpdate {
    Unchanged,
    Rebuild,
}

impl KnownValues {
    /// Adds values to search for. Adding a known value again makes it the newest.
    pub(super) fn add(&mut self, needles: &[Needle], end: ValueEnd, now: Instant) -> ScrubberChanges {
        let mut scrubber = ScrubberUpdate::Unchanged;
        let mut added_to_log = Vec::new();
        for needle in needles {
            let known = self.0.iter().position(|value| value.needle.value == needle.value);
            let value = match known.map(|at| self.0.remove(at)) {
                // The same value from a source without expiry stays valid when this credential ends.
                Some(before) if matches!(before.end, ValueEnd::Unknown) => before,
                Some(before) => {
                    if before.in_log == InLog::Released {
                        added_to_log.push(before.needle.clone());
                    }
                    KnownValue { end: end.clone(), in_log: InLog::Held, ..before }
                }
                None => {
                    scrubber = ScrubberUpdate::Rebuild;
                    added_to_log.push(needle.clone());
                    KnownValue { needle: needle.clone(), end: end.clone(), in_log: InLog::Held }
                }
            };
            self.0.push(value);
        }
        let removed_from_log = match scrubber {
            ScrubberUpdate::Unchanged => Vec::new(),
            ScrubberUpdate::Rebuild => self.forget_oldest(now),
        };
        ScrubberChanges { scrubber, added_to_log, removed_from_log }
    }

    /// The values that the log scrubber holds for this session.
    pub(super) fn held_by_log(&self) -> Vec<Needle> {
        let held = self.0.iter().filter(|value| value.in_log == InLog::Held);
        held.map(|value| value.needle.clone()).collect()
    }

    pub(super) fn needles(&self) -> Vec<Needle> {
        self.0.iter().map(|value| value.needle.clone()).collect()
    }

    /// Removes the oldest values beyond the limits. Returns those that the log scrubber need not hold any longer.
    fn forget_oldest(&mut self, now: Instant) -> Vec<Needle> {
        let mut removed_from_log = Vec::new();
        for value in &mut self.0 {
            if value.in_log == InLog::Held && value.end.has_ended(now) {
                value.in_log = InLog::Released;
                removed_from_log.push(value.needle.clone());
            }
        }
        let mut too_many: HashSet<usize> = HashSet::new();
        let mut mark_beyond = |limit: usize, applies: &dyn Fn(&KnownValue) -> bool| {
            let chosen: Vec<usize> =
                self.0.iter().enumerate().filter(|(_, value)| applies(value)).map(|(at, _)| at).collect();
            too_many.extend(&chosen[..chosen.len().saturating_sub(limit)]);
        };
        mark_beyond(MAX_ENDED, &|value| value.end.has_ended(now));
        mark_beyond(MAX_KV_VERSIONS, &|value| matches!(value.end, ValueEnd::UnknownForKvVersion));
        let mut at = 0..;
        let gone = self.0.extract_if(.., |_| at.next().is_some_and(|at| too_many.contains(&at)));
        removed_from_log.extend(gone.filter(|value| value.in_log == InLog::Held).map(|value| value.needle));
        removed_from_log
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zeroize::Zeroizing;

    use super::*;

    fn needle(value: &str) -> Needle {
        Needle { label: "some.value".into(), value: Zeroizing::new(value.into()) }
    }

    fn add(known: &mut KnownValues, value: &str, end: ValueEnd) -> ScrubberChanges {
        known.add(&[needle(value)], end, Instant::now())
    }

    fn has(known: &KnownValues, value: &str) -> bool {
        known.0.iter().any(|known| **known.needle.value == *value.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn ended_values_are_searched_for_some_time_and_then_forgotten_oldest_first() {
        let mut known = KnownValues::default();
        add(&mut known, "from-a-file", ValueEnd::Unknown);
        add(&mut known, "a-former-version", ValueEnd::UnknownForKvVersion);
        add(&mut known, "still-used", ValueEnd::At(Instant::now() + Duration::from_secs(1_000_000)));
        let (mut held, mut removed_from_log) = (0, 0);
        for number in 0..10_000 {
            let end = Instant::now() + Duration::from_secs(5);
            let changes = add(&mut known, &format!("passing-{number}"), ValueEnd::At(end));
            held += changes.added_to_log.len();
            removed_from_log += changes.removed_from_log.len();
            tokio::time::advance(Duration::from_secs(3)).await;
            assert!(known.0.len() <= MAX_ENDED + 5, "{}", known.0.len());
        }
        // Each value that was added to the log scrubber is removed from it exactly once.
        assert_eq!(held, 10_000);
        assert_eq!(removed_from_log + known.held_by_log().len(), 10_003);
        assert!(known.held_by_log().len() < 8, "{}", known.held_by_log().len());
        for value in ["from-a-file", "a-former-version", "still-used", "passing-9999", "passing-9800"] {
            assert!(has(&known, value), "{value}");
        }
        assert!(!has(&known, "passing-9000"));
    }

    #[tokio::test(start_paused = true)]
    async fn former_versions_of_key_value_secrets_have_a_separate_limit() {
        let mut known = KnownValues::default();
        for number in 0..2 * MAX_KV_VERSIONS {
            add(&mut known, &format!("version-{number}"), ValueEnd::UnknownForKvVersion);
            // A second secret is read again as often and does not change.
            add(&mut known, "the-other", ValueEnd::UnknownForKvVersion);
        }
        assert_eq!(known.0.len(), MAX_KV_VERSIONS);
        assert!(has(&known, "the-other") && has(&known, &format!("version-{}", MAX_KV_VERSIONS + 10)));
        assert!(!has(&known, "version-0"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_is_added_again_needs_no_rebuild_and_stays_longer() {
        let mut known = KnownValues::default();
        let now = Instant::now();
        let first = add(&mut known, "renewed", ValueEnd::At(now + Duration::from_secs(5)));
        assert_eq!((first.scrubber, first.added_to_log.len()), (ScrubberUpdate::Rebuild, 1));
        let again = add(&mut known, "renewed", ValueEnd::At(now + Duration::from_secs(50)));
        assert_eq!((again.scrubber, again.added_to_log.len()), (ScrubberUpdate::Unchanged, 0));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!known.0[0].end.has_ended(Instant::now()));
        add(&mut known, "from-a-file", ValueEnd::Unknown);
        add(&mut known, "from-a-file", ValueEnd::At(now));
        assert!(known.0.iter().all(|value| !value.end.has_ended(Instant::now())));
    }
}
