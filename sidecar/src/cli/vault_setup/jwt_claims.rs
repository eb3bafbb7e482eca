//! The public claims of the JSON Web Token that the sidecar logs in with: a role is bound to them.
//!
//! What must stay true: the token itself is a credential; it is in memory that is wiped, and only its subject, audiences and
//! issuer leave this module.

use std::path::Path;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use cofferdam_base::text::error_chain;
use cofferdam_secrets::{FileContent, read_file};
use serde::Deserialize;
use zeroize::Zeroizing;

const MAX_FILE_BYTES: usize = 64 * 1024;
/// The subject of a Kubernetes service account is this, its namespace and its name, separated by colons.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

#[derive(Debug, Deserialize, Eq, PartialEq)]
pub(super) struct Claims {
    #[serde(default)]
    iss: String,
    sub: String,
    #[serde(default)]
    aud: Audiences,
}

#[derive(Debug, Deserialize, Eq, PartialEq)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

impl Default for Audiences {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Claims {
    /// The claims of the token in a file, or why they cannot be read.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let content = read_file(file, MAX_FILE_BYTES, FileContent::Secret)
            .map_err(|error| format!("`{}` cannot be read: {}", file.display(), error_chain(&error)))?;
        Self::parse(&content)
            .ok_or_else(|| format!("`{}` has no JSON Web Token with a subject", file.display()))
    }

    fn parse(token: &[u8]) -> Option<Self> {
        let token = std::str::from_utf8(token.trim_ascii()).ok()?;
        let payload = token.split('.').nth(1)?.trim_end_matches('=');
        let payload = Zeroizing::new(Base64UrlUnpadded::decode_vec(payload).ok()?);
        serde_json::from_slice(&payload).ok().filter(|claims: &Self| !claims.sub.is_empty())
    }

    pub(super) fn issuer(&self) -> &str {
        &self.iss
    }

    pub(super) fn subject(&self) -> &str {
        &self.sub
    }

    pub(super) fn audiences(&self) -> Vec<String> {
        match &self.aud {
            Audiences::One(audience) => vec![audience.clone()],
            Audiences::Several(audiences) => audiences.clone(),
        }
    }

    /// The namespace and the name of a Kubernetes service account.
    pub(super) fn service_account(&self) -> Option<(&str, &str)> {
        self.sub.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> Vec<u8> {
        format!("e30.{}.signature\n", Base64UrlUnpadded::encode_string(claims.as_bytes())).into_bytes()
    }

    #[test]
    fn the_claims_of_both_forms_of_audience_are_read() {
        let claims =
            Claims::parse(&token(r#"{"iss":"https://ci","sub":"job","aud":"vault","x":1}"#)).unwrap();
        assert_eq!((claims.issuer(), claims.subject()), ("https://ci", "job"));
        assert_eq!(claims.audiences(), ["vault"]);
        assert_eq!(claims.service_account(), None);
        let account = r#"{"sub":"system:serviceaccount:agents:cofferdam","aud":["a","b"]}"#;
        let claims = Claims::parse(&token(account)).unwrap();
        assert_eq!(claims.audiences(), ["a", "b"]);
        assert_eq!(claims.service_account(), Some(("agents", "cofferdam")));
    }

    #[test]
    fn what_is_not_a_token_with_a_subject_is_refused() {
        for bad in [&b"CANARY"[..], b"a.%%.c", b"", &token("{}"), &token(r#"{"sub":""}"#), &token("[]")] {
            assert_eq!(Claims::parse(bad), None, "{bad:?}");
        }
    }
}
