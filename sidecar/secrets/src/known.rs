//! Which values a session's scrubber looks for: all it ever had, but for those that have long been of no use.
//!
//! A session of eight hours with a credential of five seconds has some ten thousand of them. To look for all would make
//! every message slower and every new one slower still (measured: with 256 values a scrubber is made in 2 ms and reads
//! 1 MiB in 5 ms, with 16,000 in more than a second each): so of what is over (revoked with its token, or expired) the last
//! [`MAX_OVER`] values are looked for, and of key-value secrets, whose former versions have no stated end, the last
//! [`MAX_KEY_VALUES`].
//!
//! Must stay true: a value that may still be valid is never forgotten for something newer, but for
//! the oldest of more key-value versions than that.

use std::collections::HashSet;

use tokio::time::Instant;

use super::source::RevokedWith;
use cofferdam_scrub::Needle;

/// Values of credentials that are over: those of some minutes, where there is a new one every few seconds.
const MAX_OVER: usize = 256;
/// Values of key-value secrets.
const MAX_KEY_VALUES: usize = 512;

/// In the order in which they were last heard of.
#[derive(Default)]
pub(super) struct Known(Vec<Value>);

struct Value {
    needle: Needle,
    revoked_with: RevokedWith,
    holding: Holding,
}

/// Whether the log has it from this session. What is over is no more than the log's own few of all sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Holding {
    Held,
    LetGo,
}

/// What changed.
pub(super) struct Learnt {
    pub(super) scrubber: Scrubbing,
    /// Those that the log has to know from now on,
    pub(super) held: Vec<Needle>,
    /// and those that it need not.
    pub(super) let_go: Vec<Needle>,
}

/// Whether a session's scrubber knows them all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Scrubbing {
    AsBefore,
    ToBeMade,
}

impl Known {
    /// These are to be found from now on. What was known is as good as new.
    pub(super) fn learn(&mut self, needles: &[Needle], revoked_with: RevokedWith, now: Instant) -> Learnt {
        let mut scrubber = Scrubbing::AsBefore;
        let mut held = Vec::new();
        for needle in needles {
            let known = self.0.iter().position(|value| value.needle.value == needle.value);
            let value = match known.map(|at| self.0.remove(at)) {
                // A value without an end is not dropped because another one ended.
                Some(before) if matches!(before.revoked_with, RevokedWith::Nothing) => before,
                Some(before) => {
                    if before.holding == Holding::LetGo {
                        held.push(before.needle.clone());
                    }
                    Value { revoked_with: revoked_with.clone(), holding: Holding::Held, ..before }
                }
                None => {
                    scrubber = Scrubbing::ToBeMade;
                    held.push(needle.clone());
                    Value {
                        needle: needle.clone(),
                        revoked_with: revoked_with.clone(),
                        holding: Holding::Held,
                    }
                }
            };
            self.0.push(value);
        }
        let let_go = match scrubber {
            Scrubbing::AsBefore => Vec::new(),
            Scrubbing::ToBeMade => self.forget(now),
        };
        Learnt { scrubber, held, let_go }
    }

    /// Those that the log has from here.
    pub(super) fn held(&self) -> Vec<Needle> {
        let held = self.0.iter().filter(|value| value.holding == Holding::Held);
        held.map(|value| value.needle.clone()).collect()
    }

    pub(super) fn needles(&self) -> Vec<Needle> {
        self.0.iter().map(|value| value.needle.clone()).collect()
    }

