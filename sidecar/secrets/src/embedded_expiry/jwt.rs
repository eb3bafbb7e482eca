//! When a signed JSON Web Token (JWT, RFC 7519) expires: the `exp` of its claims.
//!
//! What must stay true: only text with exactly the parts of a JWT gives an expiry: a header that names its algorithm,
//! claims and a signature. The signature is not checked: the value comes from Vault.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

/// The expiry in seconds since 1970.
pub(super) fn expiry(text: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Header {
        alg: Value,
    }
    #[derive(Deserialize)]
    struct Claims {
        exp: Value,
    }
    let mut parts = text.trim_ascii().split(|byte| *byte == b'.');
    let (header, claims, signature) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || signature.is_empty() {
        return None;
    }
    let header: Header = decode_part(header)?;
    header.alg.is_string().then_some(())?;
    let claims: Claims = decode_part(claims)?;
    claims.exp.as_u64().or_else(|| whole_seconds(claims.exp.as_f64()?))
}

fn decode_part<T: DeserializeOwned>(part: &[u8]) -> Option<T> {
    let part = Zeroizing::new(Base64UrlUnpadded::decode_vec(str::from_utf8(part).ok()?).ok()?);
    serde_json::from_slice(&part).ok()
}

/// Drops the fraction, which `exp` may have.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
fn whole_seconds(seconds: f64) -> Option<u64> {
    const MAX_SECONDS: f64 = 1e15;
    (0.0..MAX_SECONDS).contains(&seconds).then_some(seconds as u64)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    fn joined(parts: &[&str]) -> String {
        let parts: Vec<_> =
            parts.iter().map(|part| Base64UrlUnpadded::encode_string(part.as_bytes())).collect();
        parts.join(".")
    }

    pub(in crate::embedded_expiry) fn token(claims: &Value) -> String {
        joined(&[r#"{"alg":"RS256","kid":"~~~"}"#, &claims.to_string(), "signature"])
    }

    #[test]
    fn the_expiry_is_read() {
        let exp = |exp: Value| expiry(token(&json!({"sub": "agent", "exp": exp})).as_bytes());
        assert_eq!(exp(json!(1_700_000_600)), Some(1_700_000_600));
        assert_eq!(exp(json!(1_700_000_600.9)), Some(1_700_000_600));
        assert_eq!(exp(json!(0)), Some(0));
        assert_eq!(expiry(format!("{}\n", token(&json!({"exp": 7}))).as_bytes()), Some(7));
        for odd in [json!(-1), json!("1700000600"), json!(1e300), json!(null), json!([7])] {
            assert_eq!(exp(odd.clone()), None, "{odd}");
        }
    }

    #[test]
    fn text_that_is_not_a_jwt_gives_no_expiry() {
        let claims = r#"{"exp":7}"#;
        for bad in [
            String::new(),
            "..".into(),
            "ghp-CANARY.of.the.vault".into(),
            joined(&[r#"{"alg":"RS256"}"#, claims]),
            joined(&[r#"{"alg":"RS256"}"#, claims, ""]),
            joined(&[r#"{"alg":"RS256"}"#, claims, "a", "b", "c"]),
            joined(&[r#"{"typ":"JWT"}"#, claims, "signature"]),
            joined(&[r#"{"alg":1}"#, claims, "signature"]),
            joined(&["RS256", claims, "signature"]),
            joined(&[r#"{"alg":"RS256"}"#, "{}", "signature"]),
            joined(&[r#"{"alg":"RS256"}"#, r#"{"exp":7,"exp":9}"#, "signature"]),
            joined(&[r#"{"alg":"RS256"}"#, &"[".repeat(1000), "signature"]),
        ] {
            assert_eq!(expiry(bad.as_bytes()), None, "{bad}");
        }
    }
}
