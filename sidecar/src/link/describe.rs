//! A link and its credentials as `cofferdam sessions` shows them: no secret values, no lease ids.

use std::time::Duration;

use cofferdam_base::duration;
use cofferdam_secrets::{Reading, SecretStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Link;
use super::command::{Confine, Description, ScopeProcess, Wall};
use crate::call::{CallerContext, LinkCounters};

/// A session's view of one secret.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Credential {
    pub(crate) secret: String,
    pub(crate) origin: String,
    /// A hash of the lease's id, where there is a lease; the audit contains the same hash.
    pub(crate) lease: Option<String>,
    /// False where nothing was read yet, or where revoking the credential's lease ends the credential.
    #[serde(default)]
    pub(crate) unrevocable: bool,
    /// None where the credential has no known expiry, or was not read yet.
    pub(crate) expires_in_seconds: Option<u64>,
    pub(crate) renewals: u64,
    pub(crate) last_error: Option<String>,
    /// Until the credential is renewed, read again or retried.
    pub(crate) next_in_seconds: Option<u64>,
    /// Earlier values of this session that may still be valid.
    #[serde(default)]
    pub(crate) earlier_values: usize,
    /// True where no new credential is made, because every process that uses this one keeps it (`replace = "never"`).
    #[serde(default)]
    pub(crate) kept: bool,
}

/// Characters of a lease hash that a line of output shows.
const SHOWN_HASH_LENGTH: usize = 12;

impl Credential {
    /// One line of `cofferdam` output.
    pub(crate) fn line(&self) -> String {
        let Self { secret, origin, renewals, .. } = self;
        let lease = match &self.lease {
            Some(hash) => {
                let hash = hash.get(..SHOWN_HASH_LENGTH).unwrap_or(hash);
                match self.unrevocable {
                    true => format!("lease {hash}, whose certificate or token cannot be revoked"),
                    false => format!("lease {hash}"),
                }
            }
            None if self.unrevocable => "no lease, cannot be revoked".into(),
            None => "no lease".into(),
        };
        let end = match self.expires_in_seconds {
            Some(0) => "expired".into(),
            Some(left) => format!("expires in {}", rounded(left)),
            None => "no known expiry".into(),
        };
        let times = match renewals {
            0 => String::new(),
            1 => ", renewed once".into(),
            _ => format!(", renewed {renewals} times"),
        };
        let next = self.next_in_seconds.map(|left| format!("; next update in {}", rounded(left)));
        let kept = match self.kept {
            true => "; no new one is made, because its process keeps this one (`replace = \"never\"`)",
            false => "",
        };
        let earlier = match self.earlier_values {
            0 => String::new(),
            1 => "; 1 earlier value may still be valid".into(),
            count => format!("; {count} earlier values may still be valid"),
        };
        let error = self.last_error.as_ref().map(|error| format!("; last error: {error}"));
        format!(
            "`{secret}` from {origin}: {lease}, {end}{times}{}{kept}{earlier}{}",
            next.unwrap_or_default(),
            error.unwrap_or_default()
        )
    }
}

impl Link {
    pub(super) fn describe(&self) -> Description {
        let CallerContext { session, link, server, .. } = &self.pipeline.caller;
        let LinkCounters { calls, refused, redactions } = self.pipeline.recorder.counters;
        let config = session.context.config.load();
        let configured = config.servers.get(server);
        let secrets = configured.map(|server| server.every_secret()).unwrap_or_default();
        // A running process has the walls with which it was started.
        let started_with = self.servers.started_with().or(configured);
        Description {
            session: session.id.to_string(),
            link: link.to_string(),
            enrolment: session.enrolment.as_ref().map(|enrolled| enrolled.id.to_string()),
            name: session.enrolment.as_ref().map(|enrolled| enrolled.name.to_string()),
            grant: session.grant.to_string(),
            server: server.to_string(),
            connected: self.peer.is_connected(),
            pid: self.servers.pid(),
            confine: started_with.and_then(|server| Confine::of(server)),
            replacement: self.servers.describe_replacement(),
            scopes: self.servers.scope_processes().into_iter().map(ScopeProcess::from).collect(),
            walls: self.servers.standing().map(|standing| Wall::all(&standing)).unwrap_or_default(),
            in_flight: self.pipeline.unanswered(),
            memory_bytes: self.memory.used() as u64,
            calls,
            refused,
            redactions,
            began: cofferdam_base::clock::Rfc3339::from(session.began).as_str().into(),
            expires_in_seconds: session.expires.saturating_duration_since(Instant::now()).as_secs(),
            credentials: self.credentials_of_server().into_iter().map(Credential::from).collect(),
            secrets: secrets.into_iter().map(ToString::to_string).collect(),
        }
    }

    /// The status of the session's secrets that this link's server uses.
    fn credentials_of_server(&self) -> Vec<SecretStatus> {
        let CallerContext { session, server, .. } = &self.pipeline.caller;
        let config = session.context.config.load();
        let Some(server) = config.servers.get(server) else { return Vec::new() };
        let secrets = server.every_secret();
        let mut statuses = session.credentials.statuses();
        statuses.retain(|status| secrets.contains(&status.secret));
        statuses
    }
}

impl From<SecretStatus> for Credential {
    fn from(status: SecretStatus) -> Self {
        let now = Instant::now();
        let left = |at: Instant| at.saturating_duration_since(now).as_secs();
        Self {
            secret: status.secret.to_string(),
            origin: status.origin,
            lease: status.lease,
            unrevocable: status.unrevocable,
            expires_in_seconds: status.expires.map(left),
            renewals: status.renewals,
            last_error: status.last_error,
            next_in_seconds: status.next.map(left),
            earlier_values: status.earlier_values,
            kept: status.reading == Reading::Suspended,
        }
    }
}

fn rounded(seconds: u64) -> String {
    duration::rounded(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_credential_shows_lease_expiry_renewals_and_last_error() {
        let credential = Credential {
            secret: "warehouse".into(),
            origin: "Vault's `database/creds/readonly`".into(),
            lease: Some("0123456789abcdef".into()),
            unrevocable: false,
            expires_in_seconds: Some(540),
            renewals: 2,
            last_error: Some("Vault is sealed".into()),
            next_in_seconds: Some(4),
            earlier_values: 0,
            kept: false,
        };
        assert_eq!(
            credential.line(),
            "`warehouse` from Vault's `database/creds/readonly`: lease 0123456789ab, expires in 9m, \
             renewed 2 times; next update in 4s; last error: Vault is sealed"
        );
        let credential = Credential {
            lease: None,
            unrevocable: true,
            expires_in_seconds: None,
            renewals: 0,
            last_error: None,
            next_in_seconds: Some(300),
            earlier_values: 2,
            ..credential
        };
        assert_eq!(
            credential.line(),
            "`warehouse` from Vault's `database/creds/readonly`: no lease, cannot be revoked, no known expiry; next update in 5m; \
             2 earlier values may still be valid"
        );
        let credential = Credential {
            lease: Some("0123456789abcdef".into()),
            expires_in_seconds: Some(0),
            next_in_seconds: None,
            earlier_values: 0,
            kept: true,
            ..credential
        };
        assert_eq!(
            credential.line(),
            "`warehouse` from Vault's `database/creds/readonly`: lease 0123456789ab, whose certificate or token cannot \
             be revoked, expired; no new one is made, because its process keeps this one (`replace = \"never\"`)"
        );
    }
}
