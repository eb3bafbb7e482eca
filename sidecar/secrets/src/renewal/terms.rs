//! What is known of a credential, as far as keeping it goes.

use std::time::Duration;

use tokio::time::Instant;

/// A credential is read anew when no more than this part of its life is left,
const LAST_PART: f64 = 0.15;
/// or so much time, where its life has three times as much: the processes that use it must be replaced, which takes a while.
const LAST_TIME: Duration = Duration::from_secs(10);

/// Which of the five it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    Renewable,
    Fixed,
    OwnEnd,
    Advised { every: Duration },
    Static { every: Duration },
}

/// What Vault said when it was asked, and what was known then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub class: Class,
    /// Before the request was sent.
    pub asked_at: Instant,
    /// From then on. None where it has no end of its own.
    pub life: Option<Duration>,
    /// The end of its token, where a new one would live longer.
    pub bound: Option<Instant>,
}

impl Class {
    /// Whether it ends with its token.
    pub fn is_leased(self) -> bool {
        matches!(self, Self::Renewable | Self::Fixed)
    }
}

impl Terms {
    /// By itself, or with its token.
    pub fn end(&self) -> Option<Instant> {
        let own = self.life.map(|life| self.asked_at + life);
        [own, self.bound].into_iter().flatten().min()
    }

    /// From this time on a caller that needs it reads it again.
    pub fn due(&self) -> Option<Instant> {
        match self.class {
            Class::Advised { every } | Class::Static { every } => Some(self.asked_at + every),
            Class::Renewable | Class::Fixed | Class::OwnEnd => {
                let life = self.end()?.saturating_duration_since(self.asked_at);
                Some(self.asked_at + before_the_end(life))
            }
        }
    }
}

/// How much of a life passes before a credential is read anew.
pub(super) fn before_the_end(life: Duration) -> Duration {
    let last = life.mul_f64(LAST_PART).max(LAST_TIME.min(life / 3));
    life.saturating_sub(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_life_leaves_time_for_a_replacement() {
        let seconds = |life: u64| before_the_end(Duration::from_secs(life)).as_secs_f64();
        assert!((seconds(3600) - 3060.0).abs() < 0.1, "{}", seconds(3600));
        assert!((seconds(40) - 30.0).abs() < 0.1, "{}", seconds(40));
        assert!((seconds(6) - 4.0).abs() < 0.1, "{}", seconds(6));
        assert!(seconds(0).abs() < 0.1);
    }

    #[tokio::test]
    async fn nothing_outlives_what_it_hangs_from() {
        let asked_at = Instant::now();
        let life = Some(Duration::from_secs(60));
        let bound = Some(asked_at + Duration::from_secs(6));
        let terms = Terms { class: Class::Renewable, asked_at, life, bound };
        assert_eq!(terms.end(), bound);
        assert_eq!(terms.due(), Some(asked_at + Duration::from_secs(4)));
        assert_eq!(Terms { bound: None, life: None, ..terms }.due(), None);
    }
}
