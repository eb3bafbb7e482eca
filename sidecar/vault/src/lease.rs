//! Requests about leases. `sys/leases/revoke` is not used: a policy that allows it allows revoking every lease.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::api::{Vault, malformed, post};
use crate::body::Body;
use crate::envelope::{Envelope, expiry};
use crate::error::{Problem, VaultError};
use crate::token::{LeaseId, Token};

/// Vault's messages for a lease that ended or never existed, both with status 400.
const UNKNOWN_LEASE: [&str; 2] = ["lease not found", "invalid lease"];

/// The properties of a lease in Vault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseInfo {
    pub ttl: Duration,
    pub renewable: bool,
    pub requested_at: Instant,
}

impl LeaseInfo {
    pub fn expires(&self) -> Option<Instant> {
        expiry(self.requested_at, self.ttl)
    }
}

impl Vault {
    /// Extends the lease to `increment` from now. After [`Kind::Gone`](crate::Kind::Gone), read the secret again. Vault
    /// may grant less and report success: check `lease_duration`.
    pub async fn renew_lease(
        &self,
        token: &Token,
        lease: &LeaseId,
        increment: Option<Duration>,
    ) -> Result<Envelope, VaultError> {
        let mut body = Body::new().with_lease("lease_id", lease);
        if let Some(increment) = increment {
            body = body.with("increment", increment.as_secs().max(1));
        }
        self.call(&post(Some(token), "sys/leases/renew", body)).await.map_err(gone_if_unknown)
    }

    /// Fails with [`Kind::Gone`](crate::Kind::Gone) if the lease does not exist any more.
    pub async fn lookup_lease(&self, token: &Token, lease: &LeaseId) -> Result<LeaseInfo, VaultError> {
        #[derive(Deserialize)]
        struct Raw {
            /// Negative when the lease is overdue.
            ttl: i64,
            #[serde(default)]
            renewable: bool,
        }
        let requested_at = Instant::now();
        let request = post(Some(token), "sys/leases/lookup", Body::new().with_lease("lease_id", lease));
        let (data, _) = self.data(&request).await.map_err(gone_if_unknown)?;
        let Raw { ttl, renewable } = data.read().map_err(|why| malformed(&request, why))?;
        Ok(LeaseInfo {
            ttl: Duration::from_secs(u64::try_from(ttl).unwrap_or_default()),
            renewable,
            requested_at,
        })
    }
}

fn gone_if_unknown(error: VaultError) -> VaultError {
    match error.problem {
        Problem::Status { status: 400, messages, .. }
            if UNKNOWN_LEASE.iter().any(|text| messages.contains(text)) =>
        {
            VaultError { problem: Problem::Gone { messages }, ..error }
        }
        problem => VaultError { problem, ..error },
    }
}
