//! Peers that follow the protocol, and peers that do not.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use relay_carriage::Stream;
use relay_carriage::dial::Dial;
use relay_carriage::identity::Identity;
use relay_proto::address::{Address, HostPort, WebSocket};
use relay_proto::key::PublicKey;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Longer than any step of these tests takes.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn identity() -> Identity {
    Identity::generate().unwrap()
}

pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, what).await.expect("timed out")
}

#[expect(clippy::disallowed_methods, reason = "the tests wait for the handle")]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// Listens on a new port, and calls `serve` with its first connection.
pub(crate) async fn listen_once<T, F>(
    serve: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (HostPort, JoinHandle<T>)
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let task = spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        drop(listener);
        serve(stream).await
    });
    (address, task)
}

pub(crate) async fn tcp(address: &HostPort) -> TcpStream {
    TcpStream::connect(address.to_string()).await.unwrap()
}

/// A peer that sends this, whatever it receives, and waits for the other side to close.
pub(crate) async fn peer_that_sends(text: &'static [u8]) -> HostPort {
    let serve = move |mut stream: TcpStream| async move {
        stream.write_all(text).await.unwrap();
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    };
    listen_once(serve).await.0
}

/// A peer that closes after the first bytes it receives.
pub(crate) async fn peer_that_closes() -> HostPort {
    let serve = |mut stream: TcpStream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    };
    listen_once(serve).await.0
}

pub(crate) fn dial<'a>(identity: &'a Identity, pin: &'a PublicKey) -> Dial<'a> {
    Dial { identity, pin, proxy: None, limit: TEST_TIMEOUT }
}

pub(crate) fn web_socket(address: &HostPort) -> WebSocket {
    match format!("wss://{address}/relay").parse() {
        Ok(Address::WebSocket(address)) => address,
        other => panic!("{other:?}"),
    }
}

/// Sends back every byte that it receives, until the other side closes.
pub(crate) async fn echo(stream: &mut impl Stream) -> io::Result<()> {
    let mut buffer = vec![0; 10_000];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => {
                stream.write_all(&buffer[..count]).await?;
                stream.flush().await?;
            }
        }
    }
}

/// Sends `count` bytes and reads the same ones back.
pub(crate) async fn exchange(stream: impl Stream, count: usize) {
    let bytes: Vec<u8> = (0..count).map(|number| (number * 7 % 251) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        writer.write_all(&bytes).await.unwrap();
        writer.flush().await.unwrap();
    };
    let read = async {
        let mut back = vec![0; count];
        reader.read_exact(&mut back).await.unwrap();
        assert!(back == bytes, "the bytes that came back differ");
    };
    in_time(async { tokio::join!(write, read) }).await;
}

/// Two ends with at most `buffer` bytes in flight in each direction. (TLS needs more than one: each side of a handshake
/// sends a few bytes before it reads on.)
pub(crate) fn thin_pipe(buffer: usize) -> (DuplexStream, DuplexStream) {
    duplex(buffer)
}

/// The configuration of a TLS server with a certificate, not a raw key.
pub(crate) fn certificate_tls_config(versions: &[&'static SupportedProtocolVersion]) -> Arc<ServerConfig> {
    let (certificate, key) = certificate();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into());
    Arc::new(config.unwrap())
}

pub(crate) fn certificate() -> (CertificateDer<'static>, PrivatePkcs8KeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["ordinary.example".to_owned()]).unwrap();
    (made.cert.der().clone(), PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()))
}
