//! Reads from a JSON Web Token whose it is and when it expires.
//!
//! What must stay true: the result is only compared with that of another token. No signature is verified, so a claim proves
//! nothing by itself.

use std::time::Duration;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde_json::{Map, Value};

/// Whose token it is, and when it expires.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Identity {
    /// The values of all [`ACCOUNT_CLAIMS`]; `null` for one that the token does not have.
    pub(super) account: Vec<Value>,
    /// Since 1970.
    pub(super) expires: Option<Duration>,
}

/// The claims that name the issuer, account, organisation, client and scopes of a token, as paths. A refresh changes none.
const ACCOUNT_CLAIMS: [&[&str]; 16] = [
    &["iss"],
    &["sub"],
    &["aud"],
    &["azp"],
    &["client_id"],
    &["email"],
    &["oid"],
    &["scope"],
    &["scp"],
    &["tid"],
    &["https://api.openai.com/auth", "chatgpt_account_id"],
    &["https://api.openai.com/auth", "chatgpt_user_id"],
    &["https://api.openai.com/auth", "organization_id"],
    &["https://api.openai.com/auth", "poid"],
    &["https://api.openai.com/auth", "user_id"],
    &["https://api.openai.com/profile", "email"],
];

impl Identity {
    /// `None` if the text is not a JSON Web Token.
    pub(super) fn of(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (_header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let claims = Base64UrlUnpadded::decode_vec(claims).ok()?;
        let claims: Map<String, Value> = serde_json::from_slice(&claims).ok()?;
        let claims = Value::Object(claims);
        let claim = |path: &[&str]| path.iter().try_fold(&claims, |value, name| value.get(name)).cloned();
        let account = ACCOUNT_CLAIMS.iter().map(|path| claim(path).unwrap_or_default()).collect();
        let expires = claims["exp"].as_u64().map(Duration::from_secs);
        Some(Self { account, expires })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// A token with these claims and no valid signature.
    pub(in crate::run::harness) fn token(claims: &Value) -> String {
        let encode = |value: &Value| Base64UrlUnpadded::encode_string(value.to_string().as_bytes());
        format!("{}.{}.c2lnbmF0dXJl", encode(&json!({"alg": "RS256"})), encode(claims))
    }

    #[test]
    fn the_account_of_a_token_does_not_depend_on_its_times() {
        let identity = |claims: Value| Identity::of(&token(&claims)).unwrap();
        let first = identity(json!({"sub": "u", "aud": ["x"], "exp": 10, "iat": 5}));
        let second = identity(json!({"aud": ["x"], "sub": "u", "exp": 20, "iat": 15}));
        assert_eq!(first.account, second.account);
        assert_eq!((first.expires, second.expires.unwrap().as_secs()), (Some(Duration::from_secs(10)), 20));
        for other in [
            json!({"sub": "v", "aud": ["x"]}),
            json!({"sub": "u"}),
            json!({"sub": "u", "aud": ["x"], "scp": "all"}),
        ] {
            assert_ne!(first.account, identity(other).account);
        }
    }

    #[test]
    fn text_that_is_not_a_token_has_no_identity() {
        for text in ["", "opaque", "a.b", "a.b.c", "a.e30.c.d", "a.W10.c"] {
            assert_eq!(Identity::of(text), None, "{text}");
        }
        assert!(Identity::of("a.e30.c").is_some());
    }
}
