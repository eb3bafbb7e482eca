//! The output of a command with `format = "expiring"`: fields, and when they expire.
//!
//! Two formats are accepted, each as one JSON object; other keys are ignored:
//! - `{"fields": {…}, "expires": "2026-11-18T09:30:00Z"}`: the keys of `fields` are the secret's fields;
//! - the format of AWS's `credential_process`: `Version` 1, `AccessKeyId`, `SecretAccessKey`, `SessionToken` (optional) and
//!   `Expiration` give the fields `access_key_id`, `secret_access_key` and `session_token`.
//!
//! What must stay true: a credential without an expiry, or with one in the past, is refused; no error repeats any part
//! of the output except a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::embedded_expiry::MAX_LIFETIME;
use super::error::{ExpiringError, SecretProblem};
use super::fields::{self, JsonObject};
use super::spec::ShortValues;
use super::value::Secret;
use cofferdam_base::clock::parse_rfc3339;

/// Fields, and how long they are valid, counted from the `now` given to [`parse`].
#[derive(Debug)]
pub(super) struct ExpiringCredential {
    pub(super) fields: BTreeMap<String, Secret>,
    /// More than zero, at most [`MAX_LIFETIME`].
    pub(super) lifetime: Duration,
}

/// The members of the output. Values borrow from it, so that no unwiped copy is made.
#[derive(Deserialize)]
struct PrintedCredential<'a> {
    #[serde(borrow)]
    fields: Option<&'a RawValue>,
    #[serde(borrow)]
    expires: Option<&'a RawValue>,
    #[serde(borrow, rename = "Version")]
    version: Option<&'a RawValue>,
    #[serde(borrow, rename = "AccessKeyId")]
    access_key_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "SecretAccessKey")]
    secret_access_key: Option<&'a RawValue>,
    #[serde(borrow, rename = "SessionToken")]
    session_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "Expiration")]
    expiration: Option<&'a RawValue>,
}

/// Parses the output. `now` is the wall-clock time before the command ran.
pub(super) fn parse(
    content: &[u8],
    now: SystemTime,
    public: &BTreeSet<String>,
    short: ShortValues,
) -> Result<ExpiringCredential, SecretProblem> {
    let printed: PrintedCredential<'_> =
        serde_json::from_slice(content).map_err(|_| ExpiringError::UnknownFormat)?;
    let (members, lifetime) = match (printed.fields, printed.access_key_id) {
        (Some(_), Some(_)) => return Err(ExpiringError::Ambiguous.into()),
        (Some(fields), None) => {
            let JsonObject(members) =
                fields::parse_object(fields.get().as_bytes()).ok_or(ExpiringError::UnknownFormat)?;
            (members, remaining_lifetime("expires", printed.expires, now)?)
        }
        (None, Some(_)) => {
            (printed.aws_fields()?, remaining_lifetime("Expiration", printed.expiration, now)?)
        }
        (None, None) => return Err(ExpiringError::UnknownFormat.into()),
    };
    Ok(ExpiringCredential { fields: fields::parse_members(members, public, short)?, lifetime })
}

impl<'a> PrintedCredential<'a> {
    fn aws_fields(&self) -> Result<Vec<(String, &'a RawValue)>, ExpiringError> {
        if self.version.is_none_or(|version| version.get() != "1") {
            return Err(ExpiringError::Version);
        }
        let required = [("access_key_id", self.access_key_id), ("secret_access_key", self.secret_access_key)];
        let mut members = Vec::new();
        for (name, value) in required {
            members.push((name.to_owned(), value.ok_or(ExpiringError::UnknownFormat)?));
        }
        members.extend(self.session_token.map(|value| ("session_token".to_owned(), value)));
        Ok(members)
    }
}

