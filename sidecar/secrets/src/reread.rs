//! How often a secret is read again because a server refused what was made from it.
//!
//! What must stay true: a server that refuses everything, and a sandbox that calls it as often as it likes, cause a read
//! every five seconds at most, and less often the longer it goes on.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::Backoff;
use tokio::time::Instant;

use super::material::Material;

/// Between two of them.
const SHORTEST: Duration = Duration::from_secs(5);
/// A secret that a person renewed by hand is found within this.
const LONGEST: Duration = Duration::from_secs(60);
/// After so many pauses without a refusal the pause is short again.
const QUIET: u32 = 4;

/// What came of asking for others than those that were refused.
#[derive(Debug)]
pub enum Reread {
    /// The newest there are: read now, or since the refused ones were.
    Read(Arc<Material>),
    /// They were read a moment ago.
    TooSoon { next: Instant },
}

/// When one secret was last read for this, and how long the pause after it is.
#[derive(Debug)]
pub struct RereadPace {
    last: Option<(Instant, Duration)>,
    pauses: Backoff,
}

impl Default for RereadPace {
    fn default() -> Self {
        Self { last: None, pauses: Backoff::new(SHORTEST, LONGEST) }
    }
}

impl RereadPace {
    /// Whether it is time; if so, the pause begins. If not, when it is.
    pub fn begin(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        match self.last {
            Some((last, pause)) if now < last + pause => return Err(last + pause),
            Some((last, pause)) if now < last + pause * QUIET => {}
            _ => self.pauses.reset(),
        }
        self.last = Some((now, self.pauses.next_delay()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_without_end_cause_ever_fewer_reads() {
        let mut pace = RereadPace::default();
        let mut reads = Vec::new();
        let began = Instant::now();
        for _ in 0..600 {
            if pace.begin().is_ok() {
                reads.push(began.elapsed().as_secs());
            }
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(reads, [0, 5, 15, 35, 75, 135, 195, 255, 315, 375, 435, 495, 555]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_quiet_time_the_pause_is_short_again() {
        let mut pace = RereadPace::default();
        for wait in [0, 5, 10, 20] {
            advance(Duration::from_secs(wait)).await;
            pace.begin().unwrap();
        }
        advance(Duration::from_secs(160)).await;
        pace.begin().unwrap();
        assert_eq!(pace.begin().unwrap_err() - Instant::now(), SHORTEST);
    }
}
