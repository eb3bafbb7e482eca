//! A double of Daytona on loopback: control API, toolbox, preview proxy and SSH gateway, with one sandbox.
//!
//! The sandbox is a directory and real processes in bubblewrap, which listen on the machine's loopback. For its clients the
//! double behaves as Daytona's sources of mid-2026: the proxy accepts a sandbox's token or an API key and forwards neither;
//! without a valid one it redirects (preview) or responds with 401 (toolbox); the token changes with every start; connections
//! are closed after 70 s without traffic; an open connection counts as activity of the sandbox unless a header says otherwise.
//! The real Python SDK is run against it in `tests/tests/daytona`.
//!
//! What must stay true: all of Daytona's timeouts and intervals are divided by [`Speed`].
//!
//! | module | what it holds |
//! |---|---|
//! | `control` | the control API |
//! | `gateway` | the SSH gateway: a real `sshd` |
//! | `guest` | the sandbox's files and processes |
//! | `preview` | the proxy in front of the sandbox's ports |
//! | `record` | the requests so far, which tests search |
//! | `toolbox` | commands, files and sessions in the sandbox |
//! | `wire` | HTTP/1.1, one request per connection |

mod control;
mod gateway;
mod guest;
mod preview;
mod record;
mod toolbox;
mod wire;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use self::gateway::Gateway;
use self::guest::Guest;
pub use self::record::{RecordedRequest, ServiceName};
use self::wire::Request;
use crate::port::free_address;
use crate::tools::Tool;

/// The API key of the account that owns the sandbox.
pub const API_KEY: &str = "dtn_0f1e2d3c4b5a69788796a5b4c3d2e1f0aabbccdd";
/// The API key of another account, for which the sandbox does not exist.
pub const OTHER_API_KEY: &str = "dtn_ddccbbaa0f1e2d3c4b5a69788796a5b4c3d2e1f0";

/// A running double. Its sandbox ends when this is dropped.
pub struct DaytonaDouble {
    platform: Arc<Platform>,
}

/// By how much Daytona's timeouts and intervals are shortened.
#[derive(Clone, Copy, Debug)]
pub struct Speed(pub u32);

/// What happens to a request instead of its normal response.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, and these seconds as `Retry-After`.
    Status(u16, Option<u32>),
    /// This status, with this message.
    Saying(u16, String),
    /// The head of a response and a part of its body; then the connection is closed.
    HalfResponse,
    /// A redirect to this address.
    Redirect(String),
    /// A response of a gigabyte; `announced` if it has a `Content-Length`.
    Gigabyte { announced: bool },
    /// The connection is closed without a response.
    Cut,
    /// The sandbox is deleted when this many bytes of the request's body have arrived.
    DeleteAfter(usize),
    /// No response until the client disconnects.
    Silence,
    /// An upload is written half a second after it arrived, although its client may have disconnected; then the sender is used.
    LateWrite(mpsc::Sender<()>),
    /// The sandbox stops when this many bytes of the request's body have arrived.
    StopAfter(usize),
    /// Of the request's body only this many bytes are stored, and success is reported.
    StorePart(usize),
}

/// The state of the sandbox, in Daytona's words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lifecycle {
    Started,
    Stopped,
    Archived,
    /// Being started from the archive: after this many further queries of its state it is started.
    Restoring(u32),
    Deleted,
}

/// How often the state of an archived sandbox is reported as `restoring` after the request to start it.
const RESTORING_QUERIES: u32 = 2;

/// Which account the SSH gateway has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SshAccounts {
    /// Another name than the token's, so that the client is refused.
    Others,
    Tokens,
}

/// Used instead of a path for faults of the preview proxy.
const PREVIEW_FAULT: &str = "preview";

struct Platform {
    address: SocketAddr,
    sandbox_id: String,
    speed: Speed,
    root: tempfile::TempDir,
    bubblewrap: PathBuf,
    state: Mutex<PlatformState>,
    requests: Mutex<Vec<RecordedRequest>>,
    /// How often the sandbox was reported as used.
    activity: AtomicU64,
    /// How often all connections through the preview proxy were closed by the test.
    cuts: AtomicU64,
    /// The number of the next command.
    count: AtomicU32,
}

