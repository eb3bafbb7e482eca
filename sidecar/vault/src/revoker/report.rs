//! The report on the end of a session: what is revoked, and what is pending and why.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::session_token::SecretLease;

/// What became of a session's credentials in Vault.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Revoked {
    pub token: Outcome,
    pub leases: Vec<LeaseEnd>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaseEnd {
    pub secret: String,
    /// A hash of the lease's id, as in the audit.
    pub lease: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Pending { reason: String },
    Revoked { after_ms: u64 },
}

impl Revoked {
    /// The report before the first response of Vault.
    pub(super) fn all_pending<'a>(leases: impl Iterator<Item = &'a SecretLease>) -> Self {
        let pending = || Outcome::Pending { reason: "Vault has not responded yet".into() };
        let lease = |lease: &SecretLease| LeaseEnd {
            secret: lease.secret.clone(),
            lease: lease.id.hash(),
            outcome: pending(),
        };
        Self { token: pending(), leases: leases.map(lease).collect() }
    }

    /// The same with each reason changed, to scrub what Vault said.
    #[must_use]
    pub fn map_reasons(mut self, change: impl Fn(&str) -> String) -> Self {
        let outcomes =
            std::iter::once(&mut self.token).chain(self.leases.iter_mut().map(|end| &mut end.outcome));
        for outcome in outcomes {
            if let Outcome::Pending { reason } = outcome {
                *reason = change(reason);
            }
        }
        self
    }

    pub(super) fn set_lease(&mut self, lease: &SecretLease, outcome: Outcome) {
        let hash = lease.id.hash();
        if let Some(end) = self.leases.iter_mut().find(|end| end.lease == hash) {
            end.outcome = outcome;
        }
    }

    /// The lines that a command prints.
    pub fn lines(&self) -> Vec<String> {
        let lease =
            |end: &LeaseEnd| format!("lease {} of `{}`: {}", end.lease, end.secret, end.outcome.described());
        let token = format!("Vault token: {}", self.token.described());
        std::iter::once(token).chain(self.leases.iter().map(lease)).collect()
    }

    /// One line for the audit.
    pub fn summary(&self) -> String {
        let pending = self.leases.iter().filter(|end| end.outcome.is_pending()).count();
        let leases = self.leases.len();
        format!(
            "Vault token {}; leases: {} revoked, {pending} pending",
            self.token.described(),
            leases - pending
        )
    }
}

impl Outcome {
    /// Pending if there is a reason.
    pub(super) fn new(reason: Option<&str>, elapsed: Duration) -> Self {
        match reason {
            Some(reason) => Self::Pending { reason: reason.to_owned() },
            None => Self::Revoked { after_ms: elapsed.as_millis() as u64 },
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Pending { .. })
    }

    fn described(&self) -> String {
        match self {
            Self::Pending { reason } => format!("pending ({reason})"),
            Self::Revoked { after_ms } => format!("revoked after {after_ms} ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_can_be_scrubbed() {
        let pending = |reason: &str| Outcome::Pending { reason: reason.into() };
        let lease =
            LeaseEnd { secret: "cert".into(), lease: "0123".into(), outcome: pending("canary-of-vault") };
        let revoked = Revoked { token: pending("canary-of-vault"), leases: vec![lease] };
        let shown = revoked.map_reasons(|reason| reason.replace("canary", "[redacted]"));
        assert!(!shown.summary().contains("canary"), "{}", shown.summary());
        assert!(shown.lines().iter().all(|line| line.contains("[redacted]-of-vault")), "{:?}", shown.lines());
    }
}
