//! The values of all sessions, which the log and every link search for.
//!
//! A server may return the credential of another one, for instance by reading a file that holds it. So there is one set
//! for the whole sidecar; each reader has its own view of it (see [`Naming`]).
//!
//! With many sessions there are thousands of values, and a few new ones each second. Values are therefore kept in
//! generations: a new value is added to the smallest index, which is merged into the next larger one when it has grown.
//!
//! What must stay true: a value is found from the moment that [`SharedValues::learn`] returns, as long as any session
//! holds it, and for some time after, because a session's last messages and log lines are written late. The number of
//! values that no session holds is bounded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::generations::Generations;
use crate::value_index::ValueIndex;
use crate::{Naming, Needle, Scrubber, ValueId};

pub struct SharedValues {
    known: Mutex<KnownValues>,
    /// The indexes of the generations, the smallest first.
    indexes: ArcSwap<Generations>,
    /// Values were added since the indexes were built. The next search rebuilds the smallest, once for all new values.
    stale: AtomicBool,
}

#[derive(Default)]
struct KnownValues {
    values: HashMap<Digest, KnownValue>,
    /// The values of each generation, those of the smallest first.
    generations: [Vec<Digest>; GENERATIONS],
    /// Values that no session holds, oldest first.
    released: VecDeque<Digest>,
    /// How many different values were learned.
    learned: u64,
}

struct KnownValue {
    id: ValueId,
    needle: Needle,
    holders: usize,
}

/// SHA-256 of a value. It never leaves this module.
type Digest = [u8; SHA256_OUTPUT_LEN];

const GENERATIONS: usize = 3;

/// With more values than this a generation is merged into the next. Building an index takes some milliseconds per
/// thousand values.
const MAX_IN_GENERATION: [usize; GENERATIONS - 1] = [64, 1024];

/// The maximum number of values that are searched for although no session holds them: enough for the late log lines of
/// about a hundred sessions.
const MAX_RELEASED: usize = 1024;

impl Default for SharedValues {
    fn default() -> Self {
        let empty = || Arc::new(ValueIndex::new(&[]));
        Self {
            known: Mutex::default(),
            indexes: ArcSwap::from_pointee(Generations::new(Box::new([empty(), empty(), empty()]))),
            stale: AtomicBool::new(false),
        }
    }
}

impl SharedValues {
    /// A scrubber for all values that are known now.
    pub fn scrubber(&self, naming: Naming) -> Scrubber {
        if self.stale.load(Ordering::Acquire) {
            let mut known = self.lock();
            // Another thread may have rebuilt them while this one waited for the lock.
            if self.stale.load(Ordering::Acquire) {
                let indexes = known.rebuilt(&self.indexes.load());
                self.indexes.store(Arc::new(indexes));
                self.stale.store(false, Ordering::Release);
            }
        }
        Scrubber { indexes: self.indexes.load_full(), naming }
    }

    /// Adds one holder to each value. Sessions that share a secret share its entry.
    pub fn learn(&self, needles: &[Needle]) {
        let mut known = self.lock();
        let KnownValues { values, generations, released, learned } = &mut *known;
        if generations[0].len() > 4 * MAX_RELEASED {
            // Many values were added and released without a search in between.
            generations[0].retain(|key| values.contains_key(key));
        }
        for needle in needles {
            let key = key(needle);
            match values.entry(key) {
                Entry::Occupied(mut value) => {
                    if value.get().holders == 0 {
                        released.retain(|other| *other != key);
                    }
                    value.get_mut().holders += 1;
                }
                Entry::Vacant(vacant) => {
                    let id = ValueId(*learned);
                    *learned += 1;
                    vacant.insert(KnownValue { id, needle: needle.clone(), holders: 1 });
                    generations[0].push(key);
                    self.stale.store(true, Ordering::Release);
                }
            }
        }
    }

