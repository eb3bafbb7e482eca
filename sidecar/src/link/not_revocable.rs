//! Credentials that outlive their session, because no source can revoke them: reported by `kill` and in the audit.

use cofferdam_base::clock::{self, Rfc3339};
use cofferdam_secrets::SecretStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::session::Session;

/// A credential that outlives its session because it cannot be revoked.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct NotRevocable {
    pub(crate) secret: String,
    pub(crate) origin: String,
    /// How many values of it the session has read that are still valid.
    #[serde(default = "one")]
    pub(crate) values: usize,
    /// When the last of them expires, in RFC 3339. None where no expiry is known.
    pub(crate) expires: Option<String>,
}

impl NotRevocable {
    /// Those of a session, by the name of their secret.
    pub(crate) fn of_session(session: &Session) -> Vec<Self> {
        session.credentials.statuses().into_iter().filter_map(Self::of).collect()
    }

    /// None where all values can be revoked, or have expired.
    fn of(status: SecretStatus) -> Option<Self> {
        let outliving = status.outliving?;
        let now = Instant::now();
        let expires = |end: Instant| Rfc3339::from(clock::now() + (end - now)).to_string();
        Some(Self {
            secret: status.secret.to_string(),
            origin: status.origin,
            values: outliving.count,
            expires: outliving.until.time().map(expires),
        })
    }

    /// The end of the detail of an audit record; empty where there are none.
    pub(crate) fn audit_suffix(all: &[Self]) -> String {
        if all.is_empty() {
            return String::new();
        }
        let each: Vec<String> = all.iter().map(Self::audit_detail).collect();
        format!("; not revocable: {}", each.join(", "))
    }

    fn audit_detail(&self) -> String {
        let Self { secret, values, expires, .. } = self;
        let values = match values {
            1 => String::new(),
            values => format!(" ({values} values)"),
        };
        match expires {
            Some(expires) => format!("`{secret}`{values} expires at {expires}"),
            None => format!("`{secret}`{values} has no known expiry"),
        }
    }

    /// One line of `cofferdam` output.
    pub(crate) fn line(&self) -> String {
        let Self { secret, origin, values, expires } = self;
        let what = match (values, expires) {
            (1, Some(expires)) => format!("expires at {expires}"),
            (1, None) => "no known expiry".into(),
            (values, Some(expires)) => format!("{values} values, the last expires at {expires}"),
            (values, None) => format!("{values} values, no known expiry"),
        };
        format!("`{secret}` from {origin}: cannot be revoked; {what}")
    }
}

fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_values_are_counted_and_the_last_expiry_is_named() {
        let credential = |values, expires: Option<&str>| NotRevocable {
            secret: "bearer".into(),
            origin: "Vault's `identity/oidc/token/agent`".into(),
            values,
            expires: expires.map(str::to_owned),
        };
        let end = Some("2026-11-18T12:00:00Z");
        for (credential, line, detail) in [
            (
                credential(1, end),
                "expires at 2026-11-18T12:00:00Z",
                "`bearer` expires at 2026-11-18T12:00:00Z",
            ),
            (credential(1, None), "no known expiry", "`bearer` has no known expiry"),
            (
                credential(3, end),
                "3 values, the last expires at 2026-11-18T12:00:00Z",
                "`bearer` (3 values) expires at 2026-11-18T12:00:00Z",
            ),
            (credential(2, None), "2 values, no known expiry", "`bearer` (2 values) has no known expiry"),
        ] {
            let begin = "`bearer` from Vault's `identity/oidc/token/agent`: cannot be revoked; ";
            assert_eq!(credential.line(), format!("{begin}{line}"));
            assert_eq!(NotRevocable::audit_suffix(&[credential]), format!("; not revocable: {detail}"));
        }
        assert_eq!(NotRevocable::audit_suffix(&[]), "");
    }
}
