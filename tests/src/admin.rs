//! A client of the admin API, on the admin socket or over TLS: one request per connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::certificates::{Authority, Certified};
use crate::deadline::{Deadline, PATIENCE};
use crate::world::World;

/// Sends requests to one sidecar, with or without a token.
#[derive(Clone, Debug)]
pub struct AdminClient {
    endpoint: Endpoint,
    token: Option<String>,
}

#[derive(Clone, Debug)]
enum Endpoint {
    Socket(PathBuf),
    Tls { address: SocketAddr, config: Arc<ClientConfig> },
}

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// JSON, or null.
    pub body: Value,
}

/// A connection to the sidecar.
pub trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

impl AdminClient {
    /// Over the admin socket of this world.
    pub fn socket(world: &World) -> Self {
        Self { endpoint: Endpoint::Socket(world.layout().admin.clone()), token: None }
    }

    /// Over TLS, to a server with a certificate of this authority for its address.
    ///
    /// # Panics
    /// When a certificate is not valid.
    pub fn tls(address: SocketAddr, authority: &Authority, identity: Option<&Certified>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(authority.pem())).expect("an authority of the tests is valid");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots);
        let config = match identity {
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
                    .expect("a key of the tests is PEM");
                let chain = vec![certificate(&identity.certificate)];
                builder.with_client_auth_cert(chain, key).expect("the key belongs to the certificate")
            }
            None => builder.with_no_client_auth(),
        };
        Self { endpoint: Endpoint::Tls { address, config: Arc::new(config) }, token: None }
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.trim().to_owned()), ..self.clone() }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, None)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, Some(body))
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Response {
        self.send("DELETE", path, None)
    }

    /// # Panics
    /// When there is no response.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        let text = body.map(Value::to_string).unwrap_or_default();
        let kind = if body.is_some() { "content-type: application/json\r\n" } else { "" };
        let head = format!("{kind}content-length: {}\r\n", text.len());
        self.raw(&self.request(method, path, &head, &text)).expect("the sidecar responds")
    }

    /// The text of a request, with the client's token.
    pub fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let token =
            self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{token}{headers}\r\n{body}")
    }

    /// Sends this text and reads to the end. `None` where there is no response.
    pub fn raw(&self, request: &str) -> Option<Response> {
        let mut stream = self.connect().ok()?;
        // The sidecar may respond before it has read the whole request.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Response::read(&bytes)
    }

    /// Sends this text and leaves the connection open.
    ///
    /// # Panics
    /// When the sidecar cannot be reached.
    #[track_caller]
    pub fn open(&self, request: &str) -> Box<dyn Stream> {
        let mut stream = self.connect().expect("the sidecar accepts connections");
        stream.write_all(request.as_bytes()).expect("the sidecar reads requests");
        stream
    }

    /// Opens a connection and sends nothing.
    pub fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let patience = Some(PATIENCE + Duration::from_secs(5));
        match &self.endpoint {
            Endpoint::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(patience)?;
                Ok(Box::new(stream))
            }
            Endpoint::Tls { address, config } => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(patience)?;
                let name = ServerName::from(address.ip());
                let client = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
                Ok(Box::new(StreamOwned::new(client, stream)))
            }
        }
    }
}

impl Response {
    fn read(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let status = text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Some(Self { status, head: head.to_owned(), body })
    }

    /// The body of a successful response.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.body
    }

    /// The status and the code of a refusal.
    #[track_caller]
    pub fn refusal(&self) -> (u16, &str) {
        let error = &self.body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(error["hint"].is_null() || error["hint"].is_string(), "{self:?}");
        (self.status, error["code"].as_str().unwrap_or_else(|| panic!("a refusal has a code: {self:?}")))
    }
}

/// Reads until this text has arrived, and returns everything read so far.
///
/// # Panics
/// When the stream ends before, or it takes too long.
#[track_caller]
pub fn read_until(stream: &mut dyn Stream, text: &str) -> String {
    let deadline = Deadline::after(PATIENCE);
    let mut read = String::new();
    let mut buffer = [0; 1024];
    while !read.contains(text) {
        assert!(!deadline.is_over(), "{text:?} did not arrive in time, after {read:?}");
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => read += &String::from_utf8_lossy(&buffer[..count]),
            end => panic!("{end:?} before {text:?}, after {read:?}"),
        }
    }
    read
}

/// Whether the stream ends in time, after any further bytes.
pub fn ends(stream: &mut dyn Stream) -> bool {
    let deadline = Deadline::after(PATIENCE);
    let mut buffer = [0; 1024];
    while !deadline.is_over() {
        match stream.read(&mut buffer) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => return error.kind() == io::ErrorKind::UnexpectedEof,
        }
    }
    false
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate of the tests is PEM")
}
