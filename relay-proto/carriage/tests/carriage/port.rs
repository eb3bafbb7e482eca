//! The sidecar's one port: which connections are accepted, and which are refused.

use std::sync::Arc;

use relay_carriage::dial::DialError;
use relay_carriage::outer;
use relay_carriage::reception::{Reception, ReceptionError};
use relay_carriage::tls::{self, TlsError};
use relay_carriage::websocket::{self, UpgradeError};
use relay_proto::address::HostPort;
use relay_proto::key::PublicKey;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::version::TLS12;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::handshake::{mismatched_key, raw_key_config};
use crate::support::*;

/// Starts a sidecar's port for one connection, whose bytes it sends back. Returns its address, key and result.
async fn start_sidecar() -> (HostPort, PublicKey, JoinHandle<Result<PublicKey, ReceptionError>>) {
    let identity = identity();
    let pin = identity.public();
    let reception = Reception::new(&identity).unwrap();
    let (address, served) = listen_once(move |stream| async move {
        let (mut stream, key) = reception.receive(stream).await?;
        let _ = echo(&mut stream).await;
        Ok(key)
    })
    .await;
    (address, pin, served)
}

#[tokio::test]
async fn tls_is_accepted() {
    let sandbox = identity();
    let (address, pin, served) = start_sidecar().await;
    exchange(in_time(dial(&sandbox, &pin).tls(&address)).await.unwrap(), 200_000).await;
    assert_eq!(in_time(served).await.unwrap().unwrap(), sandbox.public());
}

#[tokio::test]
async fn a_web_socket_in_tls_is_accepted() {
    let sandbox = identity();
    let (address, pin, served) = start_sidecar().await;
    exchange(in_time(dial(&sandbox, &pin).web_socket(&web_socket(&address))).await.unwrap(), 200_000).await;
    assert_eq!(in_time(served).await.unwrap().unwrap(), sandbox.public());
}

/// The load balancer terminates TLS with its own certificate, and forwards HTTP.
#[tokio::test]
async fn a_web_socket_behind_a_load_balancer_is_accepted() {
    let sandbox = identity();
    let (behind, pin, served) = start_sidecar().await;
    let acceptor = TlsAcceptor::from(certificate_tls_config(&[&rustls::version::TLS13]));
    let (front, _balancer) = listen_once(move |stream| async move {
        let mut near = acceptor.accept(stream).await.unwrap();
        let mut far = tcp(&behind).await;
        tokio::io::copy_bidirectional(&mut near, &mut far).await
    })
    .await;
    exchange(in_time(dial(&sandbox, &pin).web_socket(&web_socket(&front))).await.unwrap(), 200_000).await;
    assert_eq!(in_time(served).await.unwrap().unwrap(), sandbox.public());
}

#[tokio::test]
async fn the_pin_holds_inside_a_web_socket_too() {
    let (sandbox, expected) = (identity(), identity().public());
    let (address, _pin, served) = start_sidecar().await;
    let refused = in_time(dial(&sandbox, &expected).web_socket(&web_socket(&address))).await.err().unwrap();
    assert!(matches!(refused, DialError::Tls(TlsError::WrongPin { .. })), "{refused:?}");
    assert!(in_time(served).await.unwrap().is_err());
}

/// A client that has the relay's application protocol wants a link, which needs TLS 1.3.
#[tokio::test]
async fn an_older_client_is_refused() {
    let (address, _pin, served) = start_sidecar().await;
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let connected = connector.connect(ServerName::try_from("x.example").unwrap(), tcp(&address).await).await;
    assert!(connected.is_err());
    let refused = in_time(served).await.unwrap().unwrap_err();
    assert!(matches!(refused, ReceptionError::Tls(TlsError::OlderTls)), "{refused:?}");
}