    /// The ids of those values that are known.
    pub fn ids(&self, needles: &[Needle]) -> Vec<Option<ValueId>> {
        let known = self.lock();
        needles.iter().map(|needle| known.values.get(&key(needle)).map(|value| value.id)).collect()
    }

    /// Removes one holder from each value. The indexes are not rebuilt for that, only for new values.
    pub fn release(&self, needles: &[Needle]) {
        let mut known = self.lock();
        let KnownValues { values, released, .. } = &mut *known;
        for needle in needles {
            let key = key(needle);
            let Some(value) = values.get_mut(&key) else { continue };
            value.holders -= 1;
            if value.holders == 0 {
                released.push_back(key);
            }
        }
        while released.len() > MAX_RELEASED {
            if let Some(oldest) = released.pop_front() {
                values.remove(&oldest);
            }
        }
    }

    /// May be poisoned, because holders are released while a panic unwinds. Every step under this lock leaves the
    /// values consistent.
    fn lock(&self) -> MutexGuard<'_, KnownValues> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownValues {
    /// The indexes with all values, of which those that did not change are taken from `before`.
    fn rebuilt(&mut self, before: &[Arc<ValueIndex>]) -> Generations {
        let Self { values, generations, .. } = self;
        let mut changed = 0;
        while changed < MAX_IN_GENERATION.len() && generations[changed].len() > MAX_IN_GENERATION[changed] {
            let mut grown = std::mem::take(&mut generations[changed]);
            changed += 1;
            grown.retain(|key| values.contains_key(key));
            generations[changed].append(&mut grown);
        }
        generations[changed].retain(|key| values.contains_key(key));
        let rebuild = |(number, keys): (usize, &Vec<Digest>)| match number > changed {
            true => Arc::clone(&before[number]),
            false => {
                let needle = |key| values.get(key).map(|value: &KnownValue| (value.id, value.needle.clone()));
                Arc::new(ValueIndex::new(&keys.iter().filter_map(needle).collect::<Vec<_>>()))
            }
        };
        Generations::new(generations.iter().enumerate().map(rebuild).collect())
    }
}

