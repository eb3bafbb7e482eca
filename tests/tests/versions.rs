//! A shim and a sidecar of different protocol versions: each is told which side to upgrade.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use cofferdam_tests::attach::{Attach, shim_at, shim_binary};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::Value;

const OLD_SHIM: &str = "the shim in the sandbox is older: upgrade it";
const OLD_SIDECAR: &str = "the sidecar on the host is older: upgrade it";

/// A sidecar that speaks another version: it sends its preface, and reads what comes.
fn sidecar_of_version(version: u16, socket: &Path) {
    let listener = UnixListener::bind(socket).expect("a temporary directory is writable");
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for mut shim in listener.incoming().flatten() {
            let _ = shim.write_all(format!("cofferdam-relay/{version}\n").as_bytes());
            let _ = shim.read(&mut [0; 1024]);
        }
    });
}

#[test]
fn a_shim_says_which_side_is_older() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    for (version, word) in [(2, OLD_SHIM), (0, OLD_SIDECAR)] {
        let socket = directory.path().join(format!("{version}.sock"));
        sidecar_of_version(version, &socket);
        let link = format!("unix:{}", socket.display());
        let mut harness = Harness::start(shim_at(&link, "tools"), "cofferdam-shim");
        let answer = harness.initialize();
        assert_eq!(refusal_of(&answer), "version_refused");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
        for arguments in [&["status"][..], &["servers"], &["tools", "tools"], &["call", "tools", "add"]] {
            let mut shim = command(shim_binary());
            shim.env_clear().args(arguments).args(["--json", "--relay", &link]);
            let output = output_of(shim, "cofferdam-shim");
            let printed: Value = serde_json::from_slice(&output.stdout).expect("--json is JSON");
            assert_eq!(output.status.code(), Some(69), "{printed}");
            assert_eq!(printed["trouble"]["code"], "version_refused", "{printed}");
            assert!(printed["trouble"]["message"].as_str().unwrap().contains(word), "{printed}");
        }
    }
}

#[test]
fn a_sidecar_says_which_side_is_older() {
    let world = World::new().server("tools", Server::fixture()).start();
    for (version, word) in [(2, OLD_SIDECAR), (0, OLD_SHIM)] {
        let mut shim = UnixStream::connect(&world.layout().relay).unwrap();
        shim.set_read_timeout(Some(PATIENCE)).unwrap();
        shim.write_all(format!("cofferdam-relay/{version}\n").as_bytes()).unwrap();
        let mut received = Vec::new();
        shim.read_to_end(&mut received).unwrap();
        let received = String::from_utf8_lossy(&received).into_owned();
        assert!(received.contains("version_refused") && received.contains(word), "{received}");
        world.wait_until("the log has it", || world.log().contains(word));
    }
}

/// The beginning of a TLS handshake of a hub with another version.
const OTHER_HUB: &str = "
import ssl, sys
context = ssl.create_default_context()
context.set_alpn_protocols([sys.argv[1]])
outgoing = ssl.MemoryBIO()
tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname='sidecar.invalid')
try:
    tls.do_handshake()
except ssl.SSLWantReadError:
    pass
sys.stdout.buffer.write(outgoing.read())
sys.stdout.buffer.flush()
sys.stdin.buffer.read()
";

#[test]
fn attach_says_which_side_is_older() {
    let world = World::new().server("tools", Server::fixture()).start();
    for (protocol, word) in [("cofferdam-hub/2", OLD_SIDECAR), ("cofferdam-relay/0", OLD_SHIM)] {
        let name = protocol.replace('/', "-");
        let attach = Attach::start(
            &world,
            &["exec", "--grant", "dev", "--name", &name, "--", "python3", "-c", OTHER_HUB, protocol],
        );
        attach.wait_until_output_has(word);
        assert_eq!(attach.times_attached(), 0);
    }
    let attach = Attach::start(
        &world,
        &["exec", "--grant", "dev", "--name", "web", "--", "python3", "-c", OTHER_HUB, "h2"],
    );
    attach.wait_until_output_has("but not the relay protocol in it");
}
