//! Which servers the upstream connects to: certificates, addresses, plain text.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use cofferdam_net::{Dialer, Resolve, Resolving, SystemResolver, Trust, client_config};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};

use super::server::{Server, TestResponse};
use super::*;

struct Authority {
    roots: RootCertStore,
    issuer: Issuer<'static, KeyPair>,
}

/// Resolves every name to this address, and records the names.
struct FixedResolver(&'static str, Mutex<Vec<String>>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(params.self_signed(&key).unwrap().der().clone()).unwrap();
        Self { roots, issuer: Issuer::new(params, key) }
    }

    fn server_config(&self, name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Arc::new(config)
    }

    fn trusted(&self) -> Trust {
        Trust::Given(client_config(self.roots.clone(), None).unwrap())
    }
}

impl Resolve for FixedResolver {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        self.1.lock().unwrap().push(name.to_owned());
        let address = SocketAddr::new(self.0.parse().unwrap(), port);
        Box::pin(async move { Ok(vec![address]) })
    }
}

fn resolver(address: &'static str) -> Arc<FixedResolver> {
    Arc::new(FixedResolver(address, Mutex::default()))
}

/// Sends one request to `url`; returns the response or the failure.
async fn request_once(
    url: &str,
    addresses: AddressPolicy,
    dialer: Dialer,
    headers: Arc<dyn Credentials>,
) -> Result<String, Failure> {
    let target = HttpTarget { url: url.parse().unwrap(), addresses };
    let mut upstream = HttpUpstream::with_dialer(target, limits(), dialer);
    upstream.send(request(1, "tools/list", "{}"), headers);
    match within(upstream.next()).await {
        Event::Message(bytes) => Ok(String::from_utf8(bytes).unwrap()),
        Event::Failed { failure, .. } => Err(failure),
        Event::Returned(_) | Event::SentWith { .. } | Event::SessionLost => panic!("there was no session"),
    }
}

#[tokio::test]
async fn https_works_with_a_trusted_authority() {
    let authority = Authority::new();
    let server =
        Server::start_with(Some(authority.server_config("mcp.test")), |_| TestResponse::json(result(1)))
            .await;
    let dialer = Dialer::new(resolver("127.0.0.1"), authority.trusted());
    let url = format!("https://mcp.test:{}/mcp", server.port());
    assert_eq!(request_once(&url, AddressPolicy::PrivateToo, dialer, credentials()).await, Ok(result(1)));
    assert_eq!(server.seen()[0].header("host"), Some(&*format!("mcp.test:{}", server.port())));
}

#[tokio::test]
async fn another_authority_or_another_name_gets_no_request() {
    let authority = Authority::new();
    let server =
        Server::start_with(Some(authority.server_config("mcp.test")), |_| TestResponse::json(result(1)))
            .await;
    let other_authority = Dialer::new(resolver("127.0.0.1"), Authority::new().trusted());
    let url = format!("https://mcp.test:{}/mcp", server.port());
    let refused = request_once(&url, AddressPolicy::PrivateToo, other_authority, credentials()).await;
    assert!(
        matches!(&refused, Err(Failure::DidNotRun { why }) if why.contains("certificate")),
        "{refused:?}"
    );

    let misnamed = Dialer::new(resolver("127.0.0.1"), authority.trusted());
    let url = format!("https://other.test:{}/mcp", server.port());
    let refused = request_once(&url, AddressPolicy::PrivateToo, misnamed, credentials()).await;
    assert!(
        matches!(&refused, Err(Failure::DidNotRun { why }) if why.contains("certificate")),
        "{refused:?}"
    );
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn an_authority_that_the_system_does_not_trust_is_refused() {
    let authority = Authority::new();
    let server =
        Server::start_with(Some(authority.server_config("127.0.0.1")), |_| TestResponse::json(result(1)))
            .await;
    let refused = request_once(
        &server.url(),
        AddressPolicy::PublicOnly,
        Dialer::trusting(Trust::System),
        credentials(),
    )
    .await;
    assert!(matches!(refused, Err(Failure::DidNotRun { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_refused() {
    let server = Server::start(|_| TestResponse::json(result(1))).await;
    let url = format!("http://mcp.test:{}/mcp", server.port());
    for inside in ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254"] {
        let dialer = Dialer::new(resolver(inside), Trust::System);
        let refused = request_once(&url, AddressPolicy::PublicOnly, dialer, no_credentials()).await;
        assert!(
            matches!(&refused, Err(Failure::DidNotRun { why }) if why.contains("private = true")),
            "{refused:?}"
        );
    }
    assert_eq!(server.connections(), 0);

    let dialer = Dialer::new(resolver("127.0.0.1"), Trust::System);
    assert_eq!(request_once(&url, AddressPolicy::PrivateToo, dialer, no_credentials()).await, Ok(result(1)));
}

#[tokio::test]
async fn loopback_in_the_configured_url_needs_no_permission() {
    let server = Server::start(|_| TestResponse::json(result(1))).await;
    let localhost = resolver("127.0.0.1");
    let dialer = Dialer::new(localhost.clone(), Trust::System);
    let url = format!("http://localhost:{}/mcp", server.port());
    assert_eq!(
        request_once(&url, AddressPolicy::PublicOnly, dialer.clone(), credentials()).await,
        Ok(result(1))
    );
    assert_eq!(*localhost.1.lock().unwrap(), ["localhost"]);
    assert_eq!(
        request_once(&server.url(), AddressPolicy::PublicOnly, dialer, credentials()).await,
        Ok(result(1))
    );
    assert_eq!(localhost.1.lock().unwrap().len(), 1, "an address is not looked up");
}

#[tokio::test]
async fn credentials_are_not_sent_in_plain_text() {
    let server = Server::start(|_| TestResponse::json(result(1))).await;
    let dialer = Dialer::new(resolver("127.0.0.1"), Trust::System);
    let url = format!("http://mcp.test:{}/mcp", server.port());
    let refused = request_once(&url, AddressPolicy::PrivateToo, dialer, credentials()).await;
    assert!(matches!(&refused, Err(Failure::DidNotRun { why }) if why.contains("https://")), "{refused:?}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_request_to_an_unknown_name_did_not_run() {
    let dialer = Dialer::new(Arc::new(SystemResolver), Trust::System);
    let refused =
        request_once("http://no-such-host.invalid/mcp", AddressPolicy::PublicOnly, dialer, no_credentials())
            .await;
    assert!(
        matches!(&refused, Err(Failure::DidNotRun { why }) if why.contains("no-such-host.invalid")),
        "{refused:?}"
    );
}
