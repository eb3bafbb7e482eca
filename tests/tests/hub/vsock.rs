//! A virtual machine that the host dials through the Unix socket of its monitor. Here the test is the monitor, and the
//! machine's port is a loopback port; the test `machines` uses a real machine.

use std::io::{BufRead as _, BufReader};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use cofferdam_tests::port::free_address;

use super::ports::listening_hub;
use super::*;

/// How a monitor responds to a request for a port.
#[derive(Clone, Copy, Debug)]
enum MonitorBehaviour {
    /// Sends these bytes and nothing else.
    Answers(&'static [u8]),
    /// Connects port 7443 of the machine to this loopback port; other ports have no listener.
    Connects { to: SocketAddr },
}

/// A monitor's socket, served until the test's process ends.
struct Monitor {
    path: PathBuf,
    connections: Arc<Mutex<Vec<UnixStream>>>,
}

impl Monitor {
    fn start(directory: &Path, behaviour: MonitorBehaviour) -> Self {
        let path = directory.join("vsock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a socket can be made there");
        let connections = Arc::<Mutex<Vec<UnixStream>>>::default();
        let monitor = Self { path, connections: Arc::clone(&connections) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connections = Arc::clone(&connections);
                thread::spawn(move || serve(&stream, behaviour, &connections));
            }
        });
        monitor
    }

    fn address(&self, port: u32) -> String {
        format!("vsock:{}:{port}", self.path.display())
    }

    /// Closes every connection to the machine, as a machine that is restored from a snapshot does; returns their
    /// number.
    fn cut(&self) -> usize {
        let connections: Vec<UnixStream> =
            self.connections.lock().expect("no holder of the lock panics").drain(..).collect();
        connections.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count()
    }
}

fn serve(stream: &UnixStream, behaviour: MonitorBehaviour, connections: &Mutex<Vec<UnixStream>>) {
    let mut line = String::new();
    // One byte at a time: what follows the line is for the machine.
    let received = BufReader::with_capacity(1, stream).read_line(&mut line);
    received.expect("a client begins with a port");
    let duplicate = || stream.try_clone().expect("a descriptor can be duplicated");
    let mut writer = stream;
    // The client may have disconnected.
    let mut answer = |text: &[u8]| drop(writer.write_all(text));
    match behaviour {
        MonitorBehaviour::Answers(text) => answer(text),
        MonitorBehaviour::Connects { to } if line == "CONNECT 7443\n" => {
            let Ok(machine) = TcpStream::connect(to) else { return };
            connections.lock().expect("no holder of the lock panics").push(duplicate());
            answer(b"OK 1073741824\n");
            let (mut from_host, mut to_host) = (duplicate(), duplicate());
            let (mut from_machine, mut to_machine) =
                (machine.try_clone().expect("a descriptor can be duplicated"), machine);
            let inwards = thread::spawn(move || {
                let _ = std::io::copy(&mut from_host, &mut to_machine);
                let _ = to_machine.shutdown(Shutdown::Both);
            });
            let _ = std::io::copy(&mut from_machine, &mut to_host);
            let _ = to_host.shutdown(Shutdown::Both);
            inwards.join().expect("it only copies");
        }
        MonitorBehaviour::Connects { .. } => {}
    }
}

#[test]
fn a_machine_with_a_hub_is_dialled_through_its_monitor() {
    let scene = Scene::new();
    let address = free_address();
    let socket = scene.socket().display().to_string();
    let (_hub, _) = listening_hub(&scene, address, &["--socket", &socket]);
    let monitor = Monitor::start(scene.directory.path(), MonitorBehaviour::Connects { to: address });
    let attach = Attach::start(&scene.world, &["dial", &monitor.address(7443), "--grant", "dev"]);
    attach.wait_until_attached(1);
    let (mut first, mut second) = (scene.shim(), scene.shim());
    for round in 0..2 {
        let calls = [send_calls(&mut first, Round(round), 6), send_calls(&mut second, Round(round), 6)];
        assert_eq!(monitor.cut(), 1);
        let [of_first, of_second] = calls;
        expect_responses(&mut first, of_first);
        expect_responses(&mut second, of_second);
        attach.wait_until_attached(round + 2);
    }
    assert_eq!(scene.world.executions("tools").len(), 2 * 2 * 6);
    assert_eq!(scene.world.sessions().as_array().unwrap().len(), 2, "the links are the same ones");
    assert_eq!(session_ids(&scene.world).len(), 1, "one machine is one session");
}

#[test]
fn a_shim_in_a_machine_is_dialled_through_its_monitor() {
    let scene = Scene::new();
    let address = free_address();
    let pin = scene.world.cofferdam_text(&["key"]);
    let mut listening = shim_at(&format!("listen:{address}"), "tools");
    listening.args(["--pin", pin.trim()]);
    let mut shim = Harness::start(listening, "cofferdam-shim");
    let first = shim.send_initialize();
    let monitor = Monitor::start(scene.directory.path(), MonitorBehaviour::Connects { to: address });
    let other = World::new().server("tools", Server::fixture()).start();
    let _impostor = Attach::start(&other, &["dial", &monitor.address(7443), "--grant", "dev"]);
    wait_until("the shim refuses the impostor", || shim.stderr().contains("did not prove the sidecar's key"));
    let _attach = Attach::start(&scene.world, &["dial", &monitor.address(7443), "--grant", "dev"]);
    assert!(shim.answer_to(&first).get("result").is_some());
    shim.notify("notifications/initialized", json!({}));
    let calls = send_calls(&mut shim, Round(0), 6);
    expect_responses(&mut shim, calls);
    assert_eq!(other.executions("tools").len(), 0);
    assert_eq!(scene.world.executions("tools").len(), 6);
}

#[test]
fn a_machine_that_cannot_be_dialled_is_named_with_a_next_step() {
    let scene = Scene::new();
    let dial = |address: &str| Attach::start(&scene.world, &["dial", address, "--grant", "dev"]);
    let missing = format!("vsock:{}:7443", scene.directory.path().join("none").display());
    dial(&missing).wait_until_output_has("is the machine running");
    let monitor = Monitor::start(scene.directory.path(), MonitorBehaviour::Connects { to: free_address() });
    for port in [7443, 7] {
        let attach = dial(&monitor.address(port));
        attach.wait_until_output_has(&format!("start `cofferdam-shim hub --listen vsock:{port}` there"));
        assert_eq!(attach.times_attached(), 0);
    }
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"OK 99999999999999999999", b"NO\n"] {
        let monitor = Monitor::start(scene.directory.path(), MonitorBehaviour::Answers(answer));
        dial(&monitor.address(7443)).wait_until_output_has("the response is not that of a monitor's vsock");
    }
    // This port has no listener on this machine; a kernel without vsock says so in other words.
    dial("vsock:1:4294967290").wait_until_output_has("dial vsock:1:4294967290: ");
    let mut wrong = dial("vsock:7443");
    assert_eq!(wrong.wait().code(), Some(64));
    assert!(
        wrong.printed().contains("vsock:PATH:PORT") && wrong.printed().contains("`vsock.`"),
        "{}",
        wrong.printed()
    );
}
