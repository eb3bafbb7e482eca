//! The JSON envelope of every response of Vault.
//!
//! What must stay true: only counts, durations and public properties can be printed; secrets are in memory that is
//! wiped when dropped; durations count from before the request was sent, and no number in a response can overflow an
//! `Instant`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::token::{Accessor, LeaseId, Token};

/// Longer durations are cut to this, so that they can be added to an `Instant`.
const MAX_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Further warnings are dropped.
const MAX_WARNINGS: usize = 8;

/// One response.
pub struct Envelope {
    /// In Vault's audit log this is `request.id`.
    pub request_id: String,
    pub lease_id: Option<LeaseId>,
    /// Zero if Vault states none. The lease also ends with its token, which may be earlier.
    pub lease_duration: Duration,
    pub renewable: bool,
    pub warnings: Vec<String>,
    pub wrap_info: Option<WrapInfo>,
    pub auth: Option<Auth>,
    pub data: Option<Data>,
    /// When the request was about to be sent: durations count from here.
    pub requested_at: Instant,
    /// The `Date` header of the response.
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
    /// Zero: the token does not expire.
    pub lease_duration: Duration,
    pub renewable: bool,
    /// It does not end with its parent.
    pub orphan: bool,
    pub requested_at: Instant,
}

/// A wrapped response: the token that unwraps it, once.
pub struct WrapInfo {
    pub token: Token,
    pub ttl: Duration,
    pub creation_path: String,
}

/// The data of a response as JSON, in memory that is wiped when dropped.
pub struct Data(Zeroizing<Vec<u8>>);

impl Envelope {
    /// Reads a response. An empty one is an empty envelope. An error says what is wrong.
    pub(crate) fn read(response: &[u8], requested_at: Instant) -> Result<Self, &'static str> {
        let raw: RawEnvelope<'_> = match response.trim_ascii().is_empty() {
            true => RawEnvelope::default(),
            false => serde_json::from_slice(response).map_err(|_| "it is not a JSON response of Vault")?,
        };
        let mut warnings = raw.warnings.unwrap_or_default();
        warnings.truncate(MAX_WARNINGS);
        Ok(Self {
            request_id: raw.request_id.unwrap_or_default(),
            lease_id: raw
                .lease_id
                .filter(|ZeroizingString(id)| !id.is_empty())
                .map(|ZeroizingString(id)| LeaseId::new(id)),
            lease_duration: Duration::from_secs(raw.lease_duration.unwrap_or_default()),
            renewable: raw.renewable.unwrap_or_default(),
            warnings,
            wrap_info: raw.wrap_info.map(RawWrapInfo::check).transpose()?,
            auth: raw.auth.map(|auth| auth.check(requested_at)).transpose()?,
            data: raw.data.map(|data| Data(Zeroizing::new(data.get().as_bytes().to_vec()))),
            requested_at,
            date: None,
        })
    }

    /// When the lease expires, if its token lives that long.
    pub fn expires(&self) -> Option<Instant> {
        expiry(self.requested_at, self.lease_duration)
    }
}

impl Auth {
    /// When the token expires; `None` if it does not.
    pub fn expires(&self) -> Option<Instant> {
        expiry(self.requested_at, self.lease_duration)
    }
}

impl Data {
    /// For a response without data.
    pub(crate) fn empty() -> Self {
        Self(Zeroizing::new(b"{}".to_vec()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the data as `T`. The memory of `T` is wiped only if `T` wipes it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, &'static str> {
        serde_json::from_slice(&self.0).map_err(|_| "its data does not have the expected form")
    }

    /// The string at `name`, in memory that is wiped when dropped.
    pub fn text(&self, name: &str) -> Option<Zeroizing<String>> {
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.0).ok()?;
        let ZeroizingString(text) = serde_json::from_str(members.get(name)?.get()).ok()?;
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

/// The end of a duration; `None` for zero, which in Vault means "never" or "not stated".
pub(crate) fn expiry(start: Instant, lifetime: Duration) -> Option<Instant> {
    (!lifetime.is_zero()).then(|| start + lifetime.min(MAX_LIFETIME))
}

#[derive(Default, Deserialize)]
struct RawEnvelope<'a> {
    request_id: Option<String>,
    lease_id: Option<ZeroizingString>,
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
    client_token: ZeroizingString,
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
    token: ZeroizingString,
    ttl: Option<u64>,
    creation_path: Option<String>,
}

/// A string in memory that is wiped when dropped.
struct ZeroizingString(Zeroizing<String>);

impl RawAuth {
    fn check(self, requested_at: Instant) -> Result<Auth, &'static str> {
        let token = Token::read(self.client_token.0.as_bytes())
            .map_err(|_| "it is a login without a token; does the method require a second factor?")?;
        Ok(Auth {
            token,
            accessor: self.accessor.filter(|accessor| !accessor.is_empty()).map(Accessor::new),
            policies: self.policies.unwrap_or_default(),
            metadata: self.metadata.unwrap_or_default(),
            entity_id: self.entity_id.unwrap_or_default(),
            lease_duration: Duration::from_secs(self.lease_duration.unwrap_or_default()),
            renewable: self.renewable.unwrap_or_default(),
            orphan: self.orphan.unwrap_or_default(),
            requested_at,
        })
    }
}

impl RawWrapInfo {
    fn check(self) -> Result<WrapInfo, &'static str> {
        let token = Token::read(self.token.0.as_bytes())
            .map_err(|_| "it has wrapping information without a token")?;
        let ttl = Duration::from_secs(self.ttl.unwrap_or_default());
        Ok(WrapInfo { token, ttl, creation_path: self.creation_path.unwrap_or_default() })
    }
}

impl<'de> Deserialize<'de> for ZeroizingString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(response: &str) -> Result<Envelope, &'static str> {
        Envelope::read(response.as_bytes(), Instant::now())
    }

    #[tokio::test]
    async fn everything_is_read_and_no_secret_is_printed() {
        let envelope = read(
            r#"{"request_id": "r-1", "lease_id": "db/creds/x/CANARY", "lease_duration": 6, "renewable": true,
                "data": {"password": "CANARY"}, "warnings": ["CANARY"], "new_thing": {},
                "wrap_info": {"token": "s.CANARY", "ttl": 60, "creation_path": "auth/approle/role/r/secret-id"},
                "auth": {"client_token": "hvs.CANARY", "accessor": "abcdCANARY", "policies": ["default"], "lease_duration": 60}}"#,
        )
        .unwrap();
        assert_eq!(envelope.expires(), Some(envelope.requested_at + Duration::from_secs(6)));
        assert_eq!(envelope.data.as_ref().unwrap().text("password").unwrap().as_str(), "CANARY");
        assert_eq!(envelope.auth.as_ref().unwrap().policies, ["default"]);
        assert_eq!(envelope.lease_id.as_ref().unwrap().expose(), "db/creds/x/CANARY");
        assert!(!format!("{envelope:?} {envelope:#?}").contains("CANARY"), "{envelope:?}");
    }

    #[tokio::test]
    async fn unexpected_responses_are_refused_or_harmless() {
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
