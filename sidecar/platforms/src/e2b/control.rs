//! E2B's control API: finds and resumes a sandbox.
//!
//! What must stay true: the API key is sent to this API only; finding a sandbox does not resume it.

use bytes::Bytes;
use cofferdam_net::{AddressPolicy, Dialer};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde::{Deserialize, Deserializer};
use std::time::Duration;
use zeroize::Zeroizing;

use crate::redactor::Redactor;
use crate::rest::{Call, Service, secret_header};
use crate::{ApiKey, PlatformError, PlatformSettings, SandboxId, SandboxState, Suspension};

/// The port of `envd`, which is in its host name and in a header.
pub(super) const ENVD_PORT: u16 = 49983;
const FIND: &str = "find the sandbox on E2B";
const RESUME: &str = "resume the sandbox on E2B";
const FIND_TIMEOUT: Duration = Duration::from_secs(20);
/// Loading a snapshot takes seconds.
const RESUME_TIMEOUT: Duration = Duration::from_secs(90);
/// The lifetime of a resumed sandbox in seconds, the longest that every plan of E2B permits. It does not shorten that of a
/// running sandbox.
const RESUMED_LIFETIME: u32 = 3600;

/// The control API of one platform.
pub(super) struct Control {
    settings: PlatformSettings,
    key: ApiKey,
    dialer: Dialer,
    redactor: Redactor,
}

/// The state of a sandbox, and how its services are reached.
pub(super) struct Access {
    pub(super) state: SandboxState,
    pub(super) address: Uri,
    pub(super) policy: AddressPolicy,
    /// `envd`'s token, which changes with each resume.
    pub(super) token: Option<HeaderValue>,
    /// The user as whom processes run, if this version of `envd` has no default user.
    pub(super) user: Option<&'static str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SandboxResponse {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    /// Absent in the response to a resume, after which the sandbox runs.
    state: Option<String>,
    domain: Option<String>,
    envd_access_token: Option<TokenText>,
    envd_version: Option<String>,
}

struct TokenText(Zeroizing<String>);

impl<'de> Deserialize<'de> for TokenText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl Control {
    pub(super) fn new(settings: PlatformSettings, key: ApiKey, dialer: Dialer, redactor: Redactor) -> Self {
        redactor.add("api-key", key.header().as_bytes());
        Self { settings, key, dialer, redactor }
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(super) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    pub(super) async fn find(&self, id: &SandboxId) -> Result<Access, PlatformError> {
        let service = self.service()?;
        let path = format!("/sandboxes/{id}");
        let call = Call { action: FIND, method: Method::GET, path: &path, body: None, timeout: FIND_TIMEOUT };
        let reply = service.send(call).await?;
        match reply.status.as_u16() {
            200 => {
                let sandbox: SandboxResponse = reply.json(FIND)?;
                // E2B also finds a sandbox by its id with the id of a client, which older SDKs append.
                id.check_reported(FIND, sandbox.sandbox_id.as_deref(), &self.redactor)?;
                self.access(FIND, id, sandbox)
            }
            // The id has characters that E2B's own ids never have.
            400 if service.message(&reply).contains("sandbox ID") => {
                Err(PlatformError::NoSandbox { action: FIND, sandbox: id.to_string() })
            }
            _ => Err(service.refusal(FIND, id, &reply)),
        }
    }

    pub(super) async fn resume(&self, id: &SandboxId) -> Result<Access, PlatformError> {
        let service = self.service()?;
        let path = format!("/sandboxes/{id}/connect");
        let body = Bytes::from(format!(r#"{{"timeout":{RESUMED_LIFETIME}}}"#));
        let call = Call {
            action: RESUME,
            method: Method::POST,
            path: &path,
            body: Some(body),
            timeout: RESUME_TIMEOUT,
        };
        let reply = service.send(call).await?;
        match reply.status.as_u16() {
            200 | 201 => self.access(RESUME, id, reply.json(RESUME)?),
            _ => Err(service.refusal(RESUME, id, &reply)),
        }
    }

    fn service(&self) -> Result<Service, PlatformError> {
        let key = secret_header(HeaderName::from_static("x-api-key"), self.key.header());
        let headers = HeaderMap::from_iter([key]);
        Service::new(&self.dialer, &self.settings.effective_api_url(), self.policy(), headers, &self.redactor)
    }

    /// The public E2B has public addresses; a platform whose `api-url` the operator configured may be anywhere.
    fn policy(&self) -> AddressPolicy {
        match self.settings.api_url {
            Some(_) => AddressPolicy::Any,
            None => AddressPolicy::PublicOnly,
        }
    }

    fn access(
        &self,
        action: &'static str,
        id: &SandboxId,
        sandbox: SandboxResponse,
    ) -> Result<Access, PlatformError> {
        let state = match sandbox.state.as_deref() {
            None | Some("running") => SandboxState::Running,
            Some("paused") => SandboxState::Suspended(Suspension::Paused),
            Some(_) => {
                let why =
                    "the platform reports a state of the sandbox that this version does not know".to_owned();
                return Err(PlatformError::Protocol { action, why });
            }
        };
        if let Some(token) = &sandbox.envd_access_token {
            self.redactor.add("token", token.0.as_bytes());
        }
        let token = sandbox.envd_access_token.map(|token| token_header(action, token)).transpose()?;
        let user = is_before_default_users(sandbox.envd_version.as_deref()).then_some("user");
        let (address, policy) = match &self.settings.sandbox_url {
            Some(address) => (address.clone(), AddressPolicy::Any),
            None => (self.envd_address(action, id, sandbox.domain.as_deref())?, self.policy()),
        };
        Ok(Access { state, address, policy, token, user })
    }

    /// `https://49983-ID.DOMAIN`; if the platform reports no domain, it is that of the API.
    fn envd_address(
        &self,
        action: &'static str,
        id: &SandboxId,
        domain: Option<&str>,
    ) -> Result<Uri, PlatformError> {
        let api = self.settings.effective_api_url();
        let domain = domain.filter(|domain| !domain.is_empty());
        let is_domain = |text: &&str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
        };
        let domain = domain.or_else(|| api.host()?.strip_prefix("api.")).filter(is_domain);
        domain.and_then(|domain| format!("https://{ENVD_PORT}-{id}.{domain}").parse().ok()).ok_or_else(|| {
            let why = "the platform does not report the address of the sandbox; set `sandbox-url`".to_owned();
            PlatformError::Protocol { action, why }
        })
    }
}

/// The token as the value of a header, in memory that is zeroized on drop.
fn token_header(action: &'static str, token: TokenText) -> Result<HeaderValue, PlatformError> {
    let bytes = Bytes::from_owner(Zeroizing::new(token.0.as_bytes().to_vec()));
    HeaderValue::from_maybe_shared(bytes).map_err(|_| PlatformError::Protocol {
        action,
        why: "the sandbox's access token cannot be sent as a header".to_owned(),
    })
}

/// Whether `envd` is older than 0.4.0 and refuses a request without a user. A version that cannot be parsed counts as newer.
fn is_before_default_users(version: Option<&str>) -> bool {
    let mut numbers = version.unwrap_or_default().split('.').map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(0_u32)), Some(Ok(0..=3))))
}

