//! A world for the tests of the egress: a network of the test's own with public addresses, in which the sidecar and the
//! hosts are; and in it the network of a confined server, which has nothing but its loopback interface.
//!
//! Both are namespaces that end with the test. Addresses that are not loopback exist only in them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, IoSliceMut, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_egress::{AddressPool, Egress, Event, Limits, Observer, Plan, Refusal, Usage, serve};
use cofferdam_net::{Resolve, Resolving};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// Long, because machines may be busy and no test is about speed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Set in the process that runs a test in its network.
const WORLD: &str = "COFFERDAM_EGRESS_WORLD";
/// The public addresses of the world, and some that are not.
const ADDRESSES: [&str; 6] =
    ["93.184.215.14", "93.184.215.15", "10.0.0.5", "169.254.169.254", "2001:db8::1", "2606:2800:21f::1"];
/// How many descriptors one message may carry.
const MAX_DESCRIPTORS: usize = 253;

/// What the scripts of the tests begin with. `connect` and `fetch` return what they got, or the name of the error.
const CLIENT: &str = r"
import errno, os, socket, struct, sys, time, urllib.request
socket.setdefaulttimeout(30)
def attempt(action):
    try:
        return action()
    except socket.gaierror as error:
        return {socket.EAI_NONAME: 'no such name', socket.EAI_AGAIN: 'try later'}.get(error.errno, str(error))
    except TimeoutError:
        return 'timed out'
    except OSError as error:
        return errno.errorcode[error.errno]
def connect(host, port):
    return attempt(lambda: socket.create_connection((host, port)).close() or 'connected')
def exchange(host, port, sent):
    with socket.create_connection((host, port)) as connection:
        connection.sendall(sent)
        received = b''
        while piece := connection.recv(1000): received += piece
        return received.decode().split('\r\n\r\n')[-1]
def fetch(host, port=80, sent=b'GET / HTTP/1.1\r\n\r\n'):
    return attempt(lambda: exchange(host, port, sent))
";
/// The public address of most hosts of the tests.
pub(crate) const PUBLIC: &str = "93.184.215.14";

/// Runs a test in a network of its own, as root there. The test's program runs this test once more, inside.
pub(crate) fn in_world<Test: AsyncFnOnce()>(test: Test) {
    let name = std::any::type_name::<Test>().trim_end_matches("::{{closure}}");
    let name = name.split_once("::").map_or(name, |(_program, test)| test);
    if std::env::var(WORLD).as_deref() == Ok(name) {
        ip(&["link", "set", "lo", "up"]);
        for address in ADDRESSES {
            ip(&[&["address", "add", address, "dev", "lo"], nodad(address)].concat());
        }
        let world = World(Some(Runtime::new().expect("start a runtime")));
        return world.run(test);
    }
    let program = std::env::current_exe().expect("the test's own program");
    let output = in_new_network(&program)
        .args([name, "--exact", "--nocapture"])
        .env(WORLD, name)
        .output()
        .expect("start `unshare` of util-linux");
    let printed = String::from_utf8_lossy(&output.stdout);
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the test failed in its network:\n{printed}");
    assert!(printed.contains("1 passed"), "no test is called `{name}`");
}

/// The runtime of a test in its network.
struct World(Option<Runtime>);

impl World {
    fn run<Test: AsyncFnOnce()>(&self, test: Test) {
        let runtime = self.0.as_ref().expect("it runs until it is dropped");
        let ended = runtime.block_on(async { tokio::time::timeout(DEADLINE, test()).await });
        ended.expect("the test did not end in time");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A failed test may have left a program running: its output is not waited for.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn nodad(address: &str) -> &'static [&'static str] {
    if address.contains(':') { &["nodad"] } else { &[] }
}

#[expect(clippy::disallowed_methods, reason = "no keeper is needed for programs of a test")]
fn in_new_network(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount"]).arg(program);
    command
}

#[expect(clippy::disallowed_methods, reason = "no keeper is needed for programs of a test")]
fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("start `ip` of iproute2");
    assert!(status.success(), "ip {arguments:?}");
}

