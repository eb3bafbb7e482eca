//! Log lines that a peer or a full disk can cause without end: at most ten a second of one kind; the others are counted.
//!
//! The next line of the kind tells the count. If none follows, because the flood has ended, the task that waits for
//! [`wait_for_left_out`] tells it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::RateLimiter;

/// The pace of one kind of line: a `static` beside the place that logs.
pub struct PacedLines {
    /// What the lines say, for the count of those that were left out.
    what: &'static str,
    lines: Mutex<Lines>,
    untold: &'static Untold,
}

struct Lines {
    limiter: RateLimiter,
    /// Lines that were left out since a count was told.
    left_out: u64,
    /// Whether `untold` lists this kind.
    listed: bool,
}

/// The kinds of which lines were left out.
struct Untold {
    kinds: Mutex<Vec<&'static PacedLines>>,
    added: Notify,
}

/// Enough to see what happens; few enough not to crowd out other lines.
const LINES_PER_SECOND: u32 = 10;

static UNTOLD: Untold = Untold::new();

impl PacedLines {
    /// Lines that say `what`.
    pub const fn new(what: &'static str) -> Self {
        Self::counted_in(&UNTOLD, what)
    }

    const fn counted_in(untold: &'static Untold, what: &'static str) -> Self {
        let limiter = RateLimiter::per_second(LINES_PER_SECOND);
        Self { what, lines: Mutex::new(Lines { limiter, left_out: 0, listed: false }), untold }
    }

    /// `None` if the line is to be left out; else how many were left out since a count was told, for the line to tell.
    pub fn admit(&'static self) -> Option<u64> {
        let mut lines = self.lock();
        match lines.limiter.allows(Instant::now()) {
            true => Some(std::mem::take(&mut lines.left_out)),
            false => self.leave_out(lines),
        }
    }

    /// The same for a line of one link, which has a pace of its own, so that it cannot use up that of the others.
    pub fn admit_within(&'static self, of_link: &mut RateLimiter) -> Option<u64> {
        match of_link.allows(Instant::now()) {
            true => self.admit(),
            false => self.leave_out(self.lock()),
        }
    }

    fn leave_out(&'static self, mut lines: MutexGuard<'_, Lines>) -> Option<u64> {
        lines.left_out += 1;
        if !lines.listed {
            lines.listed = true;
            self.untold.lock().push(self);
            self.untold.added.notify_one();
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns when lines were left out. Cancel-safe. For one caller at a time.
pub async fn wait_for_left_out() {
    UNTOLD.added.notified().await;
}

/// How many lines of each kind were left out since a count was told, and what they say.
pub fn take_left_out() -> Vec<(&'static str, u64)> {
    UNTOLD.take()
}

impl Untold {
    const fn new() -> Self {
        Self { kinds: Mutex::new(Vec::new()), added: Notify::const_new() }
    }

    fn take(&self) -> Vec<(&'static str, u64)> {
        let kinds = std::mem::take(&mut *self.lock());
        let told = kinds.into_iter().map(|kind| {
            let mut lines = kind.lock();
            lines.listed = false;
            (kind.what, std::mem::take(&mut lines.left_out))
        });
        told.filter(|(_, left_out)| *left_out > 0).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<&'static PacedLines>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_gives_ten_lines_a_second_and_a_count_of_the_others() {
        static UNTOLD: Untold = Untold::new();
        static LINES: PacedLines = PacedLines::counted_in(&UNTOLD, "a line");
        let written = (0..1000).filter_map(|_| LINES.admit()).collect::<Vec<_>>();
        assert_eq!(written, [0; 10]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(LINES.admit(), Some(990));
        assert_eq!(LINES.admit(), Some(0), "each left-out line is counted once");
        assert_eq!(UNTOLD.take(), [], "a count is told twice");
    }

    #[tokio::test(start_paused = true)]
    async fn the_count_is_told_after_a_flood_that_has_stopped() {
        static UNTOLD: Untold = Untold::new();
        static LINES: PacedLines = PacedLines::counted_in(&UNTOLD, "a line");
        static OTHERS: PacedLines = PacedLines::counted_in(&UNTOLD, "another line");
        for round in [1000, 500] {
            let written = (0..round).filter_map(|_| LINES.admit()).count() as u64;
            assert_eq!((written, OTHERS.admit()), (10, Some(0)));
            tokio::time::timeout(Duration::from_secs(1), UNTOLD.added.notified())
                .await
                .expect("the task that tells the count is not woken");
            assert_eq!(UNTOLD.take(), [("a line", round - 10)]);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(LINES.admit(), Some(0), "a count is told twice");
    }

    #[tokio::test(start_paused = true)]
    async fn one_link_cannot_use_up_the_lines_of_the_others() {
        static UNTOLD: Untold = Untold::new();
        static LINES: PacedLines = PacedLines::counted_in(&UNTOLD, "a line");
        let (mut greedy, mut quiet) = (RateLimiter::per_minute(3), RateLimiter::per_minute(3));
        let written = (0..1000).filter_map(|_| LINES.admit_within(&mut greedy)).collect::<Vec<_>>();
        assert_eq!(written, [0; 3]);
        assert_eq!(LINES.admit_within(&mut quiet), Some(997));
    }
}
