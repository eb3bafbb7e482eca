//! The dialer, the pool and the one-shot client against real sockets on loopback.

#![expect(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::{
    AddressError, AddressPolicy, ConnectError, Dialer, Endpoint, OneShotError, OneShotLimits, Pool, Resolve,
    Resolving, SendError, Trust, client_config, send_once,
};
use http::Request;
use http_body_util::{BodyExt, Full};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const TIMEOUT: Duration = Duration::from_secs(20);

/// A name server with one list of addresses per lookup, in order.
struct ScriptedResolver(Mutex<VecDeque<Vec<&'static str>>>);

impl Resolve for ScriptedResolver {
    fn resolve<'a>(&'a self, _name: &'a str, port: u16) -> Resolving<'a> {
        let next = self.0.lock().unwrap().pop_front();
        Box::pin(async move {
            let addresses = next.ok_or(io::ErrorKind::NotFound)?;
            Ok(addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect())
        })
    }
}

fn dialer_with_lookups(lookups: &[&[&'static str]]) -> Dialer {
    let lookups = lookups.iter().map(|addresses| addresses.to_vec()).collect();
    Dialer::new(Arc::new(ScriptedResolver(Mutex::new(lookups))), Trust::System)
}

fn endpoint(url: &str, policy: AddressPolicy) -> Endpoint {
    Endpoint::new(&url.parse().unwrap(), policy)
}

fn get() -> Request<Full<Bytes>> {
    Request::builder().uri("/").header("host", "test").body(Full::default()).unwrap()
}

/// A server that sends `response` to every request on every connection.
struct Server {
    address: SocketAddr,
    connections: Arc<Mutex<usize>>,
    _task: JoinSet<()>,
}

impl Server {
    async fn start(response: impl Into<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, response) = (listener.local_addr().unwrap(), response.into());
        let connections = Arc::new(Mutex::new(0));
        let counted = connections.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                *counted.lock().unwrap() += 1;
                served.spawn(respond(socket, response.clone()));
            }
        });
        Self { address, connections, _task: task }
    }

    fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn url_with_name(&self) -> String {
        format!("http://name.test:{}/", self.address.port())
    }
}