struct PlatformState {
    lifecycle: Lifecycle,
    guest: Option<Arc<Guest>>,
    gateways: Vec<Gateway>,
    preview_token: String,
    ssh_tokens: Vec<String>,
    sessions: Vec<toolbox::Session>,
    ssh_accounts: SshAccounts,
    /// The fixed address of the gateway. `None`: a new address for each token.
    ssh_address: Option<SocketAddr>,
    /// The faults to come, each with a part of the request's path; each is used once.
    faults: Vec<(&'static str, Fault)>,
    /// How many requests are served until one gets no response.
    requests_until_silence: Option<usize>,
    /// As `faults`, but used for every request.
    lasting_faults: Vec<(&'static str, Fault)>,
}

impl DaytonaDouble {
    /// A double with a started sandbox; `None` if bubblewrap is missing.
    #[track_caller]
    pub fn start(speed: Speed) -> Option<Self> {
        let bubblewrap = Tool::Bubblewrap.path()?;
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let root = tempfile::Builder::new().prefix("daytona-").tempdir().expect("a temporary directory");
        let platform = Arc::new(Platform {
            address: listener.local_addr().expect("a bound socket has an address"),
            sandbox_id: random("sandbox-"),
            speed,
            root,
            bubblewrap,
            state: Mutex::new(PlatformState {
                lifecycle: Lifecycle::Stopped,
                guest: None,
                gateways: Vec::new(),
                preview_token: random("preview"),
                ssh_tokens: Vec::new(),
                ssh_accounts: SshAccounts::Tokens,
                ssh_address: None,
                sessions: Vec::new(),
                faults: Vec::new(),
                requests_until_silence: None,
                lasting_faults: Vec::new(),
            }),
            requests: Mutex::default(),
            activity: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            count: AtomicU32::new(0),
        });
        let served = Arc::downgrade(&platform);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(platform) = served.upgrade() else { return };
                std::thread::spawn(move || platform.serve(stream));
            }
        });
        platform.start_sandbox();
        Some(Self { platform })
    }

    pub fn sandbox_id(&self) -> &str {
        &self.platform.sandbox_id
    }

    /// The sandbox's name, by which the control API finds it too.
    pub fn sandbox_name(&self) -> String {
        self.platform.sandbox_name()
    }

    pub fn api_url(&self) -> String {
        format!("http://{}/api", self.platform.address)
    }

    /// The address at which the proxy listens, whatever host name a preview link has.
    pub fn proxy_url(&self) -> String {
        format!("http://{}", self.platform.address)
    }

    /// The directory with the sandbox's own files, by their paths in the sandbox.
    pub fn root(&self) -> PathBuf {
        self.platform.root.path().to_owned()
    }

    pub fn stop(&self) {
        self.platform.stop_sandbox(Lifecycle::Stopped);
    }

    pub fn archive(&self) {
        self.platform.stop_sandbox(Lifecycle::Archived);
    }

    pub fn start_again(&self) {
        self.platform.start_sandbox();
    }

    /// Deletes the sandbox, as its owner can at any time.
    pub fn delete(&self) {
        self.platform.stop_sandbox(Lifecycle::Deleted);
    }

    /// One request gets no response, after this many others to any service.
    pub fn silence_after(&self, requests: usize) {
        self.platform.lock().requests_until_silence = Some(requests);
    }

    /// Every request gets its response from now on.
    pub fn silence_none(&self) {
        self.platform.lock().requests_until_silence = None;
    }

    /// Closes all connections through the preview proxy; the sandbox still runs.
    pub fn cut(&self) {
        self.platform.cuts.fetch_add(1, Ordering::Relaxed);
    }

    /// Injects a fault into the next request whose path ends with `path`, or, if `path` ends with a slash, contains it.
    pub fn fail_next(&self, path: &'static str, fault: Fault) {
        self.platform.lock().faults.push((path, fault));
    }

    /// Injects a fault into every request whose path matches as in [`Self::fail_next`].
    pub fn fail_always(&self, path: &'static str, fault: Fault) {
        self.platform.lock().lasting_faults.push((path, fault));
    }

    /// Injects a fault into the next request to the preview proxy.
    pub fn fail_next_upgrade(&self, fault: Fault) {
        self.platform.lock().faults.push((PREVIEW_FAULT, fault));
    }

    /// The SSH gateway refuses the tokens that are issued from now on.
    pub fn refuse_ssh(&self) {
        self.platform.lock().ssh_accounts = SshAccounts::Others;
    }

    /// From now on the SSH gateway has one address, as Daytona's has, and a new host key for each token.
    pub fn keep_ssh_address(&self) {
        self.platform.lock().ssh_address = Some(free_address());
    }

    /// How often the sandbox was reported as used.
    pub fn activity(&self) -> u64 {
        self.platform.activity.load(Ordering::Relaxed)
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.platform.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current preview token, and all SSH tokens so far.
    pub fn tokens(&self) -> Vec<String> {
        let state = self.platform.lock();
        [std::slice::from_ref(&state.preview_token), &state.ssh_tokens[..]].concat()
    }

    /// The processes of the sandbox, by their command lines.
    pub fn processes(&self) -> Vec<String> {
        self.platform.lock().guest.as_ref().map(|guest| guest.processes()).unwrap_or_default()
    }
}

