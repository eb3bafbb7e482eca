//! Request bodies: JSON objects in memory that is wiped when dropped, with their secret values marked; and durations in
//! Vault's format.

use std::time::Duration;

use serde_json::Value;
use zeroize::Zeroizing;

use crate::token::{LeaseId, Token};

/// Each byte of a text becomes at most this many bytes in JSON.
const MAX_ESCAPED_BYTES: usize = 6;

/// The members of a JSON object.
#[derive(Default)]
pub(crate) struct Body {
    members: Vec<(String, Member)>,
}

enum Member {
    Public(Value),
    Secret(Zeroizing<String>),
}

impl Body {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The members of a JSON object without secrets; `None` if it is not an object.
    pub(crate) fn of_json(json: &[u8]) -> Option<Self> {
        let members: serde_json::Map<String, Value> = serde_json::from_slice(json).ok()?;
        Some(Self {
            members: members.into_iter().map(|(name, value)| (name, Member::Public(value))).collect(),
        })
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.push((name.to_owned(), Member::Public(value.into())));
        self
    }

    pub(crate) fn with_secret(mut self, name: &str, value: Zeroizing<String>) -> Self {
        self.members.push((name.to_owned(), Member::Secret(value)));
        self
    }

    pub(crate) fn with_token(self, name: &str, token: &Token) -> Self {
        self.with_secret(name, Zeroizing::new(token.expose().to_owned()))
    }

    pub(crate) fn with_lease(self, name: &str, lease: &LeaseId) -> Self {
        self.with_secret(name, Zeroizing::new(lease.expose().to_owned()))
    }

    /// Values that no error may show, even if Vault repeats them.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter_map(|(_, member)| match member {
            Member::Public(_) => None,
            Member::Secret(text) => Some(text.as_str()),
        })
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let length = |(name, member): &(String, Member)| {
            let value = match member {
                Member::Public(value) => value.to_string().len(),
                Member::Secret(text) => text.len() * MAX_ESCAPED_BYTES,
            };
            name.len() * MAX_ESCAPED_BYTES + value + 8
        };
        // Allocated at once: growing would leave copies that are not wiped.
        let mut encoded =
            Zeroizing::new(Vec::with_capacity(2 + self.members.iter().map(length).sum::<usize>()));
        encoded.push(b'{');
        for (index, (name, member)) in self.members.iter().enumerate() {
            if index > 0 {
                encoded.push(b',');
            }
            let written = serde_json::to_writer(&mut *encoded, name).and_then(|()| {
                encoded.push(b':');
                match member {
                    Member::Public(value) => serde_json::to_writer(&mut *encoded, value),
                    Member::Secret(text) => serde_json::to_writer(&mut *encoded, text.as_str()),
                }
            });
            written.expect("writing to memory does not fail");
        }
        encoded.push(b'}');
        encoded
    }
}

/// In Vault's format. At least one second, because "0s" would mean "the default".
pub(crate) fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs().max(1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_is_encoded_as_json_and_lists_its_secrets() {
        let secret = Zeroizing::new("quo\"te\u{1}\n".repeat(50));
        let body = Body::new()
            .with("ttl", "5s")
            .with_secret("secret_id", secret.clone())
            .with("policies", vec!["a", "b"]);
        let encoded = body.encode();
        let read: Value = serde_json::from_slice(&encoded).unwrap();
        assert_eq!(read, json!({"ttl": "5s", "secret_id": secret.as_str(), "policies": ["a", "b"]}));
        assert_eq!(body.secrets().collect::<Vec<_>>(), [secret.as_str()]);
        assert_eq!(Body::new().encode().as_slice(), b"{}");
    }
}
