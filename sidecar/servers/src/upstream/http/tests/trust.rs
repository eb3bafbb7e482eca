//! Who is at the other end: certificates, addresses, plain text.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use cofferdam_net::{Dialer, Resolve, Resolving, SystemResolver, Trust, client_config};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};

use super::server::{Answer, Server};
use super::*;

struct Authority {
    roots: RootCertStore,
    issuer: Issuer<'static, KeyPair>,
}

/// A name server that says what the test wants, and remembers what it was asked.
struct Says(&'static str, Mutex<Vec<String>>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(params.self_signed(&key).unwrap().der().clone()).unwrap();
        Self { roots, issuer: Issuer::new(params, key) }
    }

    fn server(&self, name: &str) -> Arc<ServerConfig> {
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

impl Resolve for Says {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        self.1.lock().unwrap().push(name.to_owned());
        let address = SocketAddr::new(self.0.parse().unwrap(), port);
        Box::pin(async move { Ok(vec![address]) })
    }
}

fn says(address: &'static str) -> Arc<Says> {
    Arc::new(Says(address, Mutex::default()))
}

/// One request to `url`; a message, or why there is none.
async fn ask(
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
async fn https_with_an_authority_that_is_trusted() {
    let authority = Authority::new();
    let server = Server::start_with(Some(authority.server("mcp.test")), |_| Answer::json(result(1))).await;
    let dialer = Dialer::new(says("127.0.0.1"), authority.trusted());
    let url = format!("https://mcp.test:{}/mcp", server.port());
    assert_eq!(ask(&url, AddressPolicy::PrivateToo, dialer, credentials()).await, Ok(result(1)));
    assert_eq!(server.seen()[0].header("host"), Some(&*format!("mcp.test:{}", server.port())));
}

#[tokio::test]
async fn another_authority_or_another_name_gets_no_request() {
    let authority = Authority::new();
    let server = Server::start_with(Some(authority.server("mcp.test")), |_| Answer::json(result(1))).await;
    let stranger = Dialer::new(says("127.0.0.1"), Authority::new().trusted());
    let url = format!("https://mcp.test:{}/mcp", server.port());
    let refused = ask(&url, AddressPolicy::PrivateToo, stranger, credentials()).await;
    assert!(matches!(&refused, Err(Failure::NotSent { why }) if why.contains("certificate")), "{refused:?}");

    let misnamed = Dialer::new(says("127.0.0.1"), authority.trusted());
    let url = format!("https://other.test:{}/mcp", server.port());
    let refused = ask(&url, AddressPolicy::PrivateToo, misnamed, credentials()).await;
    assert!(matches!(&refused, Err(Failure::NotSent { why }) if why.contains("certificate")), "{refused:?}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn the_systems_authorities_do_not_know_ours() {
    let authority = Authority::new();
    let server = Server::start_with(Some(authority.server("127.0.0.1")), |_| Answer::json(result(1))).await;
    let refused =
        ask(&server.url(), AddressPolicy::PublicOnly, Dialer::trusting(Trust::System), credentials()).await;
    assert!(matches!(refused, Err(Failure::NotSent { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_name_that_leads_inside_is_not_followed() {
    let server = Server::start(|_| Answer::json(result(1))).await;
    let url = format!("http://mcp.test:{}/mcp", server.port());
    for inside in ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254"] {
        let dialer = Dialer::new(says(inside), Trust::System);
        let refused = ask(&url, AddressPolicy::PublicOnly, dialer, nothing()).await;
        assert!(
            matches!(&refused, Err(Failure::NotSent { why }) if why.contains("private = true")),
            "{refused:?}"
        );
    }
    assert_eq!(server.connections(), 0);

    let dialer = Dialer::new(says("127.0.0.1"), Trust::System);
    assert_eq!(ask(&url, AddressPolicy::PrivateToo, dialer, nothing()).await, Ok(result(1)));
}

#[tokio::test]
async fn the_operators_own_loopback_needs_no_leave() {
    let server = Server::start(|_| Answer::json(result(1))).await;
    let resolver = says("127.0.0.1");
    let dialer = Dialer::new(resolver.clone(), Trust::System);
    let url = format!("http://localhost:{}/mcp", server.port());
    assert_eq!(ask(&url, AddressPolicy::PublicOnly, dialer.clone(), credentials()).await, Ok(result(1)));
    assert_eq!(*resolver.1.lock().unwrap(), ["localhost"]);
    assert_eq!(ask(&server.url(), AddressPolicy::PublicOnly, dialer, credentials()).await, Ok(result(1)));
    assert_eq!(resolver.1.lock().unwrap().len(), 1, "an address is not looked up");
}

#[tokio::test]
async fn credentials_do_not_travel_in_plain_text() {
    let server = Server::start(|_| Answer::json(result(1))).await;
    let dialer = Dialer::new(says("127.0.0.1"), Trust::System);
    let url = format!("http://mcp.test:{}/mcp", server.port());
    let refused = ask(&url, AddressPolicy::PrivateToo, dialer, credentials()).await;
    assert!(matches!(&refused, Err(Failure::NotSent { why }) if why.contains("https://")), "{refused:?}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn an_unknown_name_did_not_run() {
    let dialer = Dialer::new(Arc::new(SystemResolver), Trust::System);
    let refused = ask("http://no-such-host.invalid/mcp", AddressPolicy::PublicOnly, dialer, nothing()).await;
    assert!(
        matches!(&refused, Err(Failure::NotSent { why }) if why.contains("no-such-host.invalid")),
        "{refused:?}"
    );
}
