//! How often something may happen within a minute.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Pace {
    times: VecDeque<Instant>,
    per_minute: usize,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Pace {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { times: VecDeque::new(), per_minute: per_minute as usize }
    }

    /// Whether it may happen now; if so, it is counted.
    pub(crate) fn allows(&mut self) -> bool {
        let now = Instant::now();
        while self.times.front().is_some_and(|time| now.duration_since(*time) >= MINUTE) {
            self.times.pop_front();
        }
        let allowed = self.times.len() < self.per_minute;
        if allowed {
            self.times.push_back(now);
        }
        allowed
    }
}
