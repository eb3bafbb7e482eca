//! What is known about a credential's validity.

use std::time::Duration;

use tokio::time::Instant;

/// A credential is read again when this fraction of its life or [`MIN_REMAINING`] is left, whichever is longer.
const MIN_REMAINING_FRACTION: f64 = 0.15;
/// The time to replace the processes that use a credential. At most a third of its life is reserved for this.
const MIN_REMAINING: Duration = Duration::from_secs(10);

/// How a credential is renewed; see the table in [`renewal`](super).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    Renewable,
    Fixed,
    OwnEnd,
    Advised { every: Duration },
    Static { every: Duration },
}

/// A credential's validity, as its source stated it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub class: Class,
    /// The time before the request was sent; `life` counts from here.
    pub asked_at: Instant,
    /// `None` if the credential has no expiry of its own.
    pub life: Option<Duration>,
    /// When the token that it depends on ends, if a credential under the next token would last longer.
    pub bound: Option<Instant>,
}

impl Class {
    /// Whether the credential is a lease, which ends with its token.
    pub fn is_leased(self) -> bool {
        matches!(self, Self::Renewable | Self::Fixed)
    }
}

impl Terms {
    /// When the credential ends: by itself, or with its token.
    pub fn end(&self) -> Option<Instant> {
        let own = self.life.map(|life| self.asked_at + life);
        [own, self.bound].into_iter().flatten().min()
    }

    /// From this time on a caller that needs the credential reads it again.
    pub fn read_again_at(&self) -> Option<Instant> {
        match self.class {
            Class::Advised { every } | Class::Static { every } => Some(self.asked_at + every),
            Class::Renewable | Class::Fixed | Class::OwnEnd => {
                let life = self.end()?.saturating_duration_since(self.asked_at);
                Some(self.asked_at + read_again_after(life))
            }
        }
    }
}

/// How much of its life passes before a credential is read again.
pub(super) fn read_again_after(life: Duration) -> Duration {
    let last = life.mul_f64(MIN_REMAINING_FRACTION).max(MIN_REMAINING.min(life / 3));
    life.saturating_sub(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_life_leaves_time_for_a_replacement() {
        let seconds = |life: u64| read_again_after(Duration::from_secs(life)).as_secs_f64();
        assert!((seconds(3600) - 3060.0).abs() < 0.1, "{}", seconds(3600));
        assert!((seconds(40) - 30.0).abs() < 0.1, "{}", seconds(40));
        assert!((seconds(6) - 4.0).abs() < 0.1, "{}", seconds(6));
        assert!(seconds(0).abs() < 0.1);
    }

    #[tokio::test]
    async fn a_credential_ends_with_its_token() {
        let asked_at = Instant::now();
        let life = Some(Duration::from_secs(60));
        let bound = Some(asked_at + Duration::from_secs(6));
        let terms = Terms { class: Class::Renewable, asked_at, life, bound };
        assert_eq!(terms.end(), bound);
        assert_eq!(terms.read_again_at(), Some(asked_at + Duration::from_secs(4)));
        assert_eq!(Terms { bound: None, life: None, ..terms }.read_again_at(), None);
    }
}
