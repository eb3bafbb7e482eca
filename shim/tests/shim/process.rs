//! The real binary between a harness and a sidecar, both driven by the test.

use std::os::fd::AsRawFd;

use relay_proto::control::{Resumed, Retry};
use relay_proto::frame::{MaybeRan, Origin};
use relay_proto::limits::MAX_MESSAGE;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Folder, Lines, Peer, Shim, command, request, result};

#[test]
fn lines_are_relayed_unchanged_both_ways() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address(), "--server", "echo"]);
    let lines = Lines::of(stdout);
    let (mut peer, hello) = sidecar.accept();
    assert_eq!(hello.server.as_ref().map(|name| name.as_str()), Some("echo"));
    assert_eq!(hello.resume, None);
    peer.welcome(Resumed::Fresh);

    let odd = r#"{ "jsonrpc":"2.0", "id":"\u0031", "method":"x","params":{"a":1.0e2,"ü":"\ud83d"} }"#;
    shim.write(&format!("{odd}\r\n\r\n\n{}\n", request(2, "ping")));
    assert_eq!(peer.next_text(), odd);
    assert_eq!(peer.next_text(), request(2, "ping"));
    let response = r#"{"jsonrpc" : "2.0","id":"1","result":{"text":"ü\u2028"}}"#;
    peer.send(response.as_bytes());
    peer.send(result(2).as_bytes());
    assert_eq!(lines.next(), response);
    assert_eq!(lines.next(), result(2));
}

