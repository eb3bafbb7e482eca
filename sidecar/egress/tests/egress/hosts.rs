//! The real hosts in the world of a test.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64ct::{Base64, Encoding};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::support::TemporaryDirectory;

/// A TCP server at an address of the world. It ends when dropped.
pub(crate) struct Host {
    connections: Arc<AtomicUsize>,
    _accepting: JoinSet<()>,
}

impl Host {
    /// Serves every connection with `serve`.
    pub(crate) async fn start<Served: Future<Output = std::io::Result<()>> + Send + 'static>(
        address: &str,
        serve: impl Fn(TcpStream) -> Served + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.expect("an address of the world");
        let (connections, mut accepting) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        let counted = connections.clone();
        accepting.spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let serving = serve(socket);
                // Clients break off connections, which is no failure of the host.
                served.spawn(async move { drop(serving.await) });
            }
        });
        Self { connections, _accepting: accepting }
    }

    /// Answers every HTTP request with this text.
    pub(crate) async fn http(address: &str, text: &'static str) -> Self {
        Self::start(address, move |socket| respond(socket, text.to_owned())).await
    }

    /// Sends back all that it receives, after the end of it.
    pub(crate) async fn echo(address: &str) -> Self {
        Self::start(address, async |mut socket| {
            let mut all = Vec::new();
            socket.read_to_end(&mut all).await?;
            socket.write_all(&all).await
        })
        .await
    }

    /// Holds every connection open, and sends nothing.
    pub(crate) async fn silent(address: &str) -> Self {
        Self::start(address, async |mut socket| socket.read_to_end(&mut Vec::new()).await.map(drop)).await
    }

    /// Answers every HTTP request over TLS with the host that the client asked for in TLS.
    pub(crate) async fn https(address: &str, authority: &Authority) -> Self {
        let acceptor = authority.acceptor();
        Self::start(address, move |socket| {
            let acceptor = acceptor.clone();
            async move {
                let stream = acceptor.accept(socket).await?;
                let name = stream.get_ref().1.server_name().unwrap_or("no name").to_owned();
                respond(stream, name).await
            }
        })
        .await
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn respond(
    mut socket: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    text: String,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let length = text.len();
    let response = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{text}");
    socket.write_all(response.as_bytes()).await?;
    socket.shutdown().await
}

/// A certificate authority, and a certificate of some names that it signed.
pub(crate) struct Authority {
    config: Arc<ServerConfig>,
    directory: TemporaryDirectory,
}

impl Authority {
    pub(crate) fn for_names(names: &[&str]) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        // Not the name of the certificates that it signs: such a one would count as signed by itself.
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("an authority");
        let issuer = Issuer::new(params, key);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(names)
            .and_then(|params| params.signed_by(&key, &issuer))
            .expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a matching key");
        let directory = TemporaryDirectory::new();
        let pem = Base64::encode_string(root.der());
        let pem =
            pem.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n").collect::<String>();
        let pem = format!("-----BEGIN CERTIFICATE-----\n{pem}-----END CERTIFICATE-----\n");
        std::fs::write(directory.0.join("authority.pem"), pem).expect("write the authority");
        Self { config: Arc::new(config), directory }
    }

    /// The authority's own certificate, for clients.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.0.join("authority.pem")
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }
}
