//! The relay loop in the test's own process, with short timeouts.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use cofferdam_shim::default_socket::SocketSearch;
use cofferdam_shim::options::{EnrolmentSources, Options};
use cofferdam_shim::timing::Timing;
use relay_proto::control::Resumed;
use rustix::io::ioctl_fionread;

use crate::support::{Folder, Lines, PATIENCE, request, result};

/// A shim on a thread, with sockets as stdin and stdout, which harnesses on Node.js use.
struct Shim {
    stdin: UnixStream,
    lines: Lines,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Shim {
    fn start(folder: &Folder) -> Self {
        let (stdout, output) = UnixStream::pair().unwrap();
        let (stdin, thread) = start_shim(folder, output, std::future::pending());
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

/// Starts a shim on a thread; returns the socket to write its input to, and the thread.
fn start_shim(
    folder: &Folder,
    output: UnixStream,
    stop: impl Future<Output = ()> + Send + 'static,
) -> (UnixStream, JoinHandle<std::io::Result<()>>) {
    let timing = Timing {
        handshake_wait: Duration::from_millis(200),
        call_wait: Duration::from_millis(400),
        first_retry: Duration::from_millis(5),
        acknowledge_delay: Duration::from_millis(20),
        goodbye_timeout: PATIENCE,
        ..Timing::default()
    };
    let options = Options {
        relay: folder.relay_address().parse().ok(),
        default_sockets: SocketSearch::new(None),
        server: None,
        network: Default::default(),
        state: "/nonexistent".into(),
        enrolment_sources: EnrolmentSources {
            variable: None,
            file: None,
            default_file: "/nonexistent".into(),
        },
    };
    let (stdin, input) = UnixStream::pair().unwrap();
    let (input, output) = (OwnedFd::from(input), OwnedFd::from(output));
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(cofferdam_shim::relay(options, timing, input, output, stop))
    });
    (stdin, thread)
}

#[test]
fn without_a_sidecar_requests_are_answered_and_the_next_sidecar_is_found() {
    let folder = Folder::new();
    let mut shim = Shim::start(&folder);
    shim.write(&request(2, "tools/call"));
    shim.write(&request(1, "initialize"));
    // Which one is answered first depends on the clock, and is tested with a paused one.
    let answers = [shim.lines.next(), shim.lines.next()];
    for id in [1, 2] {
        let line =
            answers.iter().find(|line| line.contains(&format!(r#""id":{id},"#))).expect("each is answered");
        assert!(line.contains("relay_unavailable: the request did not run: connect to unix:"), "{line}");
    }
    let sidecar = folder.listen();
    let mut peer = sidecar.welcome();
    shim.write(&request(3, "ping"));
    assert_eq!(
        peer.next_text(),
        request(3, "ping"),
        "requests that were answered with \"did not run\" are not sent"
    );
    peer.send(result(3).as_bytes());
    assert_eq!(shim.lines.next(), result(3));
    shim.end();
}

#[test]
fn a_sidecar_that_disappears_leaves_the_outcome_unknown() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let mut shim = Shim::start(&folder);
    let mut peer = sidecar.welcome();
    shim.write(&request(1, "tools/call"));
    assert_eq!(peer.next_text(), request(1, "tools/call"));
    std::fs::remove_file(folder.socket()).unwrap();
    drop((peer, sidecar));
    let line = shim.lines.next();
    assert!(line.contains(r#""id":1,"#) && line.contains("outcome_unknown: "), "{line}");
    shim.end();
}

#[test]
fn a_response_is_acknowledged_even_when_nothing_else_is_sent() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let mut shim = Shim::start(&folder);
    let (mut peer, _) = sidecar.accept();
    peer.welcome(Resumed::Fresh);
    shim.write(&request(1, "tools/call"));
    assert_eq!(peer.next_text(), request(1, "tools/call"));
    peer.send(result(1).as_bytes());
    assert_eq!(shim.lines.next(), result(1));
    peer.wait_until_acknowledged();
    shim.end();
}

/// The stop may come just when the harness makes room.
#[test]
fn a_stop_does_not_truncate_a_line() {
    const LINES: usize = 8_000;
    let folder = Folder::new();
    let (stdout, output) = UnixStream::pair().unwrap();
    let (harness_end, mut waiting) = (stdout.try_clone().unwrap(), 0);
    let (sender, receiver) = mpsc::channel();
    // Resolves once nothing fits any more, and makes room just then.
    let stop = poll_fn(move |_| {
        let before = std::mem::replace(&mut waiting, ioctl_fionread(&harness_end).unwrap());
        if waiting < 16 * 1024 || waiting != before {
            return Poll::Pending;
        }
        let mut bytes = vec![0; waiting as usize];
        (&harness_end).read_exact(&mut bytes).unwrap();
        sender.send(bytes).unwrap();
        Poll::Ready(())
    });
    let (mut stdin, thread) = start_shim(&folder, output, stop);
    // No line is a valid message, so each is answered at once; the responses together do not fit into the socket's buffer.
    let lines: String = (0..LINES).map(|id| format!("{{\"id\":{id}}}\n")).collect();
    let writing = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let first = receiver.recv_timeout(PATIENCE).expect("the shim is stopped");
    let mut rest = Vec::new();
    (&stdout).read_to_end(&mut rest).unwrap();
    thread.join().unwrap().unwrap();
    drop(writing.join().unwrap());
    let text = String::from_utf8([first, rest].concat()).unwrap();
    for (id, line) in text.lines().enumerate() {
        assert!(line.starts_with('{') && line.ends_with('}'), "line {id} is torn: {line}");
        assert!(line.contains(&format!(r#""id":{id},"#)), "line {id} is out of order: {line}");
    }
    assert!(
        text.ends_with('\n') && text.lines().count() > 1_000,
        "there were {} lines",
        text.lines().count()
    );
}