/// A confined server with its network, served by an [`Egress`].
pub(crate) struct Server {
    egress: Option<Egress>,
    pub(crate) events: Arc<Recorder>,
    inside: Arc<Mutex<Inside>>,
}

/// How an [`Egress`] ends.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Awaited,
    Dropped,
}

/// The process in the server's network.
struct Inside {
    process: Child,
    control: BufReader<UnixStream>,
    _directory: TemporaryDirectory,
}

/// How a program in the server's network ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i64,
    pub(crate) stdout: String,
    #[expect(dead_code, reason = "printed when a test fails")]
    stderr: String,
}

impl Server {
    pub(crate) fn start(hosts: &[&str], names: &Names) -> Self {
        Self::start_with(hosts, names, Limits::default())
    }

    pub(crate) fn start_with(hosts: &[&str], names: &Names, limits: Limits) -> Self {
        Self::start_planned(plan(hosts), names, limits)
    }

    pub(crate) fn start_planned(plan: Plan, names: &Names, limits: Limits) -> Self {
        let (inside, sockets) = Inside::start(&plan);
        let events = Arc::new(Recorder::default());
        let egress = serve(plan, sockets, limits, Arc::new(names.clone()), events.clone())
            .expect("serve the server's network");
        Self { egress: Some(egress), events, inside: Arc::new(Mutex::new(inside)) }
    }

    pub(crate) fn usage(&self) -> Usage {
        self.egress.as_ref().expect("it is served").usage()
    }

    /// Ends the service; the process in the network goes on.
    pub(crate) async fn end(&mut self, end: End) {
        let egress = self.egress.take().expect("it is served");
        match end {
            End::Awaited => egress.end().await,
            End::Dropped => drop(egress),
        }
    }

    /// Runs a program in the server's network to its end. One at a time.
    pub(crate) async fn run(&self, command: &[&str]) -> Output {
        self.start_program(command).await.expect("the program was run")
    }

    pub(crate) fn start_program(&self, command: &[&str]) -> tokio::task::JoinHandle<Output> {
        let (inside, command) = (self.inside.clone(), json!(command));
        tokio::task::spawn_blocking(move || inside.lock().expect("no panic").run(&command))
    }

    /// Runs a Python script, which must succeed; returns what it printed, without the last line feed.
    pub(crate) async fn python(&self, script: &str) -> String {
        let output = self.run(&["python3", "-c", &python(script)]).await;
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout.trim_end().to_owned()
    }
}

/// A script with what all scripts need.
pub(crate) fn python(script: &str) -> String {
    format!("{CLIENT}{script}")
}

pub(crate) fn plan(hosts: &[&str]) -> Plan {
    let hosts: Vec<_> = hosts.iter().map(|host| host.parse().expect("a host")).collect();
    Plan::new(&hosts, AddressPool::default()).expect("a plan")
}

impl Inside {
    fn start(plan: &Plan) -> (Self, Vec<OwnedFd>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/egress/inside.py");
        let process = in_new_network(Path::new("python3"))
            .arg(script)
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .expect("start python3 in a new network");
        let directory = TemporaryDirectory::new();
        let network = plan.network();
        let pair = |socket: &SocketAddr| json!([socket.ip(), socket.port()]);
        let description = json!({
            "pool": network.pool.map(|(address, prefix)| format!("{address}/{prefix}")),
            "addresses": network.addresses,
            "listeners": network.listeners.iter().map(pair).collect::<Vec<_>>(),
            "resolver": network.resolver.iter().map(pair).collect::<Vec<_>>(),
            "files": {
                "/etc/hosts": plan.hosts_file(),
                "/etc/resolv.conf": plan.resolv_conf(),
                "/etc/nsswitch.conf": "hosts: files dns\n",
            },
            "directory": directory.0,
        });
        writeln!(&ours, "{description}").expect("describe the network");
        let sockets = receive_descriptors(&ours);
        (Self { process, control: BufReader::new(ours), _directory: directory }, sockets)
    }

