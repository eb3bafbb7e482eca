//! A hub or shim that listens on a port for the sidecar to dial, and a hub that listens on loopback for the sandbox's
//! shims.

use std::net::SocketAddr;

use cofferdam_tests::port::free_address;

use super::*;

/// Starts a hub that listens on `endpoint` and accepts this test's sidecar; returns it with the path of its stderr.
pub(crate) fn listening_hub(scene: &Scene, endpoint: SocketAddr, more: &[&str]) -> (Running, PathBuf) {
    let pin = scene.world.cofferdam_text(&["key"]);
    let stderr = scene.directory.path().join("hub");
    let mut hub = command(shim_binary());
    hub.env_clear().env("COFFERDAM_PIN", pin.trim()).arg("hub").args(["--listen", &endpoint.to_string()]);
    hub.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(into_file(&stderr));
    let hub = Running::spawn(hub, "cofferdam-shim hub");
    wait_until("the hub listens", || TcpStream::connect(endpoint).is_ok());
    (hub, stderr)
}

#[test]
fn a_client_without_the_key_gets_no_message_from_a_listening_hub() {
    let scene = Scene::new();
    let endpoint = free_address();
    let socket = scene.socket().display().to_string();
    let (_hub, stderr) = listening_hub(&scene, endpoint, &["--socket", &socket]);
    let address = endpoint.to_string();
    for (opening, response) in [
        (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], "HTTP/1.1 4"),
        (b"\x16\x03\x01\x00\x05hello", ""),
        (b"cofferdam-relay/1\n", ""),
    ] {
        let mut client = TcpStream::connect(&address).unwrap();
        client.write_all(opening).unwrap();
        // The hub may have closed the connection already, which is a refusal too.
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received);
        let received = String::from_utf8_lossy(&received).into_owned();
        assert!(received.starts_with(response), "{received:?}");
        assert_eq!(received.is_empty(), response.is_empty(), "{received:?}");
    }
    let other = World::new().server("tools", Server::fixture()).start();
    let impostor = Attach::start(&other, &["dial", &address, "--grant", "dev"]);
    wait_until("the hub refuses the impostor", || {
        String::from_utf8_lossy(&read(&stderr)).contains("did not prove the sidecar's key")
    });
    assert_eq!(impostor.times_attached(), 0);
    assert!(!scene.socket().exists(), "the hub opened its socket before the sidecar had proved its key");
}

#[test]
fn silent_clients_of_a_listening_hub_delay_no_other_and_calls_survive_another_attach() {
    let scene = Scene::new();
    let endpoint = free_address();
    let socket = scene.socket().display().to_string();
    let (_hub, _) = listening_hub(&scene, endpoint, &["--socket", &socket]);
    let address = endpoint.to_string();
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let attach = Attach::start(&scene.world, &["dial", &address, "--grant", "dev"]);
    attach.wait_until_attached(1);
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 1})), "2");
    let calls = send_calls(&mut shim, Round(0), 6);
    attach.stop();
    let _again = Attach::start(&scene.world, &["dial", &address, "--grant", "dev"]);
    expect_responses(&mut shim, calls);
    assert_eq!(scene.world.executions("tools").len(), 7);
}

#[test]
fn a_shim_that_listens_is_dialled_without_a_hub() {
    let scene = Scene::new();
    let address = free_address().to_string();
    let pin = scene.world.cofferdam_text(&["key"]);
    let mut listening = shim_at(&format!("listen:{address}"), "tools");
    listening.args(["--pin", pin.trim()]);
    let mut shim = Harness::start(listening, "cofferdam-shim");
    let first = shim.send_initialize();
    let attach = Attach::start(&scene.world, &["dial", &address, "--grant", "dev"]);
    assert!(shim.answer_to(&first).get("result").is_some());
    shim.notify("notifications/initialized", json!({}));
    attach.wait_until_attached(1);
    let calls = send_calls(&mut shim, Round(0), 6);
    attach.stop();
    let meanwhile = send_calls(&mut shim, Round(1), 6);
    let _again = Attach::start(&scene.world, &["dial", &address, "--grant", "dev"]);
    expect_responses(&mut shim, calls);
    expect_responses(&mut shim, meanwhile);
    assert_eq!(scene.world.executions("tools").len(), 12);
    assert_eq!(scene.world.sessions().as_array().unwrap().len(), 1, "the link is the same one");
}

#[test]
fn on_loopback_a_shim_must_send_the_hubs_key() {
    let scene = Scene::new();
    let file = scene.directory.path().join("hub-file");
    let shim = shim_binary().display().to_string();
    let words = ["exec", "--grant", "dev", "--", &shim, "hub", "--pin", "{pin}", "--loopback"];
    let arguments: Vec<String> =
        words.into_iter().map(str::to_owned).chain([file.display().to_string()]).collect();
    let attach = Attach::start(&scene.world, &arguments);
    attach.wait_until_attached(1);
    wait_until("the file is there", || file.exists());
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let relay = format!("hub:{}", file.display());
    let mut shim = connected(&relay, "tools");
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 1})), "2");

    let text = std::fs::read_to_string(&file).unwrap();
    let (endpoint, keys) = text.trim().split_once(' ').unwrap();
    let (key, second_key) = keys.split_once(' ').unwrap();
    let wrong = key.chars().rev().collect::<String>();
    let hello = b"cofferdam-relay/1\n";
    for sent in ["", &wrong, &key[1..], second_key, "\n"] {
        let mut client = TcpStream::connect(endpoint).unwrap();
        let _ = client.write_all(sent.as_bytes()).and_then(|()| client.write_all(b"\n"));
        let _ = client.write_all(&hello.repeat(10));
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received);
        assert!(received.is_empty(), "{:?}", String::from_utf8_lossy(&received));
    }
    // After the death of its command, `attach` starts another hub, which has another port and another key.
    let calls = send_calls(&mut shim, Round(0), 6);
    send(attach.command_pid(), Signal::SIGKILL);
    expect_responses(&mut shim, calls);
    assert_ne!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(scene.world.executions("tools").len(), 7);
}

/// A listener on the port of a hub that has exited receives the old key, but no message of a harness.
#[test]
fn on_loopback_a_hub_must_answer_with_its_second_key() {
    let scene = Scene::new();
    let file = scene.directory.path().join("hub-file");
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let (key, second_key) = ("5a".repeat(32), "c3".repeat(32));
    let text = format!("127.0.0.1:{} {key} {second_key}\n", impostor.local_addr().unwrap().port());
    std::fs::write(&file, text).unwrap();
    let mut shim = Harness::start(shim_at(&format!("hub:{}", file.display()), "tools"), "cofferdam-shim");
    shim.send_initialize();
    for response in ["", &format!("{key}\n"), &format!("{}\n", "0".repeat(64))] {
        let (mut stream, _) = impostor.accept().unwrap();
        let mut received = vec![0; key.len() + 1];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, format!("{key}\n").as_bytes());
        stream.write_all(response.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        received.clear();
        let _ = stream.read_to_end(&mut received);
        assert!(received.is_empty(), "{:?}", String::from_utf8_lossy(&received));
    }
    wait_until("the shim says what is wrong", || shim.stderr().contains("start the hub again"));
}