/// The proxy terminates TLS 1.2; the link inside has TLS 1.3 from end to end.
#[tokio::test]
async fn outer_tls_1_2_carries_a_link_with_tls_1_3() {
    let sandbox = identity();
    let (behind, pin, served) = start_sidecar().await;
    let acceptor = TlsAcceptor::from(certificate_tls_config(&[&TLS12]));
    let (front, _proxied) = listen_once(move |stream| async move {
        let mut near = acceptor.accept(stream).await.unwrap();
        let mut far = tcp(&behind).await;
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    })
    .await;
    exchange(in_time(dial(&sandbox, &pin).web_socket(&web_socket(&front))).await.unwrap(), 200_000).await;
    assert_eq!(in_time(served).await.unwrap().unwrap(), sandbox.public());
}

/// The port's response to these bytes, and its error.
async fn response_to(bytes: &[u8]) -> (String, ReceptionError) {
    let (address, _pin, served) = start_sidecar().await;
    let mut stream = tcp(&address).await;
    stream.write_all(bytes).await.unwrap();
    let mut response = Vec::new();
    // A port that closes while bytes are in flight resets the connection; then there is no response.
    let _ = in_time(stream.read_to_end(&mut response)).await;
    (String::from_utf8_lossy(&response).into_owned(), in_time(served).await.unwrap().unwrap_err())
}

#[tokio::test]
async fn other_protocols_get_no_response() {
    for garbage in
        [&b"POST / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-x\r\n", b"cofferdam-relay/1\n", &[0; 100], &[0xff; 100]]
    {
        let (response, why) = response_to(garbage).await;
        assert_eq!(response, "");
        assert!(matches!(why, ReceptionError::UnknownProtocol), "{why:?}");
    }
    let (_, why) = response_to(&[0x16; 100]).await;
    assert!(matches!(why, ReceptionError::Tls(TlsError::NotTls)), "{why:?}");
    let (response, why) = response_to(b"GARBAGE").await;
    assert_eq!(response, "");
    assert!(matches!(why, ReceptionError::Upgrade(UpgradeError::NotHttp)), "{why:?}");
}

