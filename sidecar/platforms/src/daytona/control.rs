//! Daytona's control API: the only service that gets the API key.
//!
//! What must stay true: reading the state of a sandbox does not resume it; addresses that the API reports are checked before
//! anything is sent there.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::{AddressPolicy, Dialer, Host, OneShotError};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Uri};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::token::SandboxToken;
use crate::redactor::Redactor;
use crate::rest::{Call, Reply, Service, request_failed, secret_header};
use crate::{ApiKey, PlatformError, PlatformSettings, SandboxId, Suspension};

pub(super) struct Control {
    service: Service,
    dialer: Dialer,
    /// Replaces the address at which the services of sandboxes are reached.
    sandbox_url: Option<Uri>,
    /// Which addresses that the API reports are permitted.
    policy: AddressPolicy,
    redactor: Redactor,
}

/// What the API reports about a sandbox.
pub(super) struct SandboxRecord {
    pub(super) phase: Phase,
    /// The address of the toolbox proxy; the sandbox's id is appended to its path.
    pub(super) toolbox_url: String,
}

/// The states of a sandbox, grouped by what can be done in them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Started,
    /// The sandbox will be started without further requests.
    Starting,
    /// The sandbox will be suspended; until then Daytona refuses to start it.
    Stopping(Suspension),
    Suspended(Suspension),
    /// With the reason that the API gives.
    Failed(String),
    Gone,
}

/// A port's public address and the token for it.
#[derive(Deserialize)]
pub(super) struct Preview {
    pub(super) url: String,
    pub(super) token: SandboxToken,
}

/// A token for the SSH gateway, and the gateway's address as a command line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SshAccess {
    pub(super) token: SandboxToken,
    /// It contains the token.
    #[serde(deserialize_with = "zeroizing")]
    pub(super) ssh_command: Zeroizing<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSandbox {
    id: Option<String>,
    state: Option<String>,
    error_reason: Option<String>,
    toolbox_proxy_url: String,
}

const TIMEOUT: Duration = Duration::from_secs(20);
/// The lifetime of an SSH token. It is needed only while connecting; a shorter one might fail if clocks differ.
const SSH_MINUTES: u32 = 5;

const FINDING: &str = "find the sandbox at Daytona";
const STARTING: &str = "start the sandbox at Daytona";
const PREVIEW: &str = "get the address of the hub's port from Daytona";
const SSH_ACCESS: &str = "get SSH access to the sandbox from Daytona";
const ACTIVITY: &str = "report to Daytona that the sandbox is in use";

impl Control {
    pub(super) fn new(
        settings: &PlatformSettings,
        key: &ApiKey,
        dialer: &Dialer,
        redactor: Redactor,
    ) -> Result<Self, PlatformError> {
        // With `api-url` the operator may host Daytona in a private network; the public Daytona has public addresses only.
        let policy = match settings.api_url {
            Some(_) => AddressPolicy::PrivateToo,
            None => AddressPolicy::PublicOnly,
        };
        let url = settings.effective_api_url();
        let headers = HeaderMap::from_iter([secret_header(AUTHORIZATION, bearer_header(key))]);
        redactor.add("api-key", key.header().as_bytes());
        let service = Service::new(dialer, &url, policy, headers, &redactor)?;
        let (dialer, sandbox_url) = (dialer.clone(), settings.sandbox_url.clone());
        Ok(Self { service, dialer, sandbox_url, policy, redactor })
    }

    pub(super) async fn sandbox(&self, id: &SandboxId) -> Result<SandboxRecord, PlatformError> {
        let reply = self.call(FINDING, Method::GET, &format!("/sandbox/{id}")).await?;
        if !reply.status.is_success() {
            return Err(self.service.refusal(FINDING, id, &reply));
        }
        let raw: RawSandbox = reply.json(FINDING)?;
        // Daytona also finds a sandbox by its name.
        id.check_reported(FINDING, raw.id.as_deref(), &self.redactor)?;
        let state = raw.state.as_deref().unwrap_or_default();
        let phase = phase(state, raw.error_reason.as_deref(), &self.redactor)?;
        Ok(SandboxRecord { phase, toolbox_url: raw.toolbox_proxy_url })
    }

    /// Requests the start of a suspended sandbox; returns before it runs.
    pub(super) async fn start(&self, id: &SandboxId) -> Result<(), PlatformError> {
        let reply = self.call(STARTING, Method::POST, &format!("/sandbox/{id}/start")).await?;
        match reply.status.as_u16() {
            200..=299 => Ok(()),
            // The state is already changing; the caller polls it.
            409 => Ok(()),
            // The key was accepted just before, so this means that a limit of the organisation is reached.
            403 => Err(PlatformError::Quota { action: STARTING, why: self.service.message(&reply) }),
            _ => Err(self.service.refusal(STARTING, id, &reply)),
        }
    }