impl Drop for DaytonaDouble {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for request in self.requests() {
                eprintln!("daytona double: {request}");
            }
        }
        self.platform.stop_sandbox(Lifecycle::Stopped);
        // Removed here, because a thread that still handles a request keeps the `TempDir` alive.
        let _ = std::fs::remove_dir_all(self.platform.root.path());
        // Wakes the listener's thread, which then ends because the double was dropped.
        let address = self.platform.address;
        std::thread::spawn(move || TcpStream::connect(address));
    }
}

impl Platform {
    fn serve(self: Arc<Self>, stream: TcpStream) {
        let Some(mut request) = Request::read(stream) else { return };
        let service = ServiceName::of(&request);
        if self.is_silenced() {
            self.record(service, &request);
            return request.wait_for_disconnect();
        }
        if let Some(fault) = self.take_fault(service, &request.path) {
            self.record(service, &request);
            return self.fail(fault, request);
        }
        match service {
            ServiceName::Preview => {
                self.record(service, &request);
                preview::serve(&self, request);
            }
            ServiceName::Control | ServiceName::Toolbox => {
                if !request.read_body(usize::MAX) {
                    return;
                }
                self.record(service, &request);
                let response = match service {
                    ServiceName::Control => control::handle(&self, &request),
                    _ => toolbox::handle(&self, &request),
                };
                request.respond(&response);
            }
        }
    }

    fn fail(&self, fault: Fault, mut request: Request) {
        match fault {
            Fault::Cut => {}
            Fault::Status(status, retry_after) => {
                request.read_body(usize::MAX);
                request.respond(&wire::Response::status(status).retry_after(retry_after));
            }
            Fault::Saying(status, message) => {
                request.read_body(usize::MAX);
                request.respond(&wire::Response::error(status, &message));
            }
            Fault::HalfResponse => {
                request.read_body(usize::MAX);
                request.respond_half();
            }
            Fault::Redirect(address) => {
                request.read_body(usize::MAX);
                request.respond(&wire::Response::status(307).location(&address));
            }
            Fault::Gigabyte { announced } => request.respond_with_gigabyte(announced),
            Fault::DeleteAfter(bytes) => self.end_during_upload(request, bytes, Lifecycle::Deleted),
            Fault::LateWrite(written) => {
                request.read_body(usize::MAX);
                std::thread::sleep(Duration::from_millis(500));
                toolbox::write_partial_upload(self, &request);
                // Fails if the test is over.
                let _ = written.send(());
            }
            Fault::Silence => request.wait_for_disconnect(),
            Fault::StopAfter(bytes) => self.end_during_upload(request, bytes, Lifecycle::Stopped),
            Fault::StorePart(bytes) => {
                request.read_body(usize::MAX);
                request.body.truncate(bytes);
                toolbox::write_partial_upload(self, &request);
                request.respond(&wire::Response::json(200, &serde_json::json!({ "files": [] })));
            }
        }
    }

