//! `cofferdam sessions --watch` in a pipe, and how many clients may watch.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::{Running, into_file, read};
use nix::sys::signal::Signal;

use super::*;

/// `sessions --watch` in a pipe.
struct Watch {
    process: Running,
    output: PathBuf,
    errors: PathBuf,
    _directory: tempfile::TempDir,
}

impl Watch {
    #[track_caller]
    fn start(world: &World, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (output, errors) = (directory.path().join("stdout"), directory.path().join("stderr"));
        let mut command = world.cofferdam_command();
        command.arg("-c").arg(&world.layout().config).args(["sessions", "--watch"]).args(arguments);
        command.stdin(Stdio::null()).stdout(into_file(&output)).stderr(into_file(&errors));
        Self { process: Running::spawn(command, "sessions --watch"), output, errors, _directory: directory }
    }

    fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&read(&self.output)).lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        wait_until(&format!("`{text}` is printed"), || self.lines().iter().any(|line| line.contains(text)));
    }
}

#[test]
fn sessions_watch_prints_a_line_for_each_change_and_ends_with_the_sidecar() {
    let mut world = two_grants().start();
    let mut text = Watch::start(&world, &[]);
    let mut json = Watch::start(&world, &["--json"]);
    text.wait_for("watching");
    json.wait_for("ready");
    enrol(&AdminClient::socket(&world), "dev", "box1");
    let _shim = world.connected("tools");
    for watch in [&text, &json] {
        watch.wait_for("enrolment-created");
        watch.wait_for("link-opened");
    }
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    world.cofferdam_text(&["kill", &session]);
    for watch in [&text, &json] {
        watch.wait_for("session-ended");
    }
    world.stop_sidecar();
    for watch in [&mut text, &mut json] {
        let errors = String::from_utf8_lossy(&read(&watch.errors)).into_owned();
        assert_eq!(watch.process.wait(PATIENCE).code(), Some(0), "{errors}");
        let errors = String::from_utf8_lossy(&read(&watch.errors)).into_owned();
        assert_eq!(errors, "the sidecar has stopped\n");
    }
    let changes: Vec<Value> =
        json.lines().iter().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    assert_eq!(changes[0], json!({"event": "ready"}));
    assert_eq!((&changes[1]["event"], &changes[1]["name"]), (&json!("enrolment-created"), &json!("box1")));
    assert_eq!(changes.last().unwrap()["session"], json!(session));
    let ended = text.lines().pop().unwrap();
    assert!(ended.contains("session-ended") && ended.ends_with(": killed"), "{ended}");
}

#[test]
fn sessions_watch_ends_when_interrupted_or_when_its_sidecar_is_killed() {
    let mut world = two_grants().start();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut watch = Watch::start(&world, &[]);
        watch.wait_for("watching");
        watch.process.signal(signal);
        assert_eq!(watch.process.wait(PATIENCE).code(), Some(0), "{signal}");
    }
    let mut watch = Watch::start(&world, &[]);
    watch.wait_for("watching");
    world.kill9_sidecar();
    assert_eq!(watch.process.wait(PATIENCE).code(), Some(69));
    let mut without_sidecar = Watch::start(&world, &[]);
    assert_eq!(without_sidecar.process.wait(PATIENCE).code(), Some(69));
}

/// A sidecar serves 64 watchers; when one of them disconnects, another can connect.
#[test]
fn the_number_of_watchers_is_limited() {
    let world = two_grants().start();
    let api = AdminClient::socket(&world);
    let mut watchers: Vec<_> = (0..64).map(|_| watch(&api)).collect();
    let mut one_more = api.open(&api.request("GET", "/v1/events", "", ""));
    let answer = read_until(&mut *one_more, "too_many_watchers");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let refused = world.cofferdam(&["sessions", "--watch"]);
    assert_eq!(refused.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("there are 64 watching clients already"));
    enrol(&api, "dev", "box1");
    for watcher in &mut watchers {
        read_until(&mut **watcher, "event: enrolment-created");
    }
    watchers.pop();
    // The slot is free when the sidecar has noticed the disconnect.
    wait_until("another client may watch", || {
        let mut next = api.open(&api.request("GET", "/v1/events", "", ""));
        let mut first = [0; 12];
        next.read_exact(&mut first).is_ok() && first.ends_with(b"200")
    });
}
