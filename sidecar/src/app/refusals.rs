//! Refused connections in the log: the first few of each second with their reasons, the others as a number.
//!
//! Whoever can reach the socket can be refused as often as it likes, and says part of what the reason repeats.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relay_proto::control::Refusal;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[derive(Default)]
pub(super) struct Refusals(Mutex<Window>);

/// The second that runs.
#[derive(Default)]
struct Window {
    ends: Option<Instant>,
    logged: u32,
    more: u64,
}

/// What is to be done about one refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Line {
    Written,
    /// Counted only; a line says so when this window ends.
    FirstCounted(Instant),
    Counted,
}

const WINDOW: Duration = Duration::from_secs(1);
/// Enough to see who knocks and why; few enough that nothing else is pushed out of the log.
const LINES_PER_WINDOW: u32 = 10;
/// Characters of a reason in the log.
const MAX_REASON: usize = 200;

impl Refusals {
    /// Logs one refusal, or counts it.
    pub(super) fn log(self: &Arc<Self>, refusal: &Refusal, tasks: &TaskTracker, stop: &CancellationToken) {
        match self.count() {
            Line::Written => {
                tracing::warn!(code = refusal.code, why = cut(&refusal.message), "connection refused");
            }
            Line::FirstCounted(ends) => {
                let (refusals, stop) = (Arc::clone(self), stop.clone());
                tasks.spawn(async move {
                    let _ = stop.run_until_cancelled(sleep_until(ends)).await;
                    tracing::warn!("{} more refused", refusals.take_more());
                });
            }
            Line::Counted => {}
        }
    }

    fn count(&self) -> Line {
        let mut window = self.lock();
        let now = Instant::now();
        let ends = match window.ends {
            Some(ends) if now < ends => ends,
            _ => {
                window.logged = 0;
                *window.ends.insert(now + WINDOW)
            }
        };
        if window.logged < LINES_PER_WINDOW {
            window.logged += 1;
            return Line::Written;
        }
        window.more += 1;
        match window.more {
            1 => Line::FirstCounted(ends),
            _ => Line::Counted,
        }
    }

    fn take_more(&self) -> u64 {
        std::mem::take(&mut self.lock().more)
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// At most so many characters, none of them cut in half.
fn cut(text: &str) -> &str {
    text.char_indices().nth(MAX_REASON).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_ten_lines_a_second_and_a_number() {
        let refusals = Refusals::default();
        let lines: Vec<Line> = (0..1000).map(|_| refusals.count()).collect();
        assert_eq!(lines.iter().filter(|line| **line == Line::Written).count(), 10);
        let ends = Instant::now() + WINDOW;
        assert_eq!(lines[10], Line::FirstCounted(ends), "one of them says how many more there were");
        assert!(lines[11..].iter().all(|line| *line == Line::Counted));
        sleep_until(ends).await;
        assert_eq!(refusals.take_more(), 990);
        assert_eq!(refusals.count(), Line::Written, "a new second");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(201)), "é".repeat(200));
    }
}
