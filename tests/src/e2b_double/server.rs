//! The two listeners of the double, and what they record.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::body::HandlerResult;
use super::faults::Faults;
use super::sandbox::{Account, Sandbox, SandboxUser};
use super::{control, envd};

/// Which of the platform's two addresses a request went to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    Control,
    Envd,
}

/// The head of a request.
#[derive(Clone, Debug)]
pub struct Head {
    pub side: Side,
    /// Method, path and query.
    pub line: String,
    pub headers: BTreeMap<String, String>,
}

pub(super) struct Shared {
    pub(super) bubblewrap: PathBuf,
    pub(super) faults: Faults,
    pub(super) tasks: TaskTracker,
    /// How many times faster than real time the clock runs.
    pub(super) speed: u32,
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    /// If set, every request to `envd` goes to this sandbox, and needs no sandbox id and no token.
    lone: Mutex<Option<Arc<Sandbox>>>,
    log: Mutex<Vec<String>>,
    heads: Mutex<Vec<Head>>,
}

impl Shared {
    pub(super) fn new(bubblewrap: PathBuf, speed: u32) -> Self {
        Self {
            bubblewrap,
            faults: Faults::default(),
            tasks: TaskTracker::new(),
            speed: speed.max(1),
            sandboxes: Mutex::default(),
            lone: Mutex::default(),
            log: Mutex::default(),
            heads: Mutex::default(),
        }
    }

    pub(super) fn create(&self, account: Account, user: SandboxUser) -> Arc<Sandbox> {
        self.insert(Sandbox::new(new_id(), account, user))
    }

    pub(super) fn insert(&self, sandbox: Sandbox) -> Arc<Sandbox> {
        let sandbox = Arc::new(sandbox);
        lock(&self.sandboxes).insert(sandbox.id.clone(), Arc::clone(&sandbox));
        sandbox
    }

    /// `None` also for a sandbox that was ended.
    pub(super) fn sandbox(&self, id: &str) -> Option<Arc<Sandbox>> {
        lock(&self.sandboxes).get(id).filter(|sandbox| !sandbox.is_dead()).cloned()
    }

    pub(super) fn serve_alone(&self, sandbox: &Arc<Sandbox>) {
        *lock(&self.lone) = Some(Arc::clone(sandbox));
    }

    pub(super) fn lone_sandbox(&self) -> Option<Arc<Sandbox>> {
        lock(&self.lone).clone()
    }

    pub(super) fn end_all(&self) {
        lock(&self.sandboxes).values().for_each(|sandbox| sandbox.end());
    }

    pub(super) fn write_log(&self, line: impl Into<String>) {
        lock(&self.log).push(line.into());
    }

    pub(super) fn log(&self) -> Vec<String> {
        lock(&self.log).clone()
    }

    pub(super) fn heads(&self) -> Vec<Head> {
        lock(&self.heads).clone()
    }

    fn record(&self, side: Side, request: &Request<Incoming>) {
        let text =
            |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let line = format!("{} {}", request.method(), request.uri());
        self.write_log(format!("{side:?} {line}"));
        lock(&self.heads).push(Head { side, line, headers });
    }
}

/// Listens on loopback and serves one side on this runtime.
///
/// # Panics
/// When loopback has no free port.
pub(super) fn listen(shared: &Arc<Shared>, side: Side, runtime: &Handle) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    listener.set_nonblocking(true).expect("a socket can be non-blocking");
    // The test may be in another runtime.
    let entered = runtime.enter();
    let listener = TcpListener::from_std(listener).expect("it is a listening socket");
    drop(entered);
    let shared = Arc::clone(shared);
    let tasks = shared.tasks.clone();
    let accepting = async move {
        while let Ok((connection, _)) = listener.accept().await {
            shared.tasks.spawn(serve(Arc::clone(&shared), side, connection));
        }
    };
    tasks.spawn_on(accepting, runtime);
    address
}

async fn serve(shared: Arc<Shared>, side: Side, connection: TcpStream) {
    // Otherwise a small frame waits for a delayed acknowledgement.
    let _ = connection.set_nodelay(true);
    let service = service_fn(|request| handle(Arc::clone(&shared), side, request));
    // A client may disconnect at any time.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
}

async fn handle(shared: Arc<Shared>, side: Side, request: Request<Incoming>) -> HandlerResult {
    shared.record(side, &request);
    shared.faults.await_release(side).await;
    if let Some(fault) = shared.faults.take(side, &request.uri().to_string()) {
        return fault.response().await;
    }
    match side {
        Side::Control => control::handle(&shared, request).await,
        Side::Envd => envd::handle(&shared, request).await,
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn new_id() -> String {
    format!("i{}", &random_hex()[..19])
}

pub(super) fn random_hex() -> String {
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").expect("the machine has random numbers");
    source.read_exact(&mut bytes).expect("/dev/urandom does not end");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