async fn respond(mut socket: TcpStream, response: String) {
    let mut head = Vec::new();
    while let Ok(1..) = socket.read_buf(&mut head).await {
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            if socket.write_all(response.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn every_connection_resolves_and_checks_again() {
    let server = Server::start(OK).await;
    let dialer =
        dialer_with_lookups(&[&["127.0.0.1"], &["224.0.0.1"], &["::ffff:224.0.0.1"], &["127.0.0.1"]]);
    let endpoint = endpoint(&server.url_with_name(), AddressPolicy::PrivateToo);
    assert!(dialer.connect(&endpoint, TIMEOUT).await.is_ok());
    for _ in 0..2 {
        let rebound = dialer.connect(&endpoint, TIMEOUT).await.err();
        assert!(
            matches!(rebound, Some(ConnectError::Address(AddressError::NotPermitted { .. }))),
            "{rebound:?}"
        );
    }
    assert!(dialer.connect(&endpoint, TIMEOUT).await.is_ok());
    let unscripted = dialer.connect(&endpoint, TIMEOUT).await.err();
    assert!(
        matches!(unscripted, Some(ConnectError::Address(AddressError::Lookup { .. }))),
        "the fifth connection did not resolve the name again: {unscripted:?}"
    );
}

#[tokio::test]
async fn a_private_address_is_refused_before_anything_is_dialled() {
    let server = Server::start(OK).await;
    for address in ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "fe80::1"] {
        let endpoint = endpoint(&server.url_with_name(), AddressPolicy::PublicOnly);
        let refused = dialer_with_lookups(&[&[address]]).connect(&endpoint, TIMEOUT).await.err();
        assert!(
            matches!(refused, Some(ConnectError::Address(AddressError::NotPermitted { .. }))),
            "{refused:?}"
        );
    }
    let localhost = endpoint(&format!("http://localhost:{}", server.address.port()), AddressPolicy::Any);
    let refused = dialer_with_lookups(&[&["10.0.0.1"]]).connect(&localhost, TIMEOUT).await.err();
    assert!(matches!(refused, Some(ConnectError::Address(AddressError::NotLoopback))), "{refused:?}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_next_address_is_dialled_when_one_refuses() {
    // The server listens at 127.0.0.1 only.
    let server = Server::start(OK).await;
    let dialer = dialer_with_lookups(&[&["127.0.0.2", "127.0.0.1"]]);
    let endpoint = endpoint(&server.url_with_name(), AddressPolicy::PrivateToo);
    assert!(dialer.connect(&endpoint, TIMEOUT).await.is_ok());
}

#[tokio::test]
async fn an_address_that_does_not_respond_leaves_time_for_the_next() {
    let server = Server::start(OK).await;
    // A full accept queue: further connections get no response.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind(SocketAddr::new("127.0.0.2".parse().unwrap(), server.address.port())).unwrap();
    let silent = silent.listen(0).unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(socket)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(silent.local_addr().unwrap()))
            .await
    {
        queued.push(socket);
    }
    let dialer = dialer_with_lookups(&[&["127.0.0.2", "127.0.0.1"]]);
    let endpoint = endpoint(&server.url_with_name(), AddressPolicy::PrivateToo);
    let connected = dialer.connect(&endpoint, Duration::from_secs(4)).await;
    assert!(connected.is_ok(), "{:?}", connected.err());
}

#[tokio::test]
async fn connecting_including_tls_is_bounded() {
    // The server accepts and never starts TLS.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(&format!("https://{}", listener.local_addr().unwrap()), AddressPolicy::Any);
    let limit = Duration::from_millis(300);
    let late = dialer_with_lookups(&[]).connect(&endpoint, limit).await.err();
    assert!(matches!(late, Some(ConnectError::TimedOut(time)) if time == limit), "{late:?}");
}

#[tokio::test]
async fn a_certificate_must_be_of_a_trusted_authority_and_for_the_hosts_name() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(trusted.server_config("name.test"));
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate ends the handshake.
            if let Ok(stream) = acceptor.accept(socket).await {
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
            }
        }
    });
    let connect = async |name: &str, authority: &Authority| {
        let resolver = ScriptedResolver(Mutex::new(VecDeque::from([vec!["127.0.0.1"]])));
        let trust = Trust::Given(client_config(authority.roots.clone(), None).unwrap());
        let endpoint = endpoint(&format!("https://{name}:{port}"), AddressPolicy::PrivateToo);
        Dialer::new(Arc::new(resolver), trust).connect(&endpoint, TIMEOUT).await.map(|_| ())
    };
    assert!(connect("name.test", &trusted).await.is_ok());
    let untrusted = connect("name.test", &other).await;
    assert!(matches!(untrusted, Err(ConnectError::Tls(_))), "{untrusted:?}");
    let wrong_name = connect("other.test", &trusted).await;
    assert!(matches!(wrong_name, Err(ConnectError::Tls(_))), "{wrong_name:?}");
}