#[tokio::test]
async fn http_without_an_upgrade_gets_an_error_status() {
    let (response, why) = response_to(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n"), "{response}");
    assert!(matches!(why, ReceptionError::Upgrade(UpgradeError::Stripped { status: 426 })), "{why:?}");
    let upgrade = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n";
    let complete = format!("{upgrade}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n", "x".repeat(24));
    for headers in ["", &complete] {
        let (response, why) = response_to(format!("GET / HTTP/1.0\r\n{headers}\r\n").as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 426 Upgrade Required\r\n"), "{response}");
        assert!(matches!(why, ReceptionError::Upgrade(UpgradeError::OldHttp)), "{why:?}");
    }
    for wrong in [
        format!("GET / HTTP/1.1\r\n{upgrade}\r\n"),
        format!("GET / HTTP/1.1\r\n{upgrade}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n"),
        format!(
            "GET / HTTP/1.1\r\n{upgrade}Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: {}\r\n\r\n",
            "x".repeat(24)
        ),
        "GET / HTTP/1.1\r\nno header\r\n\r\n".to_owned(),
    ] {
        let (response, _) = response_to(wrong.as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{wrong}: {response}");
    }
}

#[tokio::test]
async fn an_endless_http_head_is_refused() {
    let (response, why) =
        response_to(&[b"GET / HTTP/1.1\r\nA: ", vec![b'x'; 8192].as_slice()].concat()).await;
    assert_eq!(response, "");
    assert!(matches!(why, ReceptionError::Upgrade(UpgradeError::TooLong)), "{why:?}");
}

#[tokio::test]
async fn a_web_socket_inside_a_web_socket_is_refused() {
    let (address, _pin, served) = start_sidecar().await;
    let target = web_socket(&address);
    let stream = outer::connect(tcp(&address).await, &target.host).await.unwrap();
    let stream = websocket::connect(stream, &target, &[]).await.unwrap();
    let again = in_time(websocket::connect(stream, &target, &[])).await;
    assert!(again.is_err());
    let why = in_time(served).await.unwrap().unwrap_err();
    assert!(matches!(why, ReceptionError::Tls(TlsError::NotTls)), "{why:?}");
}

/// A sandbox that speaks the relay protocol without proving a key.
#[tokio::test]
async fn a_connection_without_the_inner_tls_is_refused() {
    let (address, _pin, served) = start_sidecar().await;
    let target = web_socket(&address);
    let stream = outer::connect(tcp(&address).await, &target.host).await.unwrap();
    let mut stream = websocket::connect(stream, &target, &[]).await.unwrap();
    stream.write_all(b"cofferdam-relay/1\n").await.unwrap();
    stream.flush().await.unwrap();
    assert!(in_time(served).await.unwrap().is_err());
}

#[tokio::test]
async fn a_close_at_any_byte_of_the_handshake_is_handled() {
    let sandbox = identity();
    // A sandbox sends more than 600 bytes before it is accepted over a WebSocket in TLS.
    for length in (0..600).step_by(37) {
        let (behind, pin, served) = start_sidecar().await;
        let (front, _proxy) = listen_once(move |near: TcpStream| async move {
            let far = tcp(&behind).await;
            let (mut near_reader, mut near_writer) = near.into_split();
            let (mut far_reader, mut far_writer) = far.into_split();
            let back = spawn(async move { tokio::io::copy(&mut far_reader, &mut near_writer).await });
            let _ = tokio::io::copy(&mut (&mut near_reader).take(length), &mut far_writer).await;
            drop(far_writer);
            let _ = back.await;
        })
        .await;
        let connected = in_time(dial(&sandbox, &pin).web_socket(&web_socket(&front))).await;
        assert!(connected.is_err(), "closed after {length} bytes");
        assert!(in_time(served).await.unwrap().is_err(), "closed after {length} bytes");
    }
}

/// For callers that have a stream already and do not use `Dial`.
#[tokio::test]
async fn the_handshake_works_on_any_stream() {
    let (sandbox, sidecar) = (identity(), identity());
    let pin = sidecar.public();
    let (near, far) = thin_pipe(16);
    let reception = Reception::new(&sidecar).unwrap();
    let served = spawn(async move {
        let (mut stream, key) = reception.receive(far).await?;
        let _ = echo(&mut stream).await;
        Ok::<_, ReceptionError>(key)
    });
    exchange(in_time(tls::connect(near, &sandbox, &pin)).await.unwrap(), 3_000).await;
    assert_eq!(in_time(served).await.unwrap().unwrap(), sandbox.public());
}

/// Counts the session tickets that a client receives.
#[derive(Debug, Default)]
struct TicketCounter(std::sync::atomic::AtomicUsize);

impl ClientSessionStore for TicketCounter {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, _: Tls13ClientSessionValue) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        None
    }
}

/// A session that could be resumed could also be resumed by a copy of the sandbox's memory.
#[tokio::test]
async fn no_handshake_can_be_resumed() {
    let (sandbox, tickets) = (identity(), Arc::new(TicketCounter::default()));
    let mut config = raw_key_config(mismatched_key(&sandbox, &sandbox));
    config.enable_early_data = true;
    config.resumption = Resumption::store(Arc::clone(&tickets) as Arc<dyn ClientSessionStore>);
    let (address, _, _served) = start_sidecar().await;
    let name = ServerName::try_from("sidecar.invalid").unwrap();
    let connected = TlsConnector::from(Arc::new(config)).connect(name, tcp(&address).await);
    let mut stream = in_time(connected).await.unwrap();
    // Session tickets would arrive before the first bytes of the echo.
    stream.write_all(b"hello").await.unwrap();
    in_time(stream.read_exact(&mut [0; 5])).await.unwrap();
    assert_eq!(tickets.0.load(std::sync::atomic::Ordering::SeqCst), 0);
}
