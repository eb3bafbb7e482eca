//! What Vault puts around every answer.
//!
//! What must stay true: nothing of it prints but counts, times and warnings' number; what is secret is in wiped memory;
//! times are counted from before the request was sent, and no number that a server sends can overflow one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::token::{Accessor, LeaseId, Token};

/// Longer than any of us: a clock can still count to it.
const MAX_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Warnings beyond these are not kept.
const MAX_WARNINGS: usize = 8;

/// One answer.
pub struct Envelope {
    /// Vault's audit log has it as `request.id`.
    pub request_id: String,
    pub lease_id: Option<LeaseId>,
    /// Zero where Vault says nothing. Not bounded by the life of the token, though the lease is.
    pub lease_duration: Duration,
    pub renewable: bool,
    pub warnings: Vec<String>,
    pub wrap_info: Option<WrapInfo>,
    pub auth: Option<Auth>,
    pub data: Option<Data>,
    /// From when durations count.
    pub asked_at: Instant,
    /// What Vault's own clock said when it answered.
    pub date: Option<SystemTime>,
}

/// A login, a renewal of one, or a new token.
pub struct Auth {
    pub token: Token,
    /// Batch tokens have none.
    pub accessor: Option<Accessor>,
    pub policies: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    pub entity_id: String,
    /// Zero means that it does not expire.
    pub lease_duration: Duration,
    pub renewable: bool,
    /// It does not end with the token that made it.
    pub orphan: bool,
    pub asked_at: Instant,
}

/// A wrapped answer: the token that opens it once.
pub struct WrapInfo {
    pub token: Token,
    pub ttl: Duration,
    pub creation_path: String,
}

/// The data of an answer as JSON, in wiped memory.
pub struct Data(Zeroizing<Vec<u8>>);

impl Envelope {
    /// Reads an answer; says what is wrong with one that is none. An empty answer is an empty envelope.
    pub(crate) fn read(answer: &[u8], asked_at: Instant) -> Result<Self, &'static str> {
        let raw: RawEnvelope<'_> = match answer.trim_ascii().is_empty() {
            true => RawEnvelope::default(),
            false => serde_json::from_slice(answer).map_err(|_| "it is not the JSON that Vault sends")?,
        };
        let mut warnings = raw.warnings.unwrap_or_default();
        warnings.truncate(MAX_WARNINGS);
        Ok(Self {
            request_id: raw.request_id.unwrap_or_default(),
            lease_id: raw.lease_id.filter(|Wiped(id)| !id.is_empty()).map(|Wiped(id)| LeaseId::new(id)),
            lease_duration: Duration::from_secs(raw.lease_duration.unwrap_or_default()),
            renewable: raw.renewable.unwrap_or_default(),
            warnings,
            wrap_info: raw.wrap_info.map(RawWrapInfo::check).transpose()?,
            auth: raw.auth.map(|auth| auth.check(asked_at)).transpose()?,
            data: raw.data.map(|data| Data(Zeroizing::new(data.get().as_bytes().to_vec()))),
            asked_at,
            date: None,
        })
    }

    /// When the lease ends, were its token to live that long.
    pub fn expires(&self) -> Option<Instant> {
        end(self.asked_at, self.lease_duration)
    }
}

impl Auth {
    /// When the token ends; none if it does not.
    pub fn expires(&self) -> Option<Instant> {
        end(self.asked_at, self.lease_duration)
    }
}

impl Data {
    /// Where an answer has none.
    pub(crate) fn empty() -> Self {
        Self(Zeroizing::new(b"{}".to_vec()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads it as `T`. What `T` owns is wiped only if `T` does it.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, &'static str> {
        serde_json::from_slice(&self.0).map_err(|_| "its data has another form than this call gives")
    }

    /// The text at `name`.
    pub(crate) fn text(&self, name: &str) -> Option<Zeroizing<String>> {
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.0).ok()?;
        let Wiped(text) = serde_json::from_str(members.get(name)?.get()).ok()?;
        Some(text)
    }

    /// The object at `name`.
    pub(crate) fn part(&self, name: &str) -> Option<Self> {
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.0).ok()?;
        let part = members.get(name)?.get();
        (part != "null").then(|| Self(Zeroizing::new(part.as_bytes().to_vec())))
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("request_id", &self.request_id)
            .field("lease_id", &self.lease_id)
            .field("lease_duration", &self.lease_duration)
            .field("renewable", &self.renewable)
            .field("warnings", &self.warnings.len())
            .field("wrap_info", &self.wrap_info)
            .field("auth", &self.auth)
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("accessor", &self.accessor)
            .field("policies", &self.policies)
            .field("lease_duration", &self.lease_duration)
            .field("renewable", &self.renewable)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WrapInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrapInfo")
            .field("creation_path", &self.creation_path)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.0.len())
    }
}

