//! The scrubber of the sidecar's own log: it finds the secret values of all sessions, including recently
//! ended ones.
//!
//! With many sessions there are thousands of values, and a few new ones each second. The newest values are therefore in
//! a small scrubber, the older ones in a large one, which is rebuilt only when the small one has grown.
//!
//! What must stay true: a value is scrubbed as long as any session holds it, and for some time after, because a
//! session's last log lines are written late. The number of values that no session holds is bounded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::{Needle, Scrubbed, Scrubber};

pub struct LogScrubber {
    known: Mutex<KnownValues>,
    scrubbers: ArcSwap<Scrubbers>,
    /// Values were added since the scrubbers were built. The next log line rebuilds them, once for all new values.
    stale: AtomicBool,
}

/// The two scrubbers that together find every value.
pub struct Scrubbers {
    /// The large one.
    older: Arc<Scrubber>,
    /// The small one.
    recent: Scrubber,
}

#[derive(Default)]
struct KnownValues {
    values: HashMap<Digest, KnownValue>,
    /// Values that only the small scrubber has.
    recent: Vec<Digest>,
    /// Values that no session holds, oldest first.
    released: VecDeque<Digest>,
}

struct KnownValue {
    needle: Needle,
    holders: usize,
}

/// SHA-256 of a value. It never leaves this module.
type Digest = [u8; SHA256_OUTPUT_LEN];

/// The maximum number of values that are scrubbed although no session holds them: enough for the late log lines of
/// about a hundred sessions.
const MAX_RELEASED: usize = 1024;

/// With more values than this in the small scrubber the large one is rebuilt, which takes milliseconds per thousand
/// values.
const MAX_RECENT: usize = 64;

impl Default for LogScrubber {
    fn default() -> Self {
        let nothing = || Scrubber::new(Vec::new());
        Self {
            known: Mutex::default(),
            scrubbers: ArcSwap::from_pointee(Scrubbers { older: Arc::new(nothing()), recent: nothing() }),
            stale: AtomicBool::new(false),
        }
    }
}

impl LogScrubber {
    /// The scrubbers, rebuilt first if values were added.
    pub fn current(&self) -> Arc<Scrubbers> {
        if self.stale.load(Ordering::Acquire) {
            let mut known = self.lock();
            // Another thread may have rebuilt them while this one waited for the lock.
            if self.stale.load(Ordering::Acquire) {
                let KnownValues { values, recent, .. } = &mut *known;
                let older = match recent.len() > MAX_RECENT {
                    true => {
                        recent.clear();
                        let needles = values.values().map(|value| value.needle.clone()).collect();
                        Arc::new(Scrubber::new(needles))
                    }
                    false => Arc::clone(&self.scrubbers.load().older),
                };
                let needles = recent.iter().filter_map(|key| Some(values.get(key)?.needle.clone())).collect();
                self.scrubbers.store(Arc::new(Scrubbers { older, recent: Scrubber::new(needles) }));
                self.stale.store(false, Ordering::Release);
            }
        }
        self.scrubbers.load_full()
    }

    /// Adds one holder to each value. Sessions that share a secret share its entry.
    pub fn learn(&self, needles: &[Needle]) {
        let mut known = self.lock();
        let KnownValues { values, recent, released } = &mut *known;
        if recent.len() > 4 * MAX_RELEASED {
            // Many values were added and released without a log line in between.
            recent.retain(|key| values.contains_key(key));
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
                    vacant.insert(KnownValue { needle: needle.clone(), holders: 1 });
                    recent.push(key);
                    self.stale.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Removes one holder from each value. The scrubbers are not rebuilt for that, only for new values.
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

impl Scrubbers {
    pub fn text<'a>(&self, text: &'a [u8]) -> Scrubbed<'a> {
        self.recent.text_with(&self.older, text)
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

    fn needle(value: &str) -> Needle {
        Needle { label: "some.value".into(), value: Zeroizing::new(value.into()) }
    }

    /// A session that holds this value.
    struct Holder<'a>(&'a LogScrubber, Needle);

    impl Drop for Holder<'_> {
        fn drop(&mut self) {
            self.0.release(std::slice::from_ref(&self.1));
        }
    }

    fn hold<'a>(log: &'a LogScrubber, value: &str) -> Holder<'a> {
        log.learn(&[needle(value)]);
        Holder(log, needle(value))
    }

    fn scrubs(log: &LogScrubber, value: &str) -> bool {
        log.current().text(format!("it is {value}.").as_bytes()).redactions == 1
    }

    #[test]
    fn a_value_is_scrubbed_while_a_session_holds_it_and_for_some_time_after() {
        let log = LogScrubber::default();
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
        let log = LogScrubber::default();
        let _long = hold(&log, "the-long-one-with-the-short-one-in-it");
        let mut others = Vec::new();
        for number in 0..=MAX_RECENT {
            others.push(hold(&log, &format!("passing-value-{number}")));
        }
        log.current();
        let _short = hold(&log, "the-short-one");
        let scrubbed = log.current().text(b"<the-long-one-with-the-short-one-in-it>").bytes.into_owned();
        assert_eq!(String::from_utf8(scrubbed).unwrap(), "<[redacted:some.value]>");
    }

    #[test]
    fn the_oldest_released_values_are_dropped() {
        let log = LogScrubber::default();
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
        let log = LogScrubber::default();
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
    fn the_scrubbers_are_rebuilt_only_for_new_values() {
        let log = LogScrubber::default();
        let _first = hold(&log, "shared-value-1");
        let before = log.current();
        let _second = hold(&log, "shared-value-1");
        assert!(Arc::ptr_eq(&before, &log.current()));
    }
}