    fn end_during_upload(&self, mut request: Request, bytes: usize, lifecycle: Lifecycle) {
        request.read_body(bytes);
        toolbox::write_partial_upload(self, &request);
        self.stop_sandbox(lifecycle);
    }

    /// Starts the sandbox, or begins to restore it if it is archived.
    fn start_sandbox(&self) {
        let mut state = self.lock();
        match state.lifecycle {
            Lifecycle::Started | Lifecycle::Restoring(1..) => return,
            Lifecycle::Archived => {
                state.lifecycle = Lifecycle::Restoring(RESTORING_QUERIES);
                return;
            }
            Lifecycle::Deleted | Lifecycle::Restoring(0) | Lifecycle::Stopped => {}
        }
        state.guest = Some(Arc::new(Guest::start(&self.bubblewrap, self.root.path())));
        state.preview_token = random("preview");
        state.lifecycle = Lifecycle::Started;
    }

    /// Stops the sandbox: its files stay unless it is deleted; its processes, sessions and connections do not.
    fn stop_sandbox(&self, lifecycle: Lifecycle) {
        let mut state = self.lock();
        state.lifecycle = lifecycle;
        state.sessions.clear();
        state.gateways.clear();
        if let Some(guest) = state.guest.take() {
            guest.end();
        }
        if lifecycle == Lifecycle::Deleted {
            for entry in std::fs::read_dir(self.root.path()).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Counts a query of the state, while which a sandbox is restored from the archive.
    fn count_state_query(&self) {
        let mut state = self.lock();
        let Lifecycle::Restoring(queries) = &mut state.lifecycle else { return };
        *queries = queries.saturating_sub(1);
        let is_restored = *queries == 0;
        drop(state);
        if is_restored {
            self.start_sandbox();
        }
    }

    fn sandbox_name(&self) -> String {
        format!("name-of-{}", self.sandbox_id)
    }

    fn guest(&self) -> Option<Arc<Guest>> {
        self.lock().guest.clone()
    }

    /// Whether this request gets no response. Counts it.
    fn is_silenced(&self) -> bool {
        let mut state = self.lock();
        let left = state.requests_until_silence;
        state.requests_until_silence = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }

    fn take_fault(&self, service: ServiceName, path: &str) -> Option<Fault> {
        let mut state = self.lock();
        let matches = |part: &str| match service {
            ServiceName::Preview => part == PREVIEW_FAULT,
            _ => path.ends_with(part) || (part.ends_with('/') && path.contains(part)),
        };
        if let Some(position) = state.faults.iter().position(|(part, _)| matches(part)) {
            return Some(state.faults.remove(position).1);
        }
        state.lasting_faults.iter().find(|(part, _)| matches(part)).map(|(_, fault)| fault.clone())
    }

    /// A timeout or interval of Daytona's, divided by the double's speed.
    fn time(&self, seconds: u32) -> Duration {
        Duration::from_secs(seconds.into()) / self.speed.0
    }

    fn next_number(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, PlatformState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random text that occurs nowhere else.
fn random(prefix: &str) -> String {
    let name = tempfile::Builder::new().prefix("x").rand_bytes(24).make(|path| Ok(path.to_owned()));
    let name = name.expect("nothing is created").path().file_name().map(|name| name.to_owned());
    let name = name.and_then(|name| name.into_string().ok()).expect("letters and digits");
    format!("{prefix}{}", name.to_lowercase())
}