    pub(super) async fn preview(&self, id: &SandboxId, port: u16) -> Result<Preview, PlatformError> {
        let path = format!("/sandbox/{id}/ports/{port}/preview-url");
        let reply = self.call(PREVIEW, Method::GET, &path).await?;
        if !reply.status.is_success() {
            return Err(self.service.refusal(PREVIEW, id, &reply));
        }
        let preview: Preview = reply.json(PREVIEW)?;
        self.redactor.add("token", preview.token.text().as_bytes());
        Ok(preview)
    }

    pub(super) async fn ssh_access(&self, id: &SandboxId) -> Result<SshAccess, PlatformError> {
        let path = format!("/sandbox/{id}/ssh-access?expiresInMinutes={SSH_MINUTES}");
        let reply = self.call(SSH_ACCESS, Method::POST, &path).await?;
        if !reply.status.is_success() {
            return Err(self.service.refusal(SSH_ACCESS, id, &reply));
        }
        let access: SshAccess = reply.json(SSH_ACCESS)?;
        self.redactor.add("token", access.token.text().as_bytes());
        Ok(access)
    }

    /// Resets the sandbox's auto-stop timer.
    pub(super) async fn refresh_activity(&self, id: &SandboxId) -> Result<(), PlatformError> {
        let reply = self.call(ACTIVITY, Method::POST, &format!("/sandbox/{id}/last-activity")).await?;
        match reply.status.is_success() {
            true => Ok(()),
            false => Err(self.service.refusal(ACTIVITY, id, &reply)),
        }
    }

    /// The client of a service of the sandbox, at an address that the API reported.
    pub(super) fn sandbox_service(
        &self,
        action: &'static str,
        url: &Uri,
        headers: HeaderMap,
    ) -> Result<Service, PlatformError> {
        let service_at = |headers| Service::new(&self.dialer, url, self.policy, headers, &self.redactor);
        let Some(override_url) = &self.sandbox_url else {
            self.check_reported_host(action, &Host::parse(url.host().unwrap_or_default()))?;
            return service_at(headers);
        };
        let policy = AddressPolicy::PrivateToo;
        let override_url =
            Service::new(&self.dialer, override_url, policy, HeaderMap::new(), &self.redactor)?;
        Ok(service_at(headers)?.dialled_at(override_url))
    }

    /// Parses an address that the API reported.
    pub(super) fn parse_reported_address(
        &self,
        action: &'static str,
        url: &str,
    ) -> Result<Uri, PlatformError> {
        url.parse().map_err(|_| {
            let url = self.redactor.printable(url);
            PlatformError::Protocol {
                action,
                why: format!("Daytona reports an address that is not a URL: `{url}`"),
            }
        })
    }

    /// Resolves a host that the API reported, and checks the address as for every connection. Another program (`ssh`) is given
    /// the address, not the name, because the name may resolve to another address the next time.
    pub(super) async fn permitted_address(
        &self,
        action: &'static str,
        host: &Host,
        port: u16,
    ) -> Result<IpAddr, PlatformError> {
        self.check_reported_host(action, host)?;
        let found = self.dialer.reachable_address(host, port, self.policy, TIMEOUT).await;
        found
            .map(|address| address.ip())
            .map_err(|error| request_failed(action, &OneShotError::Connect(error), &self.redactor))
    }

    /// Refuses loopback addresses, which are those of this machine, unless the operator has configured `api-url`.
    fn check_reported_host(&self, action: &'static str, host: &Host) -> Result<(), PlatformError> {
        if self.policy == AddressPolicy::PublicOnly && host.is_loopback() {
            let why =
                "Daytona reports an address of the sidecar's own machine, which is not permitted".to_owned();
            return Err(PlatformError::Protocol { action, why });
        }
        Ok(())
    }

    pub(super) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    async fn call(&self, action: &'static str, method: Method, path: &str) -> Result<Reply, PlatformError> {
        let body = (method == Method::POST).then(|| Bytes::from_static(b"{}"));
        self.service.send(Call { action, method, path, body, timeout: TIMEOUT }).await
    }
}

fn phase(state: &str, error_reason: Option<&str>, redactor: &Redactor) -> Result<Phase, PlatformError> {
    Ok(match state {
        "started" | "resizing" | "snapshotting" | "forking" => Phase::Started,
        "creating" | "restoring" | "starting" | "resuming" | "pulling_snapshot" | "pending_build"
        | "building_snapshot" => Phase::Starting,
        "archiving" => Phase::Stopping(Suspension::Archived),
        "pausing" => Phase::Stopping(Suspension::Paused),
        "stopping" => Phase::Stopping(Suspension::Stopped),
        "archived" => Phase::Suspended(Suspension::Archived),
        "paused" => Phase::Suspended(Suspension::Paused),
        "stopped" => Phase::Suspended(Suspension::Stopped),
        "error" | "build_failed" => Phase::Failed(redactor.printable(error_reason.unwrap_or(state))),
        "destroyed" | "destroying" => Phase::Gone,
        other => {
            let other = redactor.printable(other);
            let why = format!("Daytona reports the state `{other}`, which this version does not know");
            return Err(PlatformError::Unavailable { action: FINDING, why, retry_after: None });
        }
    })
}

fn zeroizing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

