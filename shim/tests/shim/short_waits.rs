//! The loop in this process, with waits short enough to be waited for.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use cofferdam_shim::options::{Options, Sources};
use cofferdam_shim::timing::Timing;
use relay_proto::control::Resumed;

use crate::support::{Folder, Lines, request, result};

/// A shim on a thread, with sockets for stdio as Node's harnesses give them.
struct Shim {
    stdin: UnixStream,
    lines: Lines,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Shim {
    fn start(folder: &Folder) -> Self {
        let timing = Timing {
            handshake_wait: Duration::from_millis(200),
            call_wait: Duration::from_millis(400),
            first_retry: Duration::from_millis(5),
            acknowledge: Duration::from_millis(20),
            ..Timing::default()
        };
        let options = Options {
            relay: folder.link().parse().ok(),
            server: None,
            network: Default::default(),
            state: "/nonexistent".into(),
            sources: Sources { variable: None, file: None, default_file: "/nonexistent".into() },
        };
        let (stdin, input) = UnixStream::pair().unwrap();
        let (stdout, output) = UnixStream::pair().unwrap();
        let (input, output) = (OwnedFd::from(input), OwnedFd::from(output));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
            runtime.block_on(cofferdam_shim::relay(options, timing, input, output, std::future::pending()))
        });
        Self { stdin, lines: Lines::of(stdout), thread }
    }

    fn write(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn end(self) {
        drop(self.stdin);
        self.thread.join().unwrap().unwrap();
        self.lines.expect_end();
    }
}

#[test]
fn without_a_sidecar_every_request_has_an_honest_answer_and_the_next_sidecar_is_found() {
    let folder = Folder::new();
    let mut shim = Shim::start(&folder);
    shim.write(&request(2, "tools/call"));
    shim.write(&request(1, "initialize"));
    for (id, line) in [(1, shim.lines.next()), (2, shim.lines.next())] {
        assert!(line.contains(&format!(r#""id":{id},"#)), "the handshake is answered first: {line}");
        assert!(line.contains("relay_unavailable: the request did not run: connect to unix:"), "{line}");
    }
    let sidecar = folder.listen();
    let mut peer = sidecar.welcome();
    shim.write(&request(3, "ping"));
    assert_eq!(peer.text(), request(3, "ping"), "nothing that was said not to have run comes now");
    peer.send(result(3).as_bytes());
    assert_eq!(shim.lines.next(), result(3));
    shim.end();
}

#[test]
fn a_sidecar_that_goes_away_leaves_the_outcome_unknown() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let mut shim = Shim::start(&folder);
    let mut peer = sidecar.welcome();
    shim.write(&request(1, "tools/call"));
    assert_eq!(peer.text(), request(1, "tools/call"));
    std::fs::remove_file(folder.socket()).unwrap();
    drop((peer, sidecar));
    let line = shim.lines.next();
    assert!(line.contains(r#""id":1,"#) && line.contains("outcome_unknown: "), "{line}");
    shim.end();
}

#[test]
fn an_answer_is_acknowledged_even_when_nothing_else_goes_out() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let mut shim = Shim::start(&folder);
    let (mut peer, _) = sidecar.accept();
    peer.welcome(Resumed::Fresh);
    shim.write(&request(1, "tools/call"));
    assert_eq!(peer.text(), request(1, "tools/call"));
    peer.send(result(1).as_bytes());
    assert_eq!(shim.lines.next(), result(1));
    peer.until_acknowledged();
    shim.end();
}