#[cfg(test)]
mod tests {
    use cofferdam_net::Trust;

    use super::*;
    use crate::PlatformKind;

    #[test]
    fn the_address_of_envd_comes_from_the_platform_or_the_operator() {
        let address = |api: Option<&'static str>, sandbox: Option<&'static str>, domain: Option<&str>| {
            let sandbox =
                control(api, sandbox).access(FIND, &"box1".parse().unwrap(), sandbox_response(domain));
            sandbox
                .map(|access| (access.address.to_string(), access.policy))
                .map_err(|error| error.to_string())
        };
        let public = |text: &str| Ok((text.to_owned(), AddressPolicy::PublicOnly));
        assert_eq!(address(None, None, Some("e2b.dev")), public("https://49983-box1.e2b.dev/"));
        assert_eq!(address(None, None, None), public("https://49983-box1.e2b.app/"));
        let any = |text: &str| Ok((text.to_owned(), AddressPolicy::Any));
        assert_eq!(
            address(Some("https://api.own.example"), None, None),
            any("https://49983-box1.own.example/")
        );
        assert_eq!(address(None, Some("http://127.0.0.1:9"), Some("x.y")), any("http://127.0.0.1:9/"));
        for hostile in ["evil.example/x", "a@b", "a:1", "a b"] {
            assert!(address(None, None, Some(hostile)).is_err(), "{hostile}");
        }
        assert!(address(Some("https://127.0.0.1"), None, None).is_err());
    }

    #[test]
    fn an_unknown_state_is_an_error() {
        let sandbox = SandboxResponse { state: Some("melting".into()), ..sandbox_response(None) };
        assert!(control(None, None).access(FIND, &"box1".parse().unwrap(), sandbox).is_err());
    }

    #[test]
    fn only_old_versions_of_envd_need_a_user() {
        assert!(is_before_default_users(Some("0.3.9")));
        for new in [Some("0.4.0"), Some("0.6.13"), Some("1.0.0"), Some("x"), None] {
            assert!(!is_before_default_users(new), "{new:?}");
        }
    }

    #[test]
    fn the_token_is_held_before_it_is_used() {
        let control = control(None, None);
        let token = || Some(TokenText(Zeroizing::new("t0ken-of-a-sandbox".to_owned())));
        let sandbox = SandboxResponse { envd_access_token: token(), ..sandbox_response(None) };
        control.access(FIND, &"box1".parse().unwrap(), sandbox).unwrap();
        assert_eq!(control.redactor.redact("t0ken-of-a-sandbox"), "[redacted:token]");
    }

    #[test]
    fn the_token_is_never_printed() {
        let token = token_header(FIND, TokenText(Zeroizing::new("tok-1".to_owned()))).unwrap();
        let (_, value) = secret_header(HeaderName::from_static("x-access-token"), token);
        assert!(!format!("{value:?}").contains("tok-1"));
    }

    fn control(api: Option<&'static str>, sandbox: Option<&'static str>) -> Control {
        let settings = PlatformSettings {
            kind: PlatformKind::E2b,
            api_url: api.map(Uri::from_static),
            sandbox_url: sandbox.map(Uri::from_static),
        };
        let key = ApiKey::new(HeaderValue::from_static("key"));
        Control::new(settings, key, Dialer::trusting(Trust::System), Redactor::default())
    }

    fn sandbox_response(domain: Option<&str>) -> SandboxResponse {
        let domain = domain.map(str::to_owned);
        SandboxResponse {
            sandbox_id: None,
            state: Some("running".into()),
            domain,
            envd_access_token: None,
            envd_version: None,
        }
    }
}