#[tokio::test]
async fn the_head_of_a_response_is_bounded() {
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(128 * 1024));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(200));
    for head in [long, many] {
        let server = Server::start(head).await;
        let refused = send_one(&server, 1024).await.err();
        assert!(matches!(refused, Some(OneShotError::Broken(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_used_again_until_it_is_old() {
    let server = Server::start(OK).await;
    let pool = pool(&server.url());
    for _ in 0..3 {
        send_and_give_back(&pool).await;
    }
    assert_eq!((server.connections(), pool.idle_connections()), (1, 1));
    // Servers close idle connections, the earliest after 5 s.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(4)).await;
    tokio::time::resume();
    send_and_give_back(&pool).await;
    assert_eq!((server.connections(), pool.idle_connections()), (2, 1));
}

#[tokio::test]
async fn the_number_of_idle_connections_is_limited() {
    let server = Server::start(OK).await;
    let pool = pool(&server.url());
    let mut open = Vec::new();
    for _ in 0..7 {
        open.push(pool.send(get()).await.unwrap());
    }
    for mut response in open {
        response.response.body_mut().collect().await.unwrap();
        response.give_back().await;
    }
    assert_eq!((server.connections(), pool.idle_connections()), (7, 4));
}

#[tokio::test]
async fn a_request_that_may_have_been_sent_is_not_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = pool(&format!("http://{}/", listener.local_addr().unwrap()));
    let server = async {
        // The first request gets a response; the second is read, and its connection closed without a response.
        let (mut socket, _) = listener.accept().await.unwrap();
        for response in [OK, ""] {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert_ne!(socket.read_buf(&mut head).await.unwrap(), 0);
            }
            socket.write_all(response.as_bytes()).await.unwrap();
        }
        drop(socket);
        listener.accept().await.unwrap()
    };
    let client = async {
        send_and_give_back(&pool).await;
        assert_eq!(pool.live_connections(), 1);
        pool.send(get()).await.err()
    };
    tokio::select! {
        _ = server => panic!("the request was sent twice"),
        failed = client => assert!(matches!(failed, Some(SendError::MaybeSent(_))), "{failed:?}"),
    }
}

#[tokio::test]
async fn an_unreachable_server_is_sent_nothing() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let failed = pool(&format!("http://{closed}/")).send(get()).await.err();
    assert!(matches!(failed, Some(SendError::Unreachable(ConnectError::Tcp(_)))), "{failed:?}");
}

#[tokio::test]
async fn one_shot_bodies_are_bounded() {
    let server = Server::start(OK).await;
    let whole = send_one(&server, 2).await.unwrap();
    assert_eq!(&whole.body()[..], b"ok");
    for body in [
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let refused = send_one(&Server::start(body).await, 2).await.err();
        assert!(matches!(refused, Some(OneShotError::TooLarge { limit: 2 })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let elsewhere = Server::start(OK).await;
    let location = elsewhere.url();
    let redirect =
        format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    let server = Server::start(redirect).await;
    assert_eq!(send_one(&server, 2).await.unwrap().status(), 307);
    assert_eq!((server.connections(), elsewhere.connections()), (1, 0));
}

#[tokio::test]
async fn a_silent_server_runs_into_the_deadline() {
    let server = Server::start("").await;
    let limits = OneShotLimits {
        connect: TIMEOUT,
        deadline: Instant::now() + Duration::from_millis(500),
        body_bytes: 2,
    };
    let endpoint = endpoint(&server.url(), AddressPolicy::Any);
    let late = send_once(&dialer_with_lookups(&[]), &endpoint, get(), limits).await.err();
    assert!(matches!(late, Some(OneShotError::TimedOut)), "{late:?}");
}

fn pool(url: &str) -> Arc<Pool> {
    let endpoint = endpoint(url, AddressPolicy::PublicOnly);
    Arc::new(Pool::new(
        endpoint,
        dialer_with_lookups(&[]),
        TIMEOUT,
        TaskTracker::new(),
        CancellationToken::new(),
    ))
}

/// Sends one request, and returns its connection to the pool.
async fn send_and_give_back(pool: &Arc<Pool>) {
    let mut response = pool.send(get()).await.unwrap();
    response.response.body_mut().collect().await.unwrap();
    response.give_back().await;
}

async fn send_one(
    server: &Server,
    body_bytes: usize,
) -> Result<http::Response<zeroize::Zeroizing<Vec<u8>>>, OneShotError> {
    let limits = OneShotLimits { connect: TIMEOUT, deadline: Instant::now() + TIMEOUT, body_bytes };
    send_once(&dialer_with_lookups(&[]), &endpoint(&server.url(), AddressPolicy::Any), get(), limits).await
}

struct Authority {
    roots: RootCertStore,
    issuer: Issuer<'static, KeyPair>,
}

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
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}
