//! What is known about a credential's validity.

use std::time::Duration;

use tokio::time::Instant;

/// A credential is read again when this fraction of its lifetime or [`MIN_REMAINING`] is left, whichever is longer.
const MIN_REMAINING_FRACTION: f64 = 0.15;
/// Reserved for replacing the processes that use the credential, but at most a third of its lifetime.
const MIN_REMAINING: Duration = Duration::from_secs(10);

/// How a credential is renewed; see the table in [`renewal`](super).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RenewalClass {
    Renewable,
    Fixed,
    OwnExpiry,
    StatedInterval { every: Duration },
    Static { every: Duration },
}

/// A credential's validity, as its source stated it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    pub class: RenewalClass,
    /// Taken just before the request was sent; `lifetime` counts from here.
    pub requested_at: Instant,
    /// `None` if the credential has no expiry of its own.
    pub lifetime: Option<Duration>,
    /// When the token expires that the credential depends on. `None` if reading the credential again with a new token would
    /// not make it last longer.
    pub token_expiry: Option<Instant>,
}

impl RenewalClass {
    /// Whether the credential is a lease, which ends with its token.
    pub fn is_leased(self) -> bool {
        matches!(self, Self::Renewable | Self::Fixed)
    }
}

impl Terms {
    /// When the credential expires: by itself, or with its token.
    pub fn end(&self) -> Option<Instant> {
        let own_expiry = self.lifetime.map(|lifetime| self.requested_at + lifetime);
        [own_expiry, self.token_expiry].into_iter().flatten().min()
    }

    /// From this time on a caller that needs the credential reads it again.
    pub fn read_again_at(&self) -> Option<Instant> {
        match self.class {
            RenewalClass::StatedInterval { every } | RenewalClass::Static { every } => {
                Some(self.requested_at + every)
            }
            RenewalClass::Renewable | RenewalClass::Fixed | RenewalClass::OwnExpiry => {
                let lifetime = self.end()?.saturating_duration_since(self.requested_at);
                Some(self.requested_at + read_again_after(lifetime))
            }
        }
    }
}

/// How much of its lifetime passes before a credential is read again.
pub(super) fn read_again_after(lifetime: Duration) -> Duration {
    let reserved = lifetime.mul_f64(MIN_REMAINING_FRACTION).max(MIN_REMAINING.min(lifetime / 3));
    lifetime.saturating_sub(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_life_leaves_time_for_a_replacement() {
        let seconds = |lifetime: u64| read_again_after(Duration::from_secs(lifetime)).as_secs_f64();
        assert!((seconds(3600) - 3060.0).abs() < 0.1, "{}", seconds(3600));
        assert!((seconds(40) - 30.0).abs() < 0.1, "{}", seconds(40));
        assert!((seconds(6) - 4.0).abs() < 0.1, "{}", seconds(6));
        assert!(seconds(0).abs() < 0.1);
    }

    #[tokio::test]
    async fn a_credential_ends_with_its_token() {
        let requested_at = Instant::now();
        let lifetime = Some(Duration::from_secs(60));
        let token_expiry = Some(requested_at + Duration::from_secs(6));
        let terms = Terms { class: RenewalClass::Renewable, requested_at, lifetime, token_expiry };
        assert_eq!(terms.end(), token_expiry);
        assert_eq!(terms.read_again_at(), Some(requested_at + Duration::from_secs(4)));
        assert_eq!(Terms { token_expiry: None, lifetime: None, ..terms }.read_again_at(), None);
    }
}
