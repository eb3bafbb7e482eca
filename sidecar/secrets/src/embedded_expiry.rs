//! The expiry that a credential states itself. It is used if there is no lease, or if it is earlier than the lease's end.
//!
//! Without a lease, the first of these that is present is used:
//! 1. `ttl`, `expiration` or `expires_at_seconds` beside the credential in the response;
//! 2. the expiry inside a value: of an OpenSSH certificate or a JSON Web Token (`exp`), the earliest if there are several;
//! 3. the `ttl` of the request, although the source may have granted less.
//!
//! What must stay true: an unreadable expiry is ignored; no number overflows a clock; a time is compared with the clock of
//! the host that wrote it, as far as that is known.

mod jwt;
mod ssh_certificate;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use super::fields;
use cofferdam_base::duration;

/// The longest lifetime that is scheduled; longer than any session.
pub const MAX_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longer than any certificate or token in use.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// How long the credential is valid from `now` on, which is the time of the source's clock; this host's clock may differ.
pub fn remaining_lifetime(data: &[u8], now: SystemTime) -> Option<Duration> {
    lifetime_in_response(data, now)
        .map(|lifetime| lifetime.min(MAX_LIFETIME))
        .or_else(|| remaining_lifetime_of_values(data, now))
}

/// How long the values are valid by the expiry inside them. The response cannot extend that.
pub fn remaining_lifetime_of_values(data: &[u8], now: SystemTime) -> Option<Duration> {
    Some(time_until(ends_of_values(data).min()?, now).min(MAX_LIFETIME))
}

/// The remaining lifetime of the certificate or JWT that is valid longest, by the expiry inside it: systems that check
/// its signature do not ask whether its lease was revoked.
pub fn longest_lifetime_of_values(data: &[u8], now: SystemTime) -> Option<Duration> {
    Some(time_until(ends_of_values(data).max()?, now).min(MAX_LIFETIME))
}

/// The expiry inside each value that has one, in seconds since 1970.
fn ends_of_values(data: &[u8]) -> impl Iterator<Item = u64> {
    let end = |text: &[u8]| ssh_certificate::valid_before(text).or_else(|| jwt::expiry(text));
    let texts = fields::string_values(data).filter(|text| text.len() <= MAX_TEXT_BYTES);
    texts.filter_map(move |text| end(&text))
}

/// The `ttl` of a request, in the forms that Vault accepts.
pub fn requested_ttl(write: &BTreeMap<String, Value>) -> Option<Duration> {
    let lifetime = match write.get("ttl")? {
        Value::Number(seconds) => Duration::from_secs(seconds.as_u64()?),
        Value::String(text) => match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => duration::parse(text).ok()?,
        },
        _ => return None,
    };
    // Zero requests Vault's default.
    Some(lifetime.min(MAX_LIFETIME)).filter(|lifetime| !lifetime.is_zero())
}

fn lifetime_in_response(data: &[u8], now: SystemTime) -> Option<Duration> {
    #[derive(Deserialize)]
    struct StatedExpiry {
        ttl: Option<Value>,
        expiration: Option<Value>,
        expires_at_seconds: Option<Value>,
    }
    let stated: StatedExpiry = serde_json::from_slice(data).ok()?;
    let seconds = |value: Option<Value>| value?.as_u64();
    seconds(stated.ttl).map(Duration::from_secs).or_else(|| {
        let end = seconds(stated.expiration).or_else(|| seconds(stated.expires_at_seconds))?;
        Some(time_until(end, now))
    })
}