/// When something that lives `life` from `start` ends; none for zero, which is Vault's "never" or "nothing".
pub(crate) fn end(start: Instant, life: Duration) -> Option<Instant> {
    (!life.is_zero()).then(|| start + life.min(MAX_LIFE))
}

#[derive(Default, Deserialize)]
struct RawEnvelope<'a> {
    request_id: Option<String>,
    lease_id: Option<Wiped>,
    lease_duration: Option<u64>,
    renewable: Option<bool>,
    warnings: Option<Vec<String>>,
    wrap_info: Option<RawWrapInfo>,
    auth: Option<RawAuth>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawAuth {
    client_token: Wiped,
    accessor: Option<String>,
    policies: Option<Vec<String>>,
    metadata: Option<BTreeMap<String, String>>,
    entity_id: Option<String>,
    lease_duration: Option<u64>,
    renewable: Option<bool>,
    orphan: Option<bool>,
}

#[derive(Deserialize)]
struct RawWrapInfo {
    token: Wiped,
    ttl: Option<u64>,
    creation_path: Option<String>,
}

/// A text that is wiped.
struct Wiped(Zeroizing<String>);

impl RawAuth {
    fn check(self, asked_at: Instant) -> Result<Auth, &'static str> {
        let token = Token::read(self.client_token.0.as_bytes())
            .map_err(|_| "it is a login without a token; does the method want a second factor?")?;
        Ok(Auth {
            token,
            accessor: self.accessor.filter(|accessor| !accessor.is_empty()).map(Accessor::new),
            policies: self.policies.unwrap_or_default(),
            metadata: self.metadata.unwrap_or_default(),
            entity_id: self.entity_id.unwrap_or_default(),
            lease_duration: Duration::from_secs(self.lease_duration.unwrap_or_default()),
            renewable: self.renewable.unwrap_or_default(),
            orphan: self.orphan.unwrap_or_default(),
            asked_at,
        })
    }
}

impl RawWrapInfo {
    fn check(self) -> Result<WrapInfo, &'static str> {
        let token = Token::read(self.token.0.as_bytes()).map_err(|_| "it is a wrapping without a token")?;
        let ttl = Duration::from_secs(self.ttl.unwrap_or_default());
        Ok(WrapInfo { token, ttl, creation_path: self.creation_path.unwrap_or_default() })
    }
}

impl<'de> Deserialize<'de> for Wiped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> Result<Envelope, &'static str> {
        Envelope::read(answer.as_bytes(), Instant::now())
    }

    #[tokio::test]
    async fn everything_is_kept_and_nothing_is_shown() {
        let envelope = read(
            r#"{"request_id": "r-1", "lease_id": "db/creds/x/CANARY", "lease_duration": 6, "renewable": true,
                "data": {"password": "CANARY"}, "warnings": ["CANARY"], "new_thing": {},
                "wrap_info": {"token": "s.CANARY", "ttl": 60, "creation_path": "auth/approle/role/r/secret-id"},
                "auth": {"client_token": "hvs.CANARY", "accessor": "abcdCANARY", "policies": ["default"], "lease_duration": 60}}"#,
        )
        .unwrap();
        assert_eq!(envelope.expires(), Some(envelope.asked_at + Duration::from_secs(6)));
        assert_eq!(envelope.data.as_ref().unwrap().text("password").unwrap().as_str(), "CANARY");
        assert_eq!(envelope.auth.as_ref().unwrap().policies, ["default"]);
        assert_eq!(envelope.lease_id.as_ref().unwrap().expose(), "db/creds/x/CANARY");
        assert!(!format!("{envelope:?} {envelope:#?}").contains("CANARY"), "{envelope:?}");
    }

    #[tokio::test]
    async fn odd_answers_are_refused_or_harmless() {
        assert!(read("").unwrap().data.is_none());
        let forever = read(r#"{"lease_duration": 18446744073709551615, "lease_id": ""}"#).unwrap();
        assert!(forever.expires().unwrap() > Instant::now() + Duration::from_secs(3600));
        assert!(forever.lease_id.is_none());
        for bad in [
            "<html>",
            "[]",
            "{",
            r#"{"lease_duration": -1}"#,
            r#"{"lease_duration": "6"}"#,
            r#"{"auth": {"client_token": ""}}"#,
            r#"{"auth": {"client_token": "a\nb"}}"#,
            r#"{"auth": {}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read(&"[".repeat(100_000)).is_err());
    }
}