fn bearer_header(key: &ApiKey) -> HeaderValue {
    let bare = key.header();
    let value = Zeroizing::new([b"Bearer ", bare.as_bytes()].concat());
    HeaderValue::from_maybe_shared(Bytes::from_owner(value)).expect("the key is already a valid header value")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use cofferdam_net::{Resolve, Resolving, Trust};

    use super::*;
    use crate::PlatformKind;

    fn control(api_url: Option<&'static str>, sandbox_url: Option<&'static str>) -> Control {
        control_dialling(api_url, sandbox_url, &Dialer::trusting(Trust::System))
    }

    fn control_dialling(
        api_url: Option<&'static str>,
        sandbox_url: Option<&'static str>,
        dialer: &Dialer,
    ) -> Control {
        let settings = PlatformSettings {
            kind: PlatformKind::Daytona,
            api_url: api_url.map(Uri::from_static),
            sandbox_url: sandbox_url.map(Uri::from_static),
        };
        let key = ApiKey::new(HeaderValue::from_static("k3y"));
        Control::new(&settings, &key, dialer, Redactor::default()).unwrap()
    }

    #[test]
    fn the_services_of_a_sandbox_never_get_the_api_key() {
        let url = Uri::from_static("https://7000-box.proxy.example/");
        for control in [control(None, None), control(None, Some("http://127.0.0.1:9/x"))] {
            let request =
                control.sandbox_service(FINDING, &url, HeaderMap::new()).unwrap().request(Method::GET, "/");
            let request = request.body(()).unwrap();
            assert!(request.headers().get(AUTHORIZATION).is_none());
            assert_eq!(request.headers()[http::header::HOST], "7000-box.proxy.example");
        }
        let request = control(None, None).service.request(Method::GET, "/").body(()).unwrap();
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer k3y");
        assert!(request.headers()[AUTHORIZATION].is_sensitive());
    }

    #[test]
    fn http_addresses_from_the_api_are_refused() {
        let url = Uri::from_static("http://7000-box.proxy.example/");
        assert!(control(None, None).sandbox_service(FINDING, &url, HeaderMap::new()).is_err());
    }

    #[test]
    fn loopback_addresses_from_the_public_api_are_refused() {
        for url in ["https://127.0.0.1/toolbox", "https://localhost/", "https://[::1]/"] {
            let url = Uri::from_static(url);
            let refused = control(None, None).sandbox_service(FINDING, &url, HeaderMap::new());
            assert!(refused.is_err_and(|error| error.to_string().contains("own machine")), "{url}");
            let hosted_here = control(Some("https://127.0.0.1/api"), None);
            assert!(hosted_here.sandbox_service(FINDING, &url, HeaderMap::new()).is_ok(), "{url}");
        }
    }

    /// Resolves every name to this address.
    struct Fixed(&'static str);

    impl Resolve for Fixed {
        fn resolve<'a>(&'a self, _: &'a str, port: u16) -> Resolving<'a> {
            Box::pin(async move { Ok(vec![SocketAddr::new(self.0.parse().unwrap(), port)]) })
        }
    }

    #[tokio::test]
    async fn a_host_for_ssh_is_checked_as_for_every_connection() {
        let permitted = async |api_url: Option<&'static str>, host: &str, address: &'static str| {
            let dialer = Dialer::new(Arc::new(Fixed(address)), Trust::System);
            let control = control_dialling(api_url, None, &dialer);
            control.permitted_address(SSH_ACCESS, &Host::parse(host), 22).await
        };
        let public = "203.0.114.7";
        assert_eq!(permitted(None, "ssh.example", public).await.unwrap().to_string(), public);
        for inside in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "::1", "fe80::1", "fd00::1"]
        {
            for host in ["ssh.example", inside] {
                let error = permitted(None, host, inside).await.unwrap_err().to_string();
                assert!(
                    error.contains("no public address") || error.contains("own machine"),
                    "{host}: {error}"
                );
            }
        }
        assert!(permitted(None, "localhost", "127.0.0.1").await.is_err());
        let private = Some("https://daytona.internal/api");
        assert_eq!(permitted(private, "ssh.internal", "10.0.0.1").await.unwrap().to_string(), "10.0.0.1");
        assert!(permitted(private, "ssh.internal", "0.0.0.0").await.is_err());
    }

    #[test]
    fn states_are_grouped_into_phases_and_an_unknown_state_is_temporary() {
        for (state, expected) in [
            ("started", Phase::Started),
            ("restoring", Phase::Starting),
            ("archiving", Phase::Stopping(Suspension::Archived)),
            ("archived", Phase::Suspended(Suspension::Archived)),
            ("stopping", Phase::Stopping(Suspension::Stopped)),
            ("paused", Phase::Suspended(Suspension::Paused)),
            ("destroyed", Phase::Gone),
        ] {
            assert_eq!(phase(state, None, &Redactor::default()).unwrap(), expected, "{state}");
        }
        let redactor = Redactor::default();
        assert_eq!(phase("error", Some("no\ndisk"), &redactor).unwrap(), Phase::Failed("no disk".into()));
        assert!(phase("dreaming", None, &redactor).unwrap_err().may_succeed_later());
    }
}