    fn run(&mut self, command: &Value) -> Output {
        writeln!(self.control.get_ref(), "{command}").expect("send a command");
        let mut line = String::new();
        self.control.read_line(&mut line).expect("read the result");
        let result: Value = serde_json::from_str(&line).expect("a result");
        let text = |key: &str| result[key].as_str().expect("a text").to_owned();
        Output {
            code: result["code"].as_i64().expect("an exit code"),
            stdout: text("stdout"),
            stderr: text("stderr"),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn receive_descriptors(control: &UnixStream) -> Vec<OwnedFd> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([i32; MAX_DESCRIPTORS]);
    let message =
        recvmsg::<()>(control.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)
            .expect("receive the sockets");
    assert_eq!(message.bytes, 1, "the network was not made");
    let mut received = Vec::new();
    for control in message.cmsgs().expect("whole control messages") {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just opened these descriptors for this process, and nothing else knows them.
            received.extend(descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    received
}

/// Real names, each with the addresses of its successive look-ups; the last one stays.
#[derive(Clone, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeMap<String, VecDeque<Vec<IpAddr>>>>>);

impl Names {
    pub(crate) fn new(names: &[(&str, &[&[&str]])]) -> Self {
        let addresses = |lookup: &&[&str]| lookup.iter().map(|ip| ip.parse().expect("an address")).collect();
        let names =
            names.iter().map(|(name, lookups)| ((*name).to_owned(), lookups.iter().map(addresses).collect()));
        Self(Arc::new(Mutex::new(names.collect())))
    }

    /// One name with one address.
    pub(crate) fn one(name: &str, address: &str) -> Self {
        Self::new(&[(name, &[&[address]])])
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        let mut names = self.0.lock().expect("no panic");
        let lookups = names.get_mut(name);
        let found = lookups.and_then(|lookups| match lookups.len() {
            0 | 1 => lookups.front().cloned(),
            _ => lookups.pop_front(),
        });
        let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let found = found.map(|all| all.into_iter().map(|ip| SocketAddr::new(ip, port)).collect());
        Box::pin(async move { found })
    }
}

/// All events of a server's network.
#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<Event>>,
    added: Notify,
}

impl Recorder {
    pub(crate) fn all(&self) -> Vec<Event> {
        self.events.lock().expect("no panic").clone()
    }

    /// Waits for an event; the test fails if none comes.
    pub(crate) async fn wait_for<T>(&self, what: &str, find: impl Fn(&Event) -> Option<T>) -> T {
        let found = async {
            loop {
                let added = self.added.notified();
                if let Some(found) = self.all().iter().find_map(&find) {
                    return found;
                }
                added.await;
            }
        };
        match tokio::time::timeout(DEADLINE / 2, found).await {
            Ok(found) => found,
            Err(_) => panic!("no event: {what}; these came: {:?}", self.all()),
        }
    }

    pub(crate) async fn wait_for_refusal(&self, expected: Refusal) {
        let find = |event: &Event| matches!(event, Event::Refused { refusal, .. } if *refusal == expected);
        self.wait_for(&format!("{expected:?}"), |event| find(event).then_some(())).await;
    }
}

impl Observer for Recorder {
    fn event(&self, event: Event) {
        self.events.lock().expect("no panic").push(event);
        self.added.notify_waiters();
    }
}

/// Waits for a condition; the test fails if it does not become true.
pub(crate) async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE / 2, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Removed at the end.
pub(crate) struct TemporaryDirectory(pub(crate) PathBuf);

impl TemporaryDirectory {
    pub(crate) fn new() -> Self {
        let name = format!("cofferdam-egress-{}", cofferdam_base::random::hex::<8>());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("make a directory");
        Self(path)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // Files that are mounted elsewhere stay readable there.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
