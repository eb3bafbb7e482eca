//! A double of Daytona on loopback: control API, toolbox, preview proxy and SSH gateway, with one sandbox.
//!
//! The sandbox is a directory and real processes in bubblewrap; what listens in it is on the machine's loopback. The double
//! follows Daytona's sources of mid-2026 in what its clients can see: the proxy accepts a sandbox's token or an API key and
//! passes neither on; without a good one it redirects (preview) or answers 401 (toolbox); the token changes with every
//! start; connections are closed after 70 s without traffic; an open connection counts as use of the sandbox unless its
//! request says otherwise. The real Python SDK runs against it, in `tests/tests/daytona`.
//!
//! What must stay true: no time of Daytona's is waited for in full: [`Speed`] divides them all.
//!
//! | module | what it holds |
//! |---|---|
//! | `control` | the control API |
//! | `gateway` | the SSH gateway: a real `sshd` |
//! | `guest` | the sandbox's files and processes |
//! | `preview` | the proxy in front of the sandbox's ports |
//! | `record` | what was requested, for searches |
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::gateway::Gateway;
use self::guest::Guest;
pub use self::record::{Requested, ServiceName};
use self::wire::Request;
use crate::port::free_address;
use crate::tools::Tool;

/// The account's API key.
pub const API_KEY: &str = "dtn_0f1e2d3c4b5a69788796a5b4c3d2e1f0aabbccdd";

/// A running double. Its sandbox ends when this is dropped.
pub struct DaytonaDouble {
    platform: Arc<Platform>,
}

/// How many times faster Daytona's own times pass.
#[derive(Clone, Copy, Debug)]
pub struct Speed(pub u32);

/// What goes wrong with requests.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, and these seconds as `Retry-After`.
    Status(u16, Option<u32>),
    /// This status, with this message.
    Saying(u16, String),
    /// The head of a response and a part of the promised body; then the connection closes.
    HalfAnswer,
    /// A redirect to this address.
    Redirect(String),
    /// A response of a gigabyte: true if it says so in its head.
    Gigabyte { announced: bool },
    /// The connection is closed without a response.
    Cut,
    /// The sandbox stops when this many bytes of the request's body have arrived.
    StopAfter(usize),
}

/// The state of the sandbox, in Daytona's words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lifecycle {
    Started,
    Stopped,
    Archived,
}

/// Whom the SSH gateway lets in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SshAccounts {
    Others,
    Tokens,
}

/// In the place of a path.
const PREVIEW_FAULT: &str = "preview";

struct Platform {
    address: SocketAddr,
    sandbox_id: String,
    speed: Speed,
    root: tempfile::TempDir,
    bubblewrap: PathBuf,
    state: Mutex<PlatformState>,
    requests: Mutex<Vec<Requested>>,
    /// How often the sandbox was reported as used.
    activity: AtomicU64,
    /// How often all connections through the preview proxy were cut.
    cuts: AtomicU64,
    /// Increases with every request, and names commands.
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
    /// None: another one for each token.
    ssh_address: Option<SocketAddr>,
    /// With the part of a path that they are for; each is used once.
    faults: Vec<(&'static str, Fault)>,
}

impl DaytonaDouble {
    /// A double with a started sandbox; `None` where bubblewrap is missing.
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

    pub fn api_url(&self) -> String {
        format!("http://{}/api", self.platform.address)
    }

    /// Where the proxy listens, whatever host name a preview link has.
    pub fn proxy_url(&self) -> String {
        format!("http://{}", self.platform.address)
    }

    /// The directory that is the sandbox's `/`, as far as it is its own.
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

    /// Cuts all connections through the preview proxy; the sandbox goes on.
    pub fn cut(&self) {
        self.platform.cuts.fetch_add(1, Ordering::Relaxed);
    }

    /// The next request whose path ends with `path` fails; if `path` ends with a slash, the path has only to contain it.
    pub fn fail_next(&self, path: &'static str, fault: Fault) {
        self.platform.lock().faults.push((path, fault));
    }

    /// The next request to the preview proxy fails.
    pub fn fail_next_upgrade(&self, fault: Fault) {
        self.platform.lock().faults.push((PREVIEW_FAULT, fault));
    }

    /// The SSH gateway does not know the tokens that are made from now on.
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
    pub fn requests(&self) -> Vec<Requested> {
        self.platform.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The tokens that were valid at some time.
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
        // Here, because a thread that still answers a client has a share of the directory.
        let _ = std::fs::remove_dir_all(self.platform.root.path());
        // Wakes the listener, which then sees that the double is gone.
        let address = self.platform.address;
        std::thread::spawn(move || TcpStream::connect(address));
    }
}

impl Platform {
    fn serve(self: Arc<Self>, stream: TcpStream) {
        let Some(mut request) = Request::read(stream) else { return };
        let service = ServiceName::of(&request);
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
                let answer = match service {
                    ServiceName::Control => control::answer(&self, &request),
                    _ => toolbox::answer(&self, &request),
                };
                request.answer(&answer);
            }
        }
    }

    fn fail(&self, fault: Fault, mut request: Request) {
        match fault {
            Fault::Cut => {}
            Fault::Status(status, retry_after) => {
                request.read_body(usize::MAX);
                request.answer(&wire::Answer::status(status).retry_after(retry_after));
            }
            Fault::Saying(status, message) => {
                request.read_body(usize::MAX);
                request.answer(&wire::Answer::error(status, &message));
            }
            Fault::HalfAnswer => {
                request.read_body(usize::MAX);
                request.answer_half();
            }
            Fault::Redirect(address) => {
                request.read_body(usize::MAX);
                request.answer(&wire::Answer::status(307).location(&address));
            }
            Fault::Gigabyte { announced } => request.answer_endlessly(announced),
            Fault::StopAfter(bytes) => {
                request.read_body(bytes);
                toolbox::write_cut_upload(self, &request);
                self.stop_sandbox(Lifecycle::Stopped);
            }
        }
    }

    fn start_sandbox(&self) {
        let mut state = self.lock();
        if state.lifecycle == Lifecycle::Started {
            return;
        }
        state.guest = Some(Arc::new(Guest::start(&self.bubblewrap, self.root.path())));
        state.preview_token = random("preview");
        state.lifecycle = Lifecycle::Started;
    }

    /// The disk is kept; memory, sessions and connections are not.
    fn stop_sandbox(&self, lifecycle: Lifecycle) {
        let mut state = self.lock();
        state.lifecycle = lifecycle;
        state.sessions.clear();
        state.gateways.clear();
        if let Some(guest) = state.guest.take() {
            guest.end();
        }
    }

    fn guest(&self) -> Option<Arc<Guest>> {
        self.lock().guest.clone()
    }

    fn take_fault(&self, service: ServiceName, path: &str) -> Option<Fault> {
        let mut state = self.lock();
        let is_meant = |part: &str| match service {
            ServiceName::Preview => part == PREVIEW_FAULT,
            _ => path.ends_with(part) || (part.ends_with('/') && path.contains(part)),
        };
        let position = state.faults.iter().position(|(part, _)| is_meant(part))?;
        Some(state.faults.remove(position).1)
    }

    /// A time of Daytona's, as it passes here.
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

/// Unguessable enough for a test, and found in no other text.
fn random(prefix: &str) -> String {
    let name = tempfile::Builder::new().prefix("x").rand_bytes(24).make(|path| Ok(path.to_owned()));
    let name = name.expect("nothing is created").path().file_name().map(|name| name.to_owned());
    let name = name.and_then(|name| name.into_string().ok()).expect("letters and digits");
    format!("{prefix}{}", name.to_lowercase())
}
