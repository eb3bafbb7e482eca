//! An exact rate limit: no window of the given length, wherever it begins, contains more than `limit` events.
//!
//! It stores the times of up to `limit` events, so it is for small limits. The caller passes the current time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub struct RateLimiter {
    limit: usize,
    window: Duration,
    /// When the events of the current window were allowed, oldest first; at most `limit`.
    allowed: VecDeque<Instant>,
}

impl RateLimiter {
    pub const fn new(limit: u32, window: Duration) -> Self {
        Self { limit: limit as usize, window, allowed: VecDeque::new() }
    }

    pub const fn per_minute(limit: u32) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    pub const fn per_second(limit: u32) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Whether an event may happen now; if so, it counts against the limit.
    pub fn allows(&mut self, now: Instant) -> bool {
        while self.allowed.front().is_some_and(|time| now.duration_since(*time) >= self.window) {
            self.allowed.pop_front();
        }
        let allowed = self.allowed.len() < self.limit;
        if allowed {
            self.allowed.push_back(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn no_window_has_more_than_the_limit_wherever_it_begins() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(3, MILLISECOND * 100);
        // A limiter that counts per fixed window would allow three events late in one window and three early in the next.
        let attempts = [90, 91, 92, 93, 101, 189, 190, 191, 191, 192, 300];
        let allowed: Vec<u32> =
            attempts.into_iter().filter(|at| limiter.allows(start + MILLISECOND * *at)).collect();
        assert_eq!(allowed, [90, 91, 92, 190, 191, 192, 300]);
    }

    #[test]
    fn a_limit_of_zero_allows_nothing() {
        assert!(!RateLimiter::per_minute(0).allows(Instant::now()));
    }
}
