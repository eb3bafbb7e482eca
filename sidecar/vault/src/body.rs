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
    Body(Body),
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

    /// A member that is an object itself.
    pub(crate) fn with_body(mut self, name: &str, body: Self) -> Self {
        self.members.push((name.to_owned(), Member::Body(body)));
        self
    }

    pub(crate) fn with_token(self, name: &str, token: &Token) -> Self {
        self.with_secret(name, Zeroizing::new(token.expose().to_owned()))
    }

    pub(crate) fn with_lease(self, name: &str, lease: &LeaseId) -> Self {
        self.with_secret(name, Zeroizing::new(lease.expose().to_owned()))
    }

    /// Values that no error may show, even if Vault repeats them.
    pub(crate) fn secrets<'a>(&'a self) -> Vec<&'a str> {
        let of_member = |member: &'a Member| match member {
            Member::Body(body) => body.secrets(),
            Member::Public(_) => Vec::new(),
            Member::Secret(text) => vec![text.as_str()],
        };
        self.members.iter().flat_map(|(_, member)| of_member(member)).collect()
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        // Allocated at once: growing would leave copies that are not wiped.
        let mut encoded = Zeroizing::new(Vec::with_capacity(self.longest()));
        self.write(&mut encoded);
        encoded
    }

    /// At least the number of bytes of the encoded body.
    fn longest(&self) -> usize {
        let length = |(name, member): &(String, Member)| {
            let value = match member {
                Member::Body(body) => body.longest(),
                Member::Public(value) => value.to_string().len(),
                Member::Secret(text) => text.len() * MAX_ESCAPED_BYTES,
            };
            name.len() * MAX_ESCAPED_BYTES + value + 8
        };
        2 + self.members.iter().map(length).sum::<usize>()
    }

    fn write(&self, encoded: &mut Vec<u8>) {
        encoded.push(b'{');
        for (index, (name, member)) in self.members.iter().enumerate() {
            if index > 0 {
                encoded.push(b',');
            }
            serde_json::to_writer(&mut *encoded, name).expect("writing to memory does not fail");
            encoded.push(b':');
            let written = match member {
                Member::Body(body) => {
                    body.write(encoded);
                    Ok(())
                }
                Member::Public(value) => serde_json::to_writer(&mut *encoded, value),
                Member::Secret(text) => serde_json::to_writer(&mut *encoded, text.as_str()),
            };
            written.expect("writing to memory does not fail");
        }
        encoded.push(b'}');
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
        assert_eq!(body.secrets(), [secret.as_str()]);
        let outer = Body::new().with("options", json!({"cas": 0})).with_body("data", body);
        let read: Value = serde_json::from_slice(&outer.encode()).unwrap();
        assert_eq!(read["data"]["secret_id"], secret.as_str());
        assert_eq!(outer.secrets(), [secret.as_str()], "secrets of inner objects are secrets too");
        assert_eq!(Body::new().encode().as_slice(), b"{}");
    }
}
