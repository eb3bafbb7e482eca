//! A scripted HTTP server: it records the requests and responds as the test says.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct SeenRequest {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    /// How many responses were being delayed when this request arrived.
    pub(super) overtaken: usize,
}

/// The server's response.
#[derive(Debug)]
pub(super) struct TestResponse {
    status: u16,
    headers: Vec<(&'static str, String)>,
    pieces: Vec<Piece>,
    /// How long the server waits before it responds.
    delay: Duration,
}

#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Bytes),
    /// The connection breaks here.
    Cut,
    /// Sends nothing more, and keeps the connection open.
    Hold,
}

pub(super) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<Log>,
    _tasks: JoinSet<()>,
}

struct Log {
    seen: Mutex<Vec<SeenRequest>>,
    /// Notified of every request and every lost client.
    changed: watch::Sender<()>,
    lost_clients: Mutex<usize>,
    connections: Mutex<usize>,
    delayed_responses: AtomicUsize,
}

type Script = dyn Fn(&SeenRequest) -> TestResponse + Send + Sync;

impl Server {
    pub(super) async fn start(script: impl Fn(&SeenRequest) -> TestResponse + Send + Sync + 'static) -> Self {
        Self::start_with(None, script).await
    }

    pub(super) async fn start_with(
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(&SeenRequest) -> TestResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let log = Arc::new(Log {
            seen: Mutex::default(),
            changed: watch::Sender::new(()),
            lost_clients: Mutex::default(),
            connections: Mutex::default(),
            delayed_responses: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, tls.map(TlsAcceptor::from), log.clone(), Arc::new(script)));
        Self { address, scheme, log, _tasks: tasks }
    }

    pub(super) fn url(&self) -> String {
        format!("{}://{}/mcp", self.scheme, self.address)
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn seen(&self) -> Vec<SeenRequest> {
        self.log.seen.lock().unwrap().clone()
    }

    pub(super) fn connections(&self) -> usize {
        *self.log.connections.lock().unwrap()
    }

    /// Waits for the first request that satisfies `wanted`.
    pub(super) async fn wait_for(&self, wanted: impl Fn(&SeenRequest) -> bool) -> SeenRequest {
        let mut changes = self.log.changed.subscribe();
        super::within(async {
            loop {
                if let Some(seen) = self.seen().into_iter().find(|seen| wanted(seen)) {
                    return seen;
                }
                changes.changed().await.unwrap();
            }
        })
        .await
    }

    /// Waits until this many clients have disconnected in the middle of a response.
    pub(super) async fn wait_for_lost_clients(&self, clients: usize) {
        let mut changes = self.log.changed.subscribe();
        super::within(async {
            while *self.log.lost_clients.lock().unwrap() < clients {
                changes.changed().await.unwrap();
            }
        })
        .await;
    }
}

impl SeenRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn is(&self, method: &str) -> bool {
        self.body.contains(&format!(r#""method":"{method}""#))
    }
}

impl TestResponse {
    pub(super) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), pieces: Vec::new(), delay: Duration::ZERO }
    }

    pub(super) fn json(body: impl Into<String>) -> Self {
        Self::status(200).with("content-type", "application/json").then(Piece::Bytes(body.into().into()))
    }

    pub(super) fn events(text: impl Into<String>) -> Self {
        Self::status(200)
            .with("content-type", "text/event-stream; charset=utf-8")
            .then(Piece::Bytes(text.into().into()))
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(super) fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub(super) fn then(mut self, piece: Piece) -> Self {
        self.pieces.push(piece);
        self
    }

    /// The same bytes, one at a time.
    pub(super) fn byte_by_byte(mut self) -> Self {
        self.pieces = std::mem::take(&mut self.pieces)
            .into_iter()
            .flat_map(|piece| match piece {
                Piece::Bytes(bytes) => {
                    (0..bytes.len()).map(|at| Piece::Bytes(bytes.slice(at..=at))).collect::<Vec<_>>()
                }
                other => vec![other],
            })
            .collect();
        self
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, log: Arc<Log>, script: Arc<Script>) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        *log.connections.lock().unwrap() += 1;
        let (tls, log, script) = (tls.clone(), log.clone(), script.clone());
        connections.spawn(async move {
            match tls {
                None => serve(socket, log, script).await,
                // A client that does not trust this server disconnects here.
                Some(tls) => {
                    if let Ok(socket) = tls.accept(socket).await {
                        serve(socket, log, script).await;
                    }
                }
            }
        });
    }
}

async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    log: Arc<Log>,
    script: Arc<Script>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (log, script) = (log.clone(), script.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let body = String::from_utf8(body.to_vec()).unwrap();
            let overtaken = log.delayed_responses.load(Ordering::SeqCst);
            let seen = SeenRequest { method: head.method, headers: head.headers, body, overtaken };
            log.seen.lock().unwrap().push(seen.clone());
            log.changed.send_replace(());
            let scripted = script(&seen);
            if !scripted.delay.is_zero() {
                log.delayed_responses.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(scripted.delay).await;
                log.delayed_responses.fetch_sub(1, Ordering::SeqCst);
            }
            let mut response = Response::builder().status(scripted.status);
            for (name, value) in scripted.headers {
                response = response.header(name, value);
            }
            let body = ScriptedBody {
                pieces: scripted.pieces.into_iter(),
                ended_by_script: false,
                pause: None,
                log,
            };
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    // Cut connections are part of the script.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
}

struct ScriptedBody {
    pieces: std::vec::IntoIter<Piece>,
    /// Whether the script ended the body or cut it. A body that is dropped without this lost its client.
    ended_by_script: bool,
    /// A pause between pieces, so that they leave in separate packets.
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    log: Arc<Log>,
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        match self.pieces.next() {
            Some(Piece::Bytes(bytes)) => {
                self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_millis(1))));
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Piece::Cut) => {
                self.ended_by_script = true;
                Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())))
            }
            Some(Piece::Hold) => {
                self.pieces = vec![Piece::Hold].into_iter();
                Poll::Pending
            }
            None => {
                self.ended_by_script = true;
                Poll::Ready(None)
            }
        }
    }
}

impl Drop for ScriptedBody {
    fn drop(&mut self) {
        if !self.ended_by_script {
            *self.log.lost_clients.lock().unwrap() += 1;
            self.log.changed.send_replace(());
        }
    }
}