    /// The oldest of those that are too many; gives what the log need not know any more.
    fn forget(&mut self, now: Instant) -> Vec<Needle> {
        let mut let_go = Vec::new();
        for value in &mut self.0 {
            if value.holding == Holding::Held && value.revoked_with.is_over(now) {
                value.holding = Holding::LetGo;
                let_go.push(value.needle.clone());
            }
        }
        let mut too_many: HashSet<usize> = HashSet::new();
        let mut beyond = |most: usize, choice: &dyn Fn(&Value) -> bool| {
            let chosen: Vec<usize> =
                self.0.iter().enumerate().filter(|(_, value)| choice(value)).map(|(at, _)| at).collect();
            too_many.extend(&chosen[..chosen.len().saturating_sub(most)]);
        };
        beyond(MAX_OVER, &|value| value.revoked_with.is_over(now));
        beyond(MAX_KEY_VALUES, &|value| matches!(value.revoked_with, RevokedWith::KeyValue));
        let mut at = 0..;
        let gone = self.0.extract_if(.., |_| at.next().is_some_and(|at| too_many.contains(&at)));
        let_go.extend(gone.filter(|value| value.holding == Holding::Held).map(|value| value.needle));
        let_go
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

    fn learn(known: &mut Known, value: &str, revoked_with: RevokedWith) -> Learnt {
        known.learn(&[needle(value)], revoked_with, Instant::now())
    }

    fn has(known: &Known, value: &str) -> bool {
        known.0.iter().any(|known| **known.needle.value == *value.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_is_looked_for_a_while_longer_and_then_forgotten_oldest_first() {
        let mut known = Known::default();
        learn(&mut known, "from-a-file", RevokedWith::Nothing);
        learn(&mut known, "a-former-version", RevokedWith::KeyValue);
        learn(&mut known, "still-used", RevokedWith::Until(Instant::now() + Duration::from_secs(1_000_000)));
        let (mut held, mut let_go) = (0, 0);
        for number in 0..10_000 {
            let end = Instant::now() + Duration::from_secs(5);
            let learnt = learn(&mut known, &format!("passing-{number}"), RevokedWith::Until(end));
            held += learnt.held.len();
            let_go += learnt.let_go.len();
            tokio::time::advance(Duration::from_secs(3)).await;
            assert!(known.0.len() <= MAX_OVER + 5, "{}", known.0.len());
        }
        // What the log was told to hold, it is told to let go, once each.
        assert_eq!(held, 10_000);
        assert_eq!(let_go + known.held().len(), 10_003);
        assert!(known.held().len() < 8, "{}", known.held().len());
        for value in ["from-a-file", "a-former-version", "still-used", "passing-9999", "passing-9800"] {
            assert!(has(&known, value), "{value}");
        }
        assert!(!has(&known, "passing-9000"));
    }

    #[tokio::test(start_paused = true)]
    async fn former_versions_of_key_value_secrets_have_their_own_bound() {
        let mut known = Known::default();
        for number in 0..2 * MAX_KEY_VALUES {
            learn(&mut known, &format!("version-{number}"), RevokedWith::KeyValue);
            // The other secret is read again and again, and has not changed.
            learn(&mut known, "the-other", RevokedWith::KeyValue);
        }
        assert_eq!(known.0.len(), MAX_KEY_VALUES);
        assert!(has(&known, "the-other") && has(&known, &format!("version-{}", MAX_KEY_VALUES + 10)));
        assert!(!has(&known, "version-0"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_is_heard_of_again_is_not_new_but_lives_on() {
        let mut known = Known::default();
        let now = Instant::now();
        let first = learn(&mut known, "renewed", RevokedWith::Until(now + Duration::from_secs(5)));
        assert_eq!((first.scrubber, first.held.len()), (Scrubbing::ToBeMade, 1));
        let again = learn(&mut known, "renewed", RevokedWith::Until(now + Duration::from_secs(50)));
        assert_eq!((again.scrubber, again.held.len()), (Scrubbing::AsBefore, 0));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!known.0[0].revoked_with.is_over(Instant::now()));
        learn(&mut known, "from-a-file", RevokedWith::Nothing);
        learn(&mut known, "from-a-file", RevokedWith::Until(now));
        assert!(known.0.iter().all(|value| !value.revoked_with.is_over(Instant::now())));
    }
}
