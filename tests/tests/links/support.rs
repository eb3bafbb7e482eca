//! Load balancers and proxies between a sandbox and its sidecar, and the sidecar's end of a dialled link.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{built, command};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use relay_carriage::identity::Identity;
use relay_carriage::{BoxedStream, inbound, tls, websocket};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, SupportedProtocolVersion};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A world whose sidecar listens on a TLS port, and the address of that port.
pub(crate) fn with_a_port(change: impl FnOnce(Builder, SocketAddr) -> Builder) -> (World, SocketAddr) {
    let endpoint = free_address();
    let builder = World::new().server("tools", Server::fixture()).relay(&format!("tls = \"{endpoint}\""));
    (change(builder, endpoint).start(), endpoint)
}

/// Asserts what every link must support: a small call, a large result, and many calls at once.
pub(crate) fn assert_link_works(world: &World, mut shim: Harness) {
    assert_eq!(shim.initialize()["result"]["serverInfo"]["name"], "fixture-server", "{}", shim.stderr());
    assert_eq!(shim.call_text("add", json!({"a": 20, "b": 22})), "42");
    let long = "long ".repeat(60_000);
    assert_eq!(shim.call_text("echo", json!({"text": long})), long);
    let ids: Vec<_> = (0..50).map(|number| shim.send_call("add", json!({"a": number, "b": 1}))).collect();
    for (number, id) in ids.iter().enumerate() {
        let answer = shim.answer_to(id);
        assert_eq!(text_of(&answer), (number + 1).to_string());
    }
    assert_eq!(world.times_executed("tools", "add"), 51);
    shim.close_stdin();
    assert!(shim.wait_for_exit().success());
    assert_eq!(shim.stderr(), "");
}

/// A sandbox that was enrolled: its state directory, and the string.
pub(crate) struct Sandbox {
    pub(crate) enrolment: String,
    state: PathBuf,
}

impl Sandbox {
    pub(crate) fn enrolled(world: &World, name: &str) -> Self {
        let enrolment = world.cofferdam_text(&["enroll", "--grant", "dev"]).trim().to_owned();
        Self::with(world, name, enrolment)
    }

    pub(crate) fn with(world: &World, name: &str, enrolment: String) -> Self {
        Self { enrolment, state: world.layout().root().join(format!("sandbox-{name}")) }
    }

    /// The command of a shim with this enrolment and without the test's environment.
    pub(crate) fn command(&self) -> Command {
        let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
        command.env_clear().env("COFFERDAM_ENROLL", &self.enrolment).arg("--state").arg(&self.state);
        command
    }

    pub(crate) fn status(&self, arguments: &[String]) -> Command {
        let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
        command.env_clear().env("COFFERDAM_ENROLL", &self.enrolment);
        command.args(["status", "--state"]).arg(&self.state).args(arguments);
        command
    }

    pub(crate) fn shim(&self, arguments: &[&str]) -> Harness {
        let mut command = self.command();
        command.args(arguments).args(["--server", "tools"]);
        Harness::start(command, "cofferdam-shim")
    }
}

/// A runtime for the peers that a test starts.
pub(crate) struct Peers(Runtime);

impl Peers {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self(runtime.expect("a runtime can be started"))
    }

    /// Starts a TLS server with a self-signed certificate; `serve` gets each connection whose handshake succeeded.
    pub(crate) fn tls<F>(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        serve: impl Fn(tokio_rustls::server::TlsStream<TcpStream>) -> F + Send + Clone + 'static,
    ) -> SocketAddr
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let certificate =
            rcgen::generate_simple_self_signed(["balancer.example".to_owned()]).expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .expect("the provider has suites")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.cert.der().clone()], key.into())
            .expect("the certificate is valid");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        self.tcp(move |stream| {
            let (acceptor, serve) = (acceptor.clone(), serve.clone());
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream).await;
                }
            }
        })
    }

    pub(crate) fn tcp<F>(&self, serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = self.0.block_on(TcpListener::bind("127.0.0.1:0")).expect("loopback has a port");
        let endpoint = listener.local_addr().expect("it was just bound");
        let runtime = self.0.handle().clone();
        self.0.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                runtime.spawn(serve(stream));
            }
        });
        endpoint
    }

    /// Starts a server that terminates TLS and forwards the content, as a load balancer does.
    pub(crate) fn balancer(&self, to: SocketAddr) -> SocketAddr {
        self.tls(&[&rustls::version::TLS13], move |mut near| async move {
            if let Ok(mut far) = TcpStream::connect(to).await {
                let _ = copy_bidirectional(&mut near, &mut far).await;
            }
        })
    }

    /// Starts a TLS server that reads a request and sends this response.
    pub(crate) fn web_server(&self, response: &'static str) -> SocketAddr {
        self.tls(&[&rustls::version::TLS13], move |mut stream| async move {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(response.as_bytes()).await;
            let _ = stream.shutdown().await;
        })
    }

    /// Connects to a sandbox as a sidecar with this key would, and forwards the stream to the relay's socket.
    pub(crate) fn dial(&self, endpoint: SocketAddr, way: Way, identity: &Identity, relay: &Path) -> Dialled {
        let (identity, relay) = (identity.clone(), relay.to_owned());
        let opened = self.0.block_on(async move {
            let stream = connect_with_retries(endpoint).await;
            let stream: BoxedStream = match way {
                Way::Tcp => {
                    let mut stream = stream;
                    inbound::send_preamble(&mut stream).await.ok()?;
                    Box::new(stream)
                }
                Way::WebSocket => {
                    let Ok(relay_proto::address::Address::WebSocket(target)) =
                        format!("wss://{endpoint}/").parse()
                    else {
                        panic!("wss://{endpoint}/ does not parse")
                    };
                    Box::new(websocket::connect(stream, &target, &[]).await.ok()?)
                }
            };
            let (stream, _key) = tls::accept(stream, &identity).await.ok()?;
            Some((stream, UnixStream::connect(relay).await.expect("the sidecar listens")))
        });
        Dialled(opened.map(|(mut near, mut far)| {
            self.0.spawn(async move {
                let _ = copy_bidirectional(&mut near, &mut far).await;
            })
        }))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Tcp,
    WebSocket,
}

/// A connection to a sandbox; `None` if the sandbox refused it.
pub(crate) struct Dialled(Option<JoinHandle<()>>);

impl Dialled {
    pub(crate) fn is_connected(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub(crate) fn disconnect(self) {
        if let Some(task) = self.0 {
            task.abort();
        }
    }
}

/// Retries for up to 40 seconds: the shim may not listen yet.
pub(crate) async fn connect_with_retries(endpoint: SocketAddr) -> TcpStream {
    for _ in 0..2000 {
        if let Ok(stream) = TcpStream::connect(endpoint).await {
            return stream;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("there is no listener on {endpoint}")
}
