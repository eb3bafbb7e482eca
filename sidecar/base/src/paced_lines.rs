//! Log lines that a peer or a full disk can cause without end: at most ten a second of one kind; the others are counted.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::RateLimiter;

/// The pace of one kind of line. Meant for a `static` beside the place that logs.
pub struct PacedLines(Mutex<Lines>);

struct Lines {
    limiter: RateLimiter,
    /// Lines that were left out since the last one that was written.
    left_out: u64,
}

/// Enough to see what happens; few enough not to crowd out other lines.
const LINES_PER_SECOND: u32 = 10;

impl PacedLines {
    pub const fn new() -> Self {
        Self(Mutex::new(Lines { limiter: RateLimiter::per_second(LINES_PER_SECOND), left_out: 0 }))
    }

    /// `None` if the line is to be left out; else how many were left out since the last one, for the line to tell.
    pub fn admit(&self) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.limiter.allows(Instant::now()) {
            return Some(std::mem::take(&mut lines.left_out));
        }
        lines.left_out += 1;
        None
    }
}

impl Default for PacedLines {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_gives_ten_lines_a_second_and_a_count_of_the_others() {
        let lines = PacedLines::new();
        let written = (0..1000).filter_map(|_| lines.admit()).collect::<Vec<_>>();
        assert_eq!(written, [0; 10]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(lines.admit(), Some(990));
        assert_eq!(lines.admit(), Some(0), "each left-out line is counted once");
    }
}