fn remaining_lifetime(
    key: &'static str,
    expires: Option<&RawValue>,
    now: SystemTime,
) -> Result<Duration, ExpiringError> {
    let expires = expires.ok_or(ExpiringError::NoExpiry { key })?;
    let text: Option<String> = serde_json::from_str(expires.get()).ok();
    let end = text.and_then(|text| parse_rfc3339(&text)).ok_or(ExpiringError::UnreadableExpiry { key })?;
    match end.duration_since(now) {
        Ok(lifetime) if !lifetime.is_zero() => Ok(lifetime.min(MAX_LIFETIME)),
        _ => Err(ExpiringError::Expired { at: end.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        parse_rfc3339("2026-11-18T09:00:00Z").unwrap()
    }

    fn parse(content: &str) -> Result<ExpiringCredential, SecretProblem> {
        super::parse(content.as_bytes(), now(), &BTreeSet::new(), ShortValues::Refuse)
    }

    fn refusal(content: &str) -> String {
        let problem = parse(content).unwrap_err();
        let printed = format!("{problem} {problem:?}");
        assert!(!printed.contains("hunter2"), "{printed}");
        problem.to_string()
    }

    #[test]
    fn fields_and_an_expiry_are_read() {
        let ExpiringCredential { fields, lifetime } =
            parse(r#"{"fields": {"token": "hunter2hunter2", "port": 123456789}, "expires": "2026-11-18T09:30:00Z", "more": 1}"#)
                .unwrap();
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["port", "token"]);
        assert_eq!(lifetime, Duration::from_secs(1800));
    }

    #[test]
    fn the_aws_format_is_read() {
        let aws = r#"{"Version": 1, "AccessKeyId": "hunter2AKIA", "SecretAccessKey": "hunter2key",
            "SessionToken": "hunter2token", "Expiration": "2026-11-18T11:00:00+01:00", "AccountId": "1"}"#;
        let ExpiringCredential { fields, lifetime } = parse(aws).unwrap();
        assert_eq!(
            fields.keys().collect::<Vec<_>>(),
            ["access_key_id", "secret_access_key", "session_token"]
        );
        assert_eq!(lifetime, Duration::from_secs(3600));
        let without_token = aws.replace(r#""SessionToken": "hunter2token","#, "");
        assert_eq!(parse(&without_token).unwrap().fields.len(), 2);
        assert_eq!(refusal(&aws.replace("\"Version\": 1", "\"Version\": 2")), "its `Version` is not 1");
        assert_eq!(refusal(&aws.replace("\"Version\": 1,", "")), "its `Version` is not 1");
        assert!(refusal(&aws.replace("SecretAccessKey", "Secret")).contains("AWS's format"));
        assert!(refusal(&aws.replace("Expiration", "Expires")).starts_with("it printed no `Expiration`"));
        assert!(refusal(&aws.replace("\"Version\"", "\"fields\": {}, \"Version\"")).contains("both"));
    }

    #[test]
    fn a_distant_expiry_is_capped_and_a_past_one_is_refused() {
        let with =
            |expires: &str| format!(r#"{{"fields": {{"token": "hunter2hunter2"}}, "expires": {expires}}}"#);
        assert_eq!(parse(&with("\"9999-12-31T23:59:59Z\"")).unwrap().lifetime, MAX_LIFETIME);
        assert_eq!(parse(&with("\"2026-11-18T09:00:00.001Z\"")).unwrap().lifetime, Duration::from_millis(1));
        for past in ["2026-11-18T09:00:00Z", "2026-11-18T08:59:59.999Z", "1970-01-01T00:00:00Z"] {
            let printed = refusal(&with(&format!("\"{past}\"")));
            assert!(
                printed.starts_with(&format!("the credential that it printed expired at {}", &past[..19])),
                "{printed}"
            );
        }
        for unreadable in
            ["\"hunter2\"", "1795080600", "\"\"", "\"2026-11-18\"", "{}", "\"2026-13-18T09:30:00Z\""]
        {
            assert!(refusal(&with(unreadable)).starts_with("its `expires` is not a time"), "{unreadable}");
        }
        assert!(refusal(&with("null")).starts_with("it printed no `expires`"));
    }

    #[test]
    fn output_in_another_format_is_refused_and_not_repeated_in_the_error() {
        for content in [
            "",
            "hunter2",
            "\"hunter2\"",
            "[]",
            "{}",
            "{\"fields\": {\"token\": \"hunter2hunter2\"}",
            r#"{"fields": "hunter2", "expires": "2026-11-18T09:30:00Z"}"#,
            r#"{"token": "hunter2hunter2", "expires": "2026-11-18T09:30:00Z"}"#,
            r#"{"fields": {"token": "hunter2hunter2"}, "fields": {}, "expires": "2026-11-18T09:30:00Z"}"#,
        ] {
            assert!(refusal(content).starts_with("it printed neither"), "{content}");
        }
        let fields = |fields: &str| format!(r#"{{"fields": {fields}, "expires": "2026-11-18T09:30:00Z"}}"#);
        assert_eq!(refusal(&fields("{}")), "it is empty");
        assert_eq!(refusal(&fields(r#"{"token": null}"#)), "its field `token` is null, a list or an object");
        assert!(refusal(&fields(r#"{"token": "hunter2"}"#)).contains("fewer than 8"));
        assert!(
            refusal(&fields(r#"{"a": "hunter2hunter2", "a": "hunter2hunter2"}"#)).contains("given twice")
        );
    }
}
