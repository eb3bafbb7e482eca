//! Metrics of Vault and of the credentials that come from it.

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::tally::{Outcome, Tally, label_values};

/// Upper bounds in seconds. SPECIFICATION.md promises revocation within five seconds.
const REVOKE_BUCKETS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

#[derive(Debug)]
pub struct VaultMetrics {
    logins: Tally<Outcome>,
    login_renewals: Tally<Outcome>,
    tokens: Tally<Outcome>,
    reads: Tally<Outcome>,
    renewals: Tally<Outcome>,
    failures: Tally<VaultFailure>,
    revocations: Tally<Revocation>,
    time_to_revoke: Histogram,
}

/// How a session's token, and the leases that depend on it, ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Revocation {
    /// The token expired before it could be revoked.
    Expired,
    Revoked,
}

/// Why a request to Vault failed: the kinds of errors of `cofferdam-vault`, which describes each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VaultFailure {
    Alert,
    Busy,
    Credential,
    Denied,
    Failed,
    Gone,
    Invalid,
    Malformed,
    Missing,
    Other,
    Sealed,
    Standby,
    Unreachable,
}

label_values!(Revocation, "outcome", Expired => "expired", Revoked => "revoked");
label_values!(VaultFailure, "kind",
    Alert => "alert",
    Busy => "busy",
    Credential => "credential",
    Denied => "denied",
    Failed => "failed",
    Gone => "gone",
    Invalid => "invalid",
    Malformed => "malformed",
    Missing => "missing",
    Other => "other",
    Sealed => "sealed",
    Standby => "standby",
    Unreachable => "unreachable",
);

impl VaultMetrics {
    pub fn count_login(&self, outcome: Outcome) {
        self.logins.count(outcome);
    }

    pub fn count_login_renewal(&self, outcome: Outcome) {
        self.login_renewals.count(outcome);
    }

    /// Counts a token created for a session.
    pub fn count_token(&self, outcome: Outcome) {
        self.tokens.count(outcome);
    }

    /// Counts the read of a secret.
    pub fn count_read(&self, outcome: Outcome) {
        self.reads.count(outcome);
    }

    /// Counts the renewal of a lease.
    pub fn count_renewal(&self, outcome: Outcome) {
        self.renewals.count(outcome);
    }

    pub fn count_failure(&self, failure: VaultFailure) {
        self.failures.count(failure);
    }

    /// Counts the end of a session's token.
    pub fn count_revocation(&self, outcome: Revocation) {
        self.revocations.count(outcome);
    }

    /// Records how long after the end of a session all its credentials in Vault were revoked.
    pub fn observe_time_to_revoke(&self, elapsed: Duration) {
        self.time_to_revoke.observe(elapsed.as_secs_f64());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("vault_logins", "Logins of the sidecar", self.logins.clone());
        registry.register(
            "vault_login_renewals",
            "Renewals of the login's token",
            self.login_renewals.clone(),
        );
        registry.register("vault_session_tokens", "Tokens created for sessions", self.tokens.clone());
        registry.register("vault_reads", "Reads of secrets", self.reads.clone());
        registry.register("vault_renewals", "Renewals of leases", self.renewals.clone());
        registry.register("vault_failures", "Failed requests to Vault", self.failures.clone());
        registry.register(
            "vault_revocations",
            "Tokens of sessions that were revoked or expired, with their leases",
            self.revocations.clone(),
        );
        registry.register_with_unit(
            "vault_time_to_revoke",
            "Time from a session's end until its tokens and leases in Vault are revoked",
            Unit::Seconds,
            self.time_to_revoke.clone(),
        );
    }
}

impl Default for VaultMetrics {
    fn default() -> Self {
        Self {
            logins: Tally::default(),
            login_renewals: Tally::default(),
            tokens: Tally::default(),
            reads: Tally::default(),
            renewals: Tally::default(),
            failures: Tally::default(),
            revocations: Tally::default(),
            time_to_revoke: Histogram::new(REVOKE_BUCKETS),
        }
    }
}
