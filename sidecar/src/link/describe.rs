//! A link and its credentials as `cofferdam sessions` shows them: no secret values, no lease ids.

use cofferdam_base::clock::{self, Rfc3339};
use cofferdam_secrets::SecretStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Link;
use super::command::{Description, ScopeProcess};
use crate::call::{CallerContext, LinkCounters};

/// A session's view of one secret that may change.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Credential {
    pub(crate) secret: String,
    pub(crate) origin: String,
    /// A hash of the lease's id, where there is a lease; the audit contains the same hash.
    pub(crate) lease: Option<String>,
    /// False where nothing was read yet, or where the credential has a lease that can be revoked.
    #[serde(default)]
    pub(crate) unrevocable: bool,
    /// None where the credential has no known expiry, or was not read yet.
    pub(crate) expires_in_seconds: Option<u64>,
    pub(crate) renewals: u64,
    pub(crate) last_error: Option<String>,
    /// Until the credential is renewed, read again or retried.
    pub(crate) next_in_seconds: Option<u64>,
}

/// A credential that outlives its session because it cannot be revoked.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct NotRevocable {
    pub(crate) secret: String,
    pub(crate) origin: String,
    /// RFC 3339. None where no expiry is known.
    pub(crate) expires: Option<String>,
}

impl NotRevocable {
    /// None where the credential can be revoked, or has expired.
    pub(crate) fn of(status: SecretStatus) -> Option<Self> {
        let now = Instant::now();
        if !status.unrevocable || status.expires.is_some_and(|end| end <= now) {
            return None;
        }
        let expires = status.expires.map(|end| Rfc3339::from(clock::now() + (end - now)).to_string());
        Some(Self { secret: status.secret.to_string(), origin: status.origin, expires })
    }

    /// The text for the audit.
    pub(crate) fn audit_detail(&self) -> String {
        let Self { secret, expires, .. } = self;
        match expires {
            Some(expires) => format!("`{secret}` expires at {expires}"),
            None => format!("`{secret}` has no known expiry"),
        }
    }

    /// One line of `cofferdam` output.
    pub(crate) fn line(&self) -> String {
        let Self { secret, origin, expires } = self;
        match expires {
            Some(expires) => format!("`{secret}` from {origin}: cannot be revoked; expires at {expires}"),
            None => format!("`{secret}` from {origin}: cannot be revoked; no known expiry"),
        }
    }
}

/// Characters of a lease hash that a line of output shows.
const SHOWN_HASH_LENGTH: usize = 12;

impl Credential {
    /// One line of `cofferdam` output.
    pub(crate) fn line(&self) -> String {
        let Self { secret, origin, renewals, .. } = self;
        let lease = match &self.lease {
            Some(hash) => format!("lease {}", hash.get(..SHOWN_HASH_LENGTH).unwrap_or(hash)),
            None if self.unrevocable => "no lease, cannot be revoked".into(),
            None => "no lease".into(),
        };
        let end = match self.expires_in_seconds {
            Some(0) => "expired".into(),
            Some(left) => format!("expires in {}", duration(left)),
            None => "no known expiry".into(),
        };
        let times = match renewals {
            0 => String::new(),
            1 => ", renewed once".into(),
            _ => format!(", renewed {renewals} times"),
        };
        let next = self.next_in_seconds.map(|left| format!("; next update in {}", duration(left)));
        let error = self.last_error.as_ref().map(|error| format!("; last error: {error}"));
        format!(
            "`{secret}` from {origin}: {lease}, {end}{times}{}{}",
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
        let secrets = config.servers.get(server).map(|server| server.every_secret()).unwrap_or_default();
        Description {
            session: session.id.to_string(),
            link: link.to_string(),
            enrolment: session.enrolment.as_ref().map(|enrolled| enrolled.id.to_string()),
            name: session.enrolment.as_ref().map(|enrolled| enrolled.name.to_string()),
            grant: session.grant.to_string(),
            server: server.to_string(),
            connected: self.peer.is_connected(),
            pid: self.servers.pid(),
            replacement: self.servers.describe_replacement(),
            scopes: self.servers.scope_processes().into_iter().map(ScopeProcess::from).collect(),
            in_flight: self.pipeline.unanswered(),
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
    pub(super) fn credentials_of_server(&self) -> Vec<SecretStatus> {
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
        }
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
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
        };
        assert_eq!(
            credential.line(),
            "`warehouse` from Vault's `database/creds/readonly`: lease 0123456789ab, expires in 9 min, \
             renewed 2 times; next update in 4 s; last error: Vault is sealed"
        );
        let credential = Credential {
            lease: None,
            unrevocable: true,
            expires_in_seconds: None,
            renewals: 0,
            last_error: None,
            next_in_seconds: Some(300),
            ..credential
        };
        assert_eq!(
            credential.line(),
            "`warehouse` from Vault's `database/creds/readonly`: no lease, cannot be revoked, no known expiry; next update in 5 min"
        );
    }
}