fn key(needle: &Needle) -> Digest {
    let digest = digest(&SHA256, &needle.value);
    digest.as_ref().try_into().expect("SHA-256 has this length")
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::OwnNames;

    fn needle(value: &str) -> Needle {
        Needle { label: "some.value".into(), value: Zeroizing::new(value.into()) }
    }

    /// A session that holds this value.
    struct Holder<'a>(&'a SharedValues, Needle);

    impl Drop for Holder<'_> {
        fn drop(&mut self) {
            self.0.release(std::slice::from_ref(&self.1));
        }
    }

    fn hold<'a>(log: &'a SharedValues, value: &str) -> Holder<'a> {
        log.learn(&[needle(value)]);
        Holder(log, needle(value))
    }

    fn scrubs(log: &SharedValues, value: &str) -> bool {
        log.scrubber(Naming::All).text(format!("it is {value}.").as_bytes()).redactions == 1
    }

    #[test]
    fn a_value_is_scrubbed_while_a_session_holds_it_and_for_some_time_after() {
        let log = SharedValues::default();
        let first = hold(&log, "shared-value-1");
        let second = hold(&log, "shared-value-1");
        assert!(scrubs(&log, "shared-value-1"));
        drop(first);
        // A value that a session holds stays, however many others are released.
        for number in 0..2 * MAX_RELEASED {
            drop(hold(&log, &format!("passing-value-{number}")));
        }
        assert!(scrubs(&log, "shared-value-1"));
        assert!(
            scrubs(&log, &format!("passing-value-{}", 2 * MAX_RELEASED - 1)),
            "a value that was released last is not scrubbed"
        );
        drop(second);
        let _newest = hold(&log, "newest-value");
        assert!(scrubs(&log, "shared-value-1"));
    }

    #[test]
    fn overlapping_values_of_both_scrubbers_are_removed_whole() {
        let log = SharedValues::default();
        let _long = hold(&log, "the-long-one-with-the-short-one-in-it");
        let mut others = Vec::new();
        for number in 0..=MAX_IN_GENERATION[0] {
            others.push(hold(&log, &format!("passing-value-{number}")));
        }
        log.scrubber(Naming::All);
        let _short = hold(&log, "the-short-one");
        let scrubbed =
            log.scrubber(Naming::All).text(b"<the-long-one-with-the-short-one-in-it>").bytes.into_owned();
        assert_eq!(String::from_utf8(scrubbed).unwrap(), "<[redacted:some.value]>");
    }

    #[test]
    fn the_oldest_released_values_are_dropped() {
        let log = SharedValues::default();
        drop(hold(&log, "value-of-the-first"));
        for number in 0..MAX_RELEASED {
            assert!(log.known.lock().unwrap().values.len() <= MAX_RELEASED + 1);
            drop(hold(&log, &format!("passing-value-{number}")));
        }
        let _newest = hold(&log, "newest-value");
        assert!(!scrubs(&log, "value-of-the-first"));
        assert_eq!(log.known.lock().unwrap().values.len(), MAX_RELEASED + 1);
    }

    #[test]
    fn a_released_value_can_be_held_again() {
        let log = SharedValues::default();
        drop(hold(&log, "value-that-returns"));
        let returned = hold(&log, "value-that-returns");
        for number in 0..2 * MAX_RELEASED {
            drop(hold(&log, &format!("passing-value-{number}")));
        }
        assert!(scrubs(&log, "value-that-returns"));
        drop(returned);
        assert_eq!(
            log.known.lock().unwrap().released.len(),
            MAX_RELEASED,
            "a released value is listed twice"
        );
    }

    #[test]
    fn values_that_come_and_go_without_a_search_are_not_collected() {
        let log = SharedValues::default();
        for number in 0..4 * MAX_RELEASED {
            let of_session = [1, 2, 3].map(|part| needle(&format!("passing-value-{number}-{part}")));
            log.learn(&of_session);
            log.release(&of_session);
            assert!(log.known.lock().unwrap().generations[0].len() <= 4 * MAX_RELEASED + of_session.len());
        }
    }

    #[test]
    fn a_generation_that_has_grown_is_merged_into_the_next() {
        let log = SharedValues::default();
        let mut numbers = 0..;
        for (learned, expected) in
            [(64, [64, 0, 0]), (1, [0, 65, 0]), (959, [0, 1024, 0]), (64, [64, 1024, 0]), (1, [0, 0, 1089])]
        {
            let needles: Vec<_> =
                numbers.by_ref().take(learned).map(|n| needle(&format!("value-{n:05}"))).collect();
            log.learn(&needles);
            let scrubber = log.scrubber(Naming::All);
            let lengths = log.known.lock().unwrap().generations.each_ref().map(Vec::len);
            assert_eq!(lengths, expected);
            assert!(scrubber.indexes.iter().zip(lengths).all(|(index, length)| index.values.len() == length));
        }
    }

    #[test]
    fn the_scrubbers_are_rebuilt_only_for_new_values() {
        let log = SharedValues::default();
        let _first = hold(&log, "shared-value-1");
        let before = log.scrubber(Naming::All).indexes;
        let _second = hold(&log, "shared-value-1");
        assert!(Arc::ptr_eq(&before, &log.scrubber(Naming::All).indexes));
    }

    #[test]
    fn values_of_others_are_replaced_without_a_name() {
        let shared = SharedValues::default();
        let labelled = |label: &str, value: &str| Needle {
            label: label.into(),
            value: Zeroizing::new(value.as_bytes().to_vec()),
        };
        let needles = [
            labelled("own.token", "value-of-the-own-server"),
            labelled("own.pin", "73519824"),
            labelled("other.token", "value-of-another-server"),
            labelled("other.pin", "46028135"),
            labelled("foreign.token", "value-of-another-session"),
        ];
        shared.learn(&needles);
        let of_session = shared.ids(&needles[..4]).into_iter().flatten().zip(&needles);
        let labels = Arc::new(of_session.map(|(id, needle)| (id, Arc::clone(&needle.label))).collect());
        let is_own = Arc::new(|label: &str| label.starts_with("own."));
        let scrubber = shared.scrubber(Naming::Own(OwnNames { labels, is_own }));
        let text =
            b"value-of-the-own-server 73519824 value-of-another-server 46028135 value-of-another-session";
        // Eight digits of another server stay: redaction would confirm a guess.
        let expected = b"[redacted:own.token] [redacted:own.pin] [redacted] 46028135 [redacted]";
        assert_eq!(*scrubber.text(text).bytes, *expected);
        let log = shared.scrubber(Naming::All).text(text).bytes.into_owned();
        assert!(String::from_utf8(log).unwrap().ends_with("[redacted:other.pin] [redacted:foreign.token]"));
    }

    #[test]
    fn a_line_that_could_be_guessed_is_searched_only_where_its_own_server_answers() {
        let shared = SharedValues::default();
        let labelled = |label: &str, value: &str| Needle {
            label: label.into(),
            value: Zeroizing::new(value.as_bytes().to_vec()),
        };
        // Equal lines of several values, and a value that is a line of another one.
        let needles = [
            labelled("other.codes", "73519824\n46028135\n90817263\nline-of-the-other-server\n"),
            labelled("own.codes", "73519824\n11827364\n"),
            labelled("own.pin", "46028135"),
            labelled("other.spelled", "%39%30%38%31%37%32%36%34"),
        ];
        shared.learn(&needles);
        let of_session = shared.ids(&needles).into_iter().flatten().zip(&needles);
        let labels: Arc<HashMap<_, _>> =
            Arc::new(of_session.map(|(id, needle)| (id, Arc::clone(&needle.label))).collect());
        let scrubber = |server: &'static str| {
            let is_own = Arc::new(move |label: &str| label.starts_with(server));
            shared.scrubber(Naming::Own(OwnNames { labels: Arc::clone(&labels), is_own }))
        };
        for (server, text, expected) in [
            ("third.", "x 46028135 11827364 90817264 y", "x 46028135 11827364 90817264 y"),
            ("third.", "x line-of-the-other-server", "x [redacted]"),
            ("third.", "73519824\n46028135\n90817263\nline-of-the-other-server", "[redacted]"),
            ("third.", "%39%30%38%31%37%32%36%34", "[redacted]"),
            (
                "own.",
                "73519824 11827364 46028135 90817263",
                "[redacted:own.codes] [redacted:own.codes] [redacted:own.pin] 90817263",
            ),
            (
                "other.",
                "46028135 90817264 11827364",
                "[redacted:other.codes] [redacted:other.spelled] 11827364",
            ),
        ] {
            let output = scrubber(server).text(text.as_bytes()).bytes.into_owned();
            assert_eq!(String::from_utf8(output).unwrap(), expected, "{server} {text}");
        }
        let log = shared.scrubber(Naming::All).text(b"90817263").bytes.into_owned();
        assert_eq!(String::from_utf8(log).unwrap(), "[redacted:other.codes]");
    }

    #[test]
    fn thousands_of_values_are_found_while_others_come_and_go() {
        let shared = SharedValues::default();
        let held: Vec<_> =
            (0..3000).map(|number| hold(&shared, &format!("held-value-{number:05}"))).collect();
        for number in 0..3000 {
            drop(hold(&shared, &format!("passing-value-{number:05}")));
            if number % 100 == 0 {
                assert!(scrubs(&shared, &format!("held-value-{number:05}")), "{number}");
                assert!(scrubs(&shared, &format!("passing-value-{number:05}")), "{number}");
            }
        }
        drop(held);
    }
}
