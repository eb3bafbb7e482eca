//! How often a secret is read again because a server refused a credential made from it.
//!
//! What must stay true: a server that refuses every request causes at most one read in five seconds, and fewer the longer
//! the refusals go on, however often a sandbox calls it.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::Backoff;
use tokio::time::Instant;

use super::material::Material;

/// The shortest pause between two reads.
const MIN_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause: a secret that an operator replaced by hand is found within this time.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// If the current pause, multiplied by this number, has passed since the last read, the next pause is [`MIN_PAUSE`] again.
const PAUSES_UNTIL_RESET: u32 = 4;

/// The result of a request for other values than those that a server refused.
#[derive(Debug)]
pub enum Reread {
    /// The newest values: read now, or already read after the refused ones.
    Read(Arc<Material>),
    /// The secret was read for this reason shortly before; `next` is when it may be read again.
    TooSoon { next: Instant },
}

/// Spaces out the reads of one secret that refusals cause.
#[derive(Debug)]
pub struct RereadBackoff {
    /// The last such read and the pause after it.
    last: Option<(Instant, Duration)>,
    backoff: Backoff,
}

impl Default for RereadBackoff {
    fn default() -> Self {
        Self { last: None, backoff: Backoff::new(MIN_PAUSE, MAX_PAUSE) }
    }
}

impl RereadBackoff {
    /// Starts the next pause; fails with the end of the current pause if that is not over.
    pub fn try_begin(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        match self.last {
            Some((last, pause)) if now < last + pause => return Err(last + pause),
            Some((last, pause)) if now < last + pause * PAUSES_UNTIL_RESET => {}
            _ => self.backoff.reset(),
        }
        self.last = Some((now, self.backoff.next_delay()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_without_end_cause_ever_fewer_reads() {
        let mut backoff = RereadBackoff::default();
        let mut reads = Vec::new();
        let began = Instant::now();
        for _ in 0..600 {
            if backoff.try_begin().is_ok() {
                reads.push(began.elapsed().as_secs());
            }
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(reads, [0, 5, 15, 35, 75, 135, 195, 255, 315, 375, 435, 495, 555]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_quiet_time_the_pause_is_short_again() {
        let mut backoff = RereadBackoff::default();
        for wait in [0, 5, 10, 20] {
            advance(Duration::from_secs(wait)).await;
            backoff.try_begin().unwrap();
        }
        advance(Duration::from_secs(160)).await;
        backoff.try_begin().unwrap();
        assert_eq!(backoff.try_begin().unwrap_err() - Instant::now(), MIN_PAUSE);
    }
}
