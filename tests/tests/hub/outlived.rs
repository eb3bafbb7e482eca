//! Hubs on a platform that keeps a command's stdin open after its client is gone, as E2B's does.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::*;

/// Starts a hub for every client and connects the two. When the client is gone, the hub goes on, with its stdin open.
struct Platform {
    clients: PathBuf,
    log: PathBuf,
    hubs: Arc<Mutex<Vec<Hub>>>,
}

/// What a hub prints that found out by itself that its pipe is dead, after 15 seconds.
const SILENCE: &str = "nothing came through the pipe";

struct Hub {
    process: Running,
    /// Keeps the hub's stdin and stdout open.
    _pipe: UnixStream,
}

impl Platform {
    fn start(directory: &Path, socket: &Path, pin: &str, options: &[&str]) -> Self {
        let clients = directory.join("platform.sock");
        let listener = UnixListener::bind(&clients).expect("a temporary directory is writable");
        let hubs = Arc::new(Mutex::new(Vec::new()));
        let arguments: Vec<String> = ["hub", "--pin", pin, "--socket", &socket.display().to_string()]
            .iter()
            .chain(options)
            .map(|word| (*word).to_owned())
            .collect();
        let log = directory.join("hubs.log");
        let (started, stderr) = (Arc::clone(&hubs), log.clone());
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (here, there) = UnixStream::pair().expect("sockets work here");
                let end = || {
                    Stdio::from(std::os::fd::OwnedFd::from(there.try_clone().expect("descriptors are left")))
                };
                let mut hub = command(shim_binary());
                hub.env_clear().args(&arguments).stdin(end()).stdout(end()).stderr(into_file(&stderr));
                let process = Running::spawn(hub, "cofferdam-shim hub");
                copy_without_closing(&client, &here);
                copy_without_closing(&here, &client);
                started.lock().expect("no thread panics with it").push(Hub { process, _pipe: here });
            }
        });
        Self { clients, log, hubs }
    }

    /// `cofferdam attach exec` with a client of this platform.
    fn attach(&self, world: &World, socat: &Path) -> Attach {
        let socat = socat.display().to_string();
        let address = format!("UNIX-CONNECT:{}", self.clients.display());
        Attach::start(world, &["exec", "--grant", "dev", "--", &socat, "-", &address])
    }

    fn wait_until_started(&self, number: usize) {
        wait_until("the hub was started", || self.hubs().len() > number);
    }

    fn hubs(&self) -> MutexGuard<'_, Vec<Hub>> {
        self.hubs.lock().expect("no thread panics with it")
    }

    /// What all hubs wrote to stderr.
    fn printed(&self) -> String {
        String::from_utf8_lossy(&read(&self.log)).into_owned()
    }

    fn is_running(&self, number: usize) -> bool {
        self.hubs()[number].process.is_running()
    }
}

fn copy_without_closing(from: &UnixStream, to: &UnixStream) {
    let (mut from, mut to) =
        (from.try_clone().expect("descriptors are left"), to.try_clone().expect("descriptors are left"));
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    });
}

fn key_of(world: &World) -> String {
    world.cofferdam_text(&["key"]).trim().to_owned()
}

#[test]
fn a_hub_that_outlived_its_client_gives_way_at_once() {
    let Some(socat) = Tool::Socat.path() else { return };
    let scene = Scene::new();
    let platform = Platform::start(scene.directory.path(), &scene.socket(), &key_of(&scene.world), &[]);
    let attach = platform.attach(&scene.world, &socat);
    attach.wait_until_attached(1);
    let mut shim = scene.shim();
    for round in 0..3 {
        platform.wait_until_started(round);
        let calls = send_calls(&mut shim, Round(round), 6);
        send(attach.command_pid(), Signal::SIGKILL);
        attach.wait_until_attached(round + 2);
        wait_until("the older hub has ended", || !platform.is_running(round));
        expect_responses(&mut shim, calls);
    }
    assert_eq!(scene.world.executions("tools").len(), 18);
    let printed = platform.printed();
    assert_eq!(printed.matches("a newer hub to the same sidecar takes over").count(), 3, "{printed}");
    assert!(!printed.contains(SILENCE), "none waited for heartbeats: {printed}");
}