#[test]
fn a_malformed_line_is_answered_and_the_next_one_passes() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let mut peer = sidecar.welcome();
    shim.write("garbage\n[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}]\n");
    for _ in 0..2 {
        let line = lines.next();
        assert!(line.starts_with(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600"#), "{line}");
        assert!(line.contains("message_malformed: "), "{line}");
    }
    let long = "y".repeat(MAX_MESSAGE);
    shim.write(&format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{{\"id\":1,\"x\":\"{long}\"}},\"id\":\"last\"}}\n{}\n",
        request(2, "ping")
    ));
    let line = lines.next();
    assert!(line.starts_with(r#"{"jsonrpc":"2.0","id":"last","error":{"code":-32600"#), "{line}");
    assert!(line.contains("message_too_large: "), "{line}");
    assert_eq!(peer.next_text(), request(2, "ping"));
}

#[test]
fn the_largest_message_passes_both_ways() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let mut peer = sidecar.welcome();
    let largest_message = |fields: &str| {
        let rest = format!(r#"{{"jsonrpc":"2.0","id":1,{fields}:{{"x":""}}}}"#).len();
        format!(r#"{{"jsonrpc":"2.0","id":1,{fields}:{{"x":"{}"}}}}"#, "y".repeat(MAX_MESSAGE - rest))
    };
    let (call, response) = (largest_message(r#""method":"m","params""#), largest_message(r#""result""#));
    let writer = std::thread::spawn(move || {
        shim.write(&format!("{call}\n"));
        (shim, call)
    });
    assert!(peer.next_text().len() == MAX_MESSAGE);
    let (mut shim, _) = writer.join().unwrap();
    peer.send(response.as_bytes());
    shim.write(&format!("{}\n", request(2, "ping")));
    assert_eq!(peer.next_text(), request(2, "ping"));
    peer.wait_until_acknowledged();
    assert!(lines.next() == response);
}

#[test]
fn a_lost_connection_is_resumed_without_loss() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let mut peer = sidecar.welcome();
    shim.write(&format!("{}\n", request(1, "a")));
    assert_eq!(peer.next_text(), request(1, "a"));
    for round in 2..6 {
        shim.write(&format!("{}\n", request(round, "a")));
        let (next, hello) = {
            // The old connection breaks; the line was written to it or waits in the shim, which makes no difference.
            let (dead, _) = std::os::unix::net::UnixStream::pair().unwrap();
            peer.cut(dead);
            sidecar.accept()
        };
        let resume = hello.resume.expect("the shim asks to resume its link");
        assert_eq!((resume.link.as_str(), resume.token.0.len()), ("l-1", 64));
        peer.move_to(next);
        peer.outbox.resume(resume.received, relay_proto::limits::DEFAULT_WINDOW).unwrap();
        peer.welcome(Resumed::Resumed);
        assert_eq!(peer.next_text(), request(round, "a"));
        peer.send(result(round).as_bytes());
        assert_eq!(lines.next(), result(round));
    }
    peer.send(result(1).as_bytes());
    assert_eq!(lines.next(), result(1));
}

#[test]
fn a_restarted_sidecar_gets_the_handshake_and_marked_requests() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let mut peer = sidecar.welcome();
    shim.write(&format!("{}\n", request(1, "initialize")));
    assert_eq!(peer.next_text(), request(1, "initialize"));
    peer.send(result(1).as_bytes());
    assert_eq!(lines.next(), result(1));
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    shim.write(&format!("{initialized}\n{}\n", request(2, "tools/call")));
    assert_eq!(peer.next_text(), initialized);
    assert_eq!(peer.next_text(), request(2, "tools/call"));
    drop((peer, sidecar));

    let sidecar = folder.listen();
    let (mut peer, hello) = sidecar.accept();
    assert!(hello.resume.is_some());
    peer.welcome(Resumed::Fresh);
    assert!(peer.next_text().contains(r#""id":"cofferdam-shim:replay:1","method":"initialize""#));
    peer.send(br#"{"jsonrpc":"2.0","id":"cofferdam-shim:replay:1","result":{}}"#);
    assert_eq!(peer.next_text(), initialized);
    let again = peer.next_message().unwrap();
    let earlier = MaybeRan::Yes(Origin { link: "l-1".into(), seq: 3 });
    assert_eq!((again.bytes, again.maybe_ran), (request(2, "tools/call").into_bytes(), earlier));
    peer.send(result(2).as_bytes());
    assert_eq!(lines.next(), result(2));
}

#[test]
fn a_final_refusal_is_answered_and_does_not_end_the_shim() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let (mut peer, _) = sidecar.accept();
    peer.refuse("server_not_granted", "`prod` is not in this grant", Retry::Never);
    for id in 1..4 {
        shim.write(&format!("{}\n", request(id, "tools/list")));
        let line = lines.next();
        assert!(line.contains("server_not_granted: `prod` is not in this grant"), "{line}");
        assert!(line.contains(&format!(r#""id":{id},"#)), "{line}");
    }
    assert!(shim.is_running());
}

#[test]
fn a_final_goodbye_ends_the_link_and_not_the_shim() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let mut peer = sidecar.welcome();
    shim.write(&format!("{}\n", request(1, "a")));
    assert_eq!(peer.next_text(), request(1, "a"));
    peer.goodbye("session_ended", "an operator ended the session", Retry::Never);
    let line = lines.next();
    assert!(line.contains(r#""id":1,"#) && line.contains("outcome_unknown: "), "{line}");
    shim.write(&format!("{}\n", request(2, "a")));
    let line = lines.next();
    assert!(line.contains("session_ended: an operator ended the session"), "{line}");
    assert!(shim.is_running());
}

#[test]
fn at_the_end_of_input_the_shim_sends_goodbye_and_exits_with_0() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let lines = Lines::of(stdout);
    let mut peer = sidecar.welcome();
    shim.write(&format!("{}\n", request(0, "a")));
    assert_eq!(peer.next_text(), request(0, "a"));
    shim.write(&request(1, "no end of line"));
    shim.stdin = None;
    assert_eq!(peer.next_text(), request(1, "no end of line"));
    assert_eq!(peer.wait_for_goodbye().code, "done");
    assert_eq!(shim.wait().code(), Some(0));
    lines.expect_end();
}

#[test]
fn on_a_signal_the_shim_sends_goodbye_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let sidecar = folder.listen();
        let (mut shim, _stdout) = Shim::start(&["--relay", &folder.relay_address()]);
        let mut peer = sidecar.welcome();
        kill_process(Pid::from_child(&shim.child), signal).unwrap();
        assert_eq!(peer.wait_for_goodbye().code, "done");
        assert_eq!(shim.wait().code(), Some(0));
    }
}

#[test]
fn on_a_closed_stdout_the_shim_sends_goodbye_and_exits_with_0() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let mut peer = sidecar.welcome();
    shim.write(&format!("{}\n", request(1, "a")));
    assert_eq!(peer.next_text(), request(1, "a"));
    drop(stdout);
    peer.send(result(1).as_bytes());
    assert_eq!(peer.wait_for_goodbye().code, "done");
    assert_eq!(shim.wait().code(), Some(0));
}

#[test]
fn a_harness_that_does_not_read_does_not_block_the_other_direction() {
    let folder = Folder::new();
    let sidecar = folder.listen();
    let (mut shim, stdout) = Shim::start(&["--relay", &folder.relay_address()]);
    let mut peer = sidecar.welcome();
    let many = 150;
    let response = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":"{}"}}}}"#, "y".repeat(10_000));
    for id in 0..many {
        shim.write(&format!("{}\n", request(id, "a")));
        assert_eq!(peer.next_text(), request(id, "a"));
        peer.send(response(id).as_bytes());
    }
    // By now the pipe is full. Requests still pass, and once the harness reads, it gets every response.
    shim.write(&format!("{}\n", request(many, "a")));
    assert_eq!(peer.next_text(), request(many, "a"));
    let lines = Lines::of(stdout);
    for id in 0..many {
        assert_eq!(lines.next(), response(id));
    }
}

#[test]
fn an_inherited_socket_cannot_be_reopened() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let (mut shim, stdout) = Shim::start(&["--relay", &format!("fd:{}", theirs.as_raw_fd())]);
    drop(theirs);
    let lines = Lines::of(stdout);
    let (mut peer, _) = Peer::new(ours);
    peer.welcome(Resumed::Fresh);
    shim.write(&format!("{}\n", request(1, "a")));
    assert_eq!(peer.next_text(), request(1, "a"));
    drop(peer);
    let line = lines.next();
    assert!(line.contains(r#""id":1,"#) && line.contains("outcome_unknown: "), "{line}");
    shim.write(&format!("{}\n", request(2, "a")));
    let line = lines.next();
    assert!(line.contains("relay_unavailable: ") && line.contains("cannot be reopened"), "{line}");
    assert!(shim.is_running());
}

#[test]
fn usage_errors_name_the_problem_and_the_next_step() {
    let output = command().arg("--bogus").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty(), "stdout is data only");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("unknown option or command `--bogus`") && stderr.contains("next: "), "{stderr}");
    let version = command().arg("--version").output().unwrap();
    assert!(version.status.success() && version.stdout.starts_with(b"cofferdam-shim "));
}