fn time_until(end: u64, now: SystemTime) -> Duration {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(end).saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lifetime_of(data: &str, now: u64) -> Option<u64> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
        remaining_lifetime(data.as_bytes(), now).map(|lifetime| lifetime.as_secs())
    }

    #[tokio::test]
    async fn an_expiry_in_the_response_is_read() {
        assert_eq!(lifetime_of(r#"{"ttl": 60, "expiration": 5}"#, 0), Some(60));
        assert_eq!(lifetime_of(r#"{"expiration": 1700000600}"#, 1_700_000_000), Some(600));
        assert_eq!(lifetime_of(r#"{"expires_at_seconds": 1700000600}"#, 1_700_000_000), Some(600));
        // Expired already: a clock is wrong, or the credential is about to be replaced.
        assert_eq!(lifetime_of(r#"{"expiration": 1700000000}"#, 1_800_000_000), Some(0));
        assert_eq!(lifetime_of(r#"{"ttl": 0}"#, 0), Some(0));
        // Numbers that would overflow a clock.
        assert_eq!(lifetime_of(r#"{"ttl": 18446744073709551615}"#, 0), Some(MAX_LIFETIME.as_secs()));
        assert_eq!(lifetime_of(r#"{"expiration": 18446744073709551615}"#, 0), Some(MAX_LIFETIME.as_secs()));
        for nothing in ["{}", r#"{"ttl": "30s"}"#, r#"{"ttl": -1}"#, r#"{"ttl": null}"#, "[]", "null"] {
            assert_eq!(lifetime_of(nothing, 0), None, "{nothing}");
        }
    }

    #[tokio::test]
    async fn the_earlier_expiry_of_a_certificate_and_a_jwt_is_used() {
        let certificate = format!("{}\n", ssh_certificate::tests::CERTIFICATE);
        let end = ssh_certificate::tests::END;
        let token = |exp: u64| jwt::tests::token(&json!({"exp": exp}));
        let lifetime = |data: Value| lifetime_of(&data.to_string(), end - 600);
        assert_eq!(
            lifetime(json!({"signed_key": certificate, "serial_number": "f5f702ef133a5189"})),
            Some(600)
        );
        assert_eq!(lifetime(json!({"service_account_token": token(end - 540)})), Some(60));
        assert_eq!(lifetime(json!({"signed_key": certificate, "token": token(end - 540)})), Some(60));
        let longest = longest_lifetime_of_values(
            json!({"signed_key": certificate, "token": token(end - 540)}).to_string().as_bytes(),
            SystemTime::UNIX_EPOCH + Duration::from_secs(end - 600),
        );
        assert_eq!(longest, Some(Duration::from_secs(600)));
        // An expiry in the response comes from Vault and takes precedence.
        assert_eq!(lifetime(json!({"signed_key": certificate, "ttl": 5})), Some(5));
        assert_eq!(lifetime(json!({"signed_key": [certificate], "more": {"token": token(end)}})), None);
        assert_eq!(lifetime(json!({"token": token(end - 601)})), Some(0));
        assert_eq!(lifetime(json!({"token": token(u64::MAX)})), Some(MAX_LIFETIME.as_secs()));
        let long = jwt::tests::token(&json!({"exp": end, "more": "x".repeat(MAX_TEXT_BYTES)}));
        assert_eq!(lifetime(json!({"token": long})), None);
    }

    #[test]
    fn a_requested_ttl_is_read_as_vault_reads_it() {
        let parsed = |ttl: Value| {
            requested_ttl(&BTreeMap::from([("ttl".to_owned(), ttl)])).map(|lifetime| lifetime.as_secs())
        };
        for (ttl, lifetime) in [
            (json!("6s"), 6),
            (json!("1h30m"), 5400),
            (json!("2d"), 172_800),
            (json!("90"), 90),
            (json!(90), 90),
            (json!(u64::MAX), MAX_LIFETIME.as_secs()),
        ] {
            assert_eq!(parsed(ttl.clone()), Some(lifetime), "{ttl}");
        }
        for nothing in [
            json!(0),
            json!("0s"),
            json!("soon"),
            json!(""),
            json!(-1),
            json!(1.5),
            json!(true),
            json!(["6s"]),
        ] {
            assert_eq!(parsed(nothing.clone()), None, "{nothing}");
        }
        assert_eq!(requested_ttl(&BTreeMap::new()), None);
    }
}