/// A hub that pins another sidecar, or whose pipe leads to none, ends no hub that works.
#[test]
fn a_hub_gives_way_only_to_one_that_reaches_the_same_sidecar() {
    let scene = Scene::new();
    let attach = scene.attach();
    let hub = attach.command_pid();
    let other = scene.directory.path().join("other");
    let control = scene.directory.path().join("box/relay.sock.control");
    assert_eq!(std::fs::metadata(&control).unwrap().permissions().mode() & 0o7777, 0o600);

    // The right key, and a pipe on which no sidecar answers.
    let (here, _there) = UnixStream::pair().unwrap();
    let end = || Stdio::from(std::os::fd::OwnedFd::from(here.try_clone().unwrap()));
    let mut pretender = command(shim_binary());
    pretender.env_clear().args(["hub", "--pin", &key_of(&scene.world), "--socket"]).arg(scene.socket());
    pretender.stdin(end()).stdout(end()).stderr(into_file(&other));
    let mut pretender = Running::spawn(pretender, "cofferdam-shim hub");
    assert_eq!(pretender.wait(PATIENCE).code(), Some(69));
    assert!(String::from_utf8_lossy(&read(&other)).contains("no response in 10 seconds"));

    // Bytes that are no request, and a request for another sidecar.
    for request in
        ["GET / HTTP/1.1\r\n\r\n".repeat(9), format!("cofferdam-hub-takeover/1 {}\nend!\n", "1".repeat(64))]
    {
        let mut stream = UnixStream::connect(&control).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert_eq!(reply, b"");
    }
    assert!(is_alive(hub));
    assert_eq!(scene.shim().call_text("add", json!({"a": 1, "b": 2})), "3");
    assert_eq!(attach.times_attached(), 1);
}

#[test]
fn a_killed_sandboxs_hub_ends_although_its_stdin_stays_open() {
    let Some(socat) = Tool::Socat.path() else { return };
    let scene = Scene::new();
    let platform = Platform::start(scene.directory.path(), &scene.socket(), &key_of(&scene.world), &[]);
    let mut attach = platform.attach(&scene.world, &socat);
    attach.wait_until_attached(1);
    let mut shim = scene.shim();
    platform.wait_until_started(0);
    let session = session_ids(&scene.world).remove(0);
    let deadline = Deadline::after(GONE_WITHIN);
    scene.world.cofferdam_text(&["kill", &session]);
    assert_eq!(refusal_of(&shim.call("add", json!({}))), "session_ended");
    let servers = scene.world.fixture_processes("tools");
    let is_gone = holds_before(deadline, || {
        !platform.is_running(0) && !attach.is_running() && servers.iter().all(|id| !is_alive(*id))
    });
    assert!(is_gone, "hub, `attach` or a server are left after {GONE_WITHIN:?}");
    assert!(!attach.wait().success());
    let printed = platform.printed();
    assert!(!printed.contains(SILENCE), "it did not wait for heartbeats: {printed}");
}

/// What an orchestrator does whose SDK decodes stdout as UTF-8 and replaces what is not.
const TEXT_CLIENT: &str = r#"
import base64, os, subprocess, sys, threading
hub = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def outward():
    for line in hub.stdout:
        text = line.decode("utf-8", "replace")
        sys.stdout.buffer.write(base64.b64decode(text.strip(), validate=True))
        sys.stdout.buffer.flush()
    os._exit(0)

threading.Thread(target=outward, daemon=True).start()
while data := os.read(0, 30000):
    hub.stdin.write(base64.b64encode(data) + b"\r\n")
    hub.stdin.flush()
hub.stdin.close()
"#;

#[test]
fn a_hub_with_text_works_where_output_is_decoded() {
    let scene = Scene::new();
    let script = scene.directory.path().join("client.py");
    std::fs::write(&script, TEXT_CLIENT).unwrap();
    let mut arguments = exec_hub(&scene.socket());
    let hub = arguments.iter().position(|word| word == "hub").expect("a hub is started");
    arguments.insert(hub + 1, "--text".into());
    let start = arguments.iter().position(|word| word == "--").expect("a command follows") + 1;
    arguments.splice(start..start, ["python3".to_owned(), script.display().to_string()]);
    let attach = Attach::start(&scene.world, &arguments);
    attach.wait_until_attached(1);
    let mut shim = scene.shim();
    let text = "ü\u{1f600}\n".repeat(100_000);
    assert_eq!(shim.call_text("echo", json!({"text": text})), text);
    assert_eq!(shim.call_text("big", json!({"bytes": 3_000_000})).len(), 3_000_000);
    let calls = send_calls(&mut shim, Round(0), 9);
    send(attach.command_pid(), Signal::SIGKILL);
    attach.wait_until_attached(2);
    expect_responses(&mut shim, calls);
    assert_eq!(scene.world.executions("tools").len(), 11);
    attach.stop();
    wait_until("the hub has ended", || !scene.socket().exists());
}
