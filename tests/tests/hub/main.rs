//! One pipe into a sandbox, with a hub inside and `cofferdam attach` outside; and calls while hub, attach or sidecar is
//! killed.

mod meeting;
mod outlived;
mod own_socket;
mod ports;
mod vsock;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_tests::attach::{Attach, connected, exec_hub, shim_at, shim_binary};
use cofferdam_tests::deadline::{Deadline, GONE_WITHIN, PATIENCE, holds_before, wait_until};
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::process::{Running, command, into_file, is_alive, output_of, read, send};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A world with one server, and a directory for a hub's socket.
struct Scene {
    world: World,
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::with(World::new().server("tools", Server::fixture()).start())
    }

    fn with(world: World) -> Self {
        Self { world, directory: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("box/relay.sock")
    }

    fn relay(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    fn attach(&self) -> Attach {
        Attach::exec(&self.world, &self.socket())
    }

    fn shim(&self) -> Harness {
        connected(&self.relay(), "tools")
    }
}

/// Numbers the times at which a test sends calls, so that the texts of all its calls differ.
#[derive(Clone, Copy)]
struct Round(usize);

/// Sends `count` slow and quick calls without waiting for them.
fn send_calls(harness: &mut Harness, Round(round): Round, count: usize) -> Vec<(Value, String)> {
    (0..count)
        .map(|number| match number % 3 {
            0 => (
                harness.send_call("slow", json!({"ms": 300, "round": round, "number": number})),
                "late".into(),
            ),
            _ => {
                let text = format!("{round}/{number} {}", "x".repeat(number * 3000));
                (harness.send_call("echo", json!({"text": text})), text)
            }
        })
        .collect()
}

fn expect_responses(harness: &mut Harness, calls: Vec<(Value, String)>) {
    for (id, text) in calls {
        assert_eq!(text_of(&harness.answer_to(&id)), text);
    }
}

fn session_ids(world: &World) -> Vec<String> {
    let sessions = world.sessions();
    let mut names: Vec<String> = sessions
        .as_array()
        .expect("a list")
        .iter()
        .map(|link| link["session"].as_str().expect("a name").to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn two_shims_share_one_pipe_and_one_session() {
    let scene = Scene::new();
    let attach = scene.attach();
    let (mut first, mut second) = (scene.shim(), scene.shim());
    assert_eq!(first.call_text("add", json!({"a": 2, "b": 3})), "5");
    assert_eq!(second.call_text("big", json!({"bytes": 3_000_000})).len(), 3_000_000);
    assert_eq!(scene.world.sessions().as_array().unwrap().len(), 2);
    assert_eq!(session_ids(&scene.world).len(), 1, "one sandbox is one session");
    let mode = std::fs::metadata(scene.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let hub = attach.command_pid();
    attach.stop();
    assert!(!is_alive(hub), "the command outlived its `attach`");
    assert!(!scene.socket().exists());
}

#[test]
fn a_killed_hub_loses_nothing_and_repeats_nothing() {
    let scene = Scene::new();
    let attach = scene.attach();
    let (mut first, mut second) = (scene.shim(), scene.shim());
    for round in 0..3 {
        let calls = [send_calls(&mut first, Round(round), 12), send_calls(&mut second, Round(round), 12)];
        send(attach.command_pid(), Signal::SIGKILL);
        let [of_first, of_second] = calls;
        expect_responses(&mut first, of_first);
        expect_responses(&mut second, of_second);
        attach.wait_until_attached(round + 2);
    }
    assert_eq!(scene.world.times_executed("tools", "echo"), 2 * 3 * 8);
    assert_eq!(scene.world.times_executed("tools", "slow"), 2 * 3 * 4);
    assert_eq!(scene.world.sessions().as_array().unwrap().len(), 2, "the links are the same ones");
}

#[test]
fn a_killed_attach_ends_its_hub_and_the_next_attach_resumes_the_links() {
    let scene = Scene::new();
    let mut attach = scene.attach();
    let mut shim = scene.shim();
    let session = session_ids(&scene.world);
    let before = send_calls(&mut shim, Round(0), 6);
    let hub = attach.command_pid();
    attach.kill9();
    wait_until("the hub ends with its pipe", || !is_alive(hub));
    let meanwhile = send_calls(&mut shim, Round(1), 6);
    let _again = scene.attach();
    expect_responses(&mut shim, before);
    expect_responses(&mut shim, meanwhile);
    assert_eq!(scene.world.executions("tools").len(), 12);
    assert_eq!(session_ids(&scene.world), session, "it is the same sandbox");
}

#[test]
fn messages_sent_while_detached_are_delivered_afterwards() {
    let scene = Scene::new();
    let attach = scene.attach();
    let mut shim = scene.shim();
    let slow = shim.send_call("slow", json!({"ms": 500}));
    let asked = shim.send_call("ask_client", json!({"method": "roots/list"}));
    wait_until("both run", || scene.world.executions("tools").len() == 2);
    attach.stop();
    let calls = send_calls(&mut shim, Round(0), 6);
    assert_eq!(
        shim.answer_within(&slow, Duration::from_millis(1500)),
        None,
        "a response arrived without a pipe"
    );
    let _again = scene.attach();
    assert_eq!(text_of(&shim.answer_to(&slow)), "late");
    let request = shim.message_with_method("roots/list");
    shim.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": {"roots": []}}));
    assert!(shim.answer_to(&asked).get("result").is_some());
    expect_responses(&mut shim, calls);
    assert_eq!(scene.world.executions("tools").len(), 8);
}

#[test]
fn shims_reconnect_to_a_killed_sidecar_and_no_call_runs_twice() {
    let mut scene = Scene::new();
    let attach = scene.attach();
    let mut shim = scene.shim();
    shim.call_text("echo", json!({"text": "before"}));
    let calls = send_calls(&mut shim, Round(0), 9);
    wait_until("some of them run", || scene.world.executions("tools").len() > 3);
    scene.world.kill9_sidecar();
    scene.world.start_sidecar();
    let mut unknown = 0;
    for (id, text) in calls {
        let answer = shim.answer_to(&id);
        match answer.get("result") {
            Some(_) => assert_eq!(text_of(&answer), text),
            None => {
                assert_eq!(refusal_of(&answer), "outcome_unknown");
                unknown += 1;
            }
        }
    }
    assert!(unknown > 0, "no outcome is unknown although calls were in flight");
    attach.wait_until_attached(2);
    assert_eq!(shim.call_text("echo", json!({"text": "after"})), "after");
    let executions = scene.world.executions("tools");
    for (place, execution) in executions.iter().enumerate() {
        assert!(!executions[..place].contains(execution), "{execution:?} ran twice");
    }
}

#[test]
fn a_stopped_hub_is_detected_and_replaced() {
    let world = World::new().server("tools", Server::fixture()).relay("heartbeat = \"1s\"").start();
    let scene = Scene::with(world);
    let attach = scene.attach();
    let mut shim = scene.shim();
    let hub = attach.command_pid();
    send(hub, Signal::SIGSTOP);
    let calls = send_calls(&mut shim, Round(0), 6);
    attach.wait_until_output_has("nothing came through the pipe");
    expect_responses(&mut shim, calls);
    assert!(!is_alive(hub), "the stopped hub still exists");
    assert_eq!(scene.world.executions("tools").len(), 6);
}

#[test]
fn a_shim_that_does_not_read_delays_no_other() {
    let scene = Scene::new();
    let attach = scene.attach();
    let (mut stopped, mut other) = (scene.shim(), scene.shim());
    let calls: Vec<Value> = (0..4).map(|_| stopped.send_call("big", json!({"bytes": 2_000_000}))).collect();
    wait_until("the calls run", || scene.world.times_executed("tools", "big") > 0);
    stopped.signal(Signal::SIGSTOP);
    for number in 0..20 {
        assert_eq!(other.call_text("big", json!({"bytes": 100_000 + number})).len(), 100_000 + number);
    }
    let peak = cofferdam_tests::process::peak_memory_kib(attach.command_pid());
    assert!(peak < 16 * 1024, "the hub buffers too much that is not read: {peak} KiB");
    stopped.signal(Signal::SIGCONT);
    for call in calls {
        assert_eq!(text_of(&stopped.answer_to(&call)).len(), 2_000_000);
    }
}

#[test]
fn the_links_of_a_detached_hub_end_after_their_grace() {
    let world = World::new().server("tools", Server::fixture()).relay("resume-grace = \"1s\"").start();
    let scene = Scene::with(world);
    let attach = scene.attach();
    let mut shim = scene.shim();
    shim.call_text("add", json!({"a": 1, "b": 1}));
    attach.stop();
    wait_until("the session has ended", || scene.world.sessions().as_array().unwrap().is_empty());
    for id in scene.world.fixture_processes("tools") {
        wait_until("its server has exited", || !is_alive(id));
    }
    scene.world.wait_until("its enrolment has ended", || {
        scene.world.log().contains("not attached again in time: enrolment ended")
    });
    // Another attach creates a new enrolment, which the same shim can use.
    let _again = scene.attach();
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 2})), "3");
}

#[test]
fn a_killed_session_ends_its_attach() {
    let scene = Scene::new();
    let mut attach = scene.attach();
    let mut shim = scene.shim();
    let session = session_ids(&scene.world).remove(0);
    let hub = attach.command_pid();
    scene.world.cofferdam_text(&["kill", &session]);
    assert_eq!(refusal_of(&shim.call("add", json!({}))), "session_ended");
    assert!(!attach.wait().success());
    assert!(attach.printed().contains("cofferdam kill"), "{}", attach.printed());
    assert!(!is_alive(hub));
}

#[test]
fn an_attach_ends_when_its_ttl_has_passed() {
    let scene = Scene::new();
    let mut arguments = exec_hub(&scene.socket());
    arguments.splice(1..1, ["--ttl".to_owned(), "4s".to_owned()]);
    let mut attach = Attach::start(&scene.world, &arguments);
    attach.wait_until_attached(1);
    let mut shim = scene.shim();
    assert!(!attach.wait().success());
    assert!(attach.printed().contains("it expired"), "{}", attach.printed());
    wait_until("the session has ended", || scene.world.sessions().as_array().unwrap().is_empty());
    assert_eq!(refusal_of(&shim.call("add", json!({}))), "session_ended");
    let mut longer = exec_hub(&scene.socket());
    longer.splice(1..1, ["--ttl".to_owned(), "400h".to_owned()]);
    let mut attach = Attach::start(&scene.world, &longer);
    assert_eq!(attach.wait().code(), Some(64));
}

#[test]
fn a_sandbox_is_attached_once() {
    let scene = Scene::new();
    let _attach = scene.attach();
    let mut second = Attach::start(&scene.world, &exec_hub(&scene.socket()));
    assert_eq!(second.wait().code(), Some(69));
    assert!(second.printed().contains("another `cofferdam attach`") && second.printed().contains("--name"));
    let mut unknown = Attach::start(&scene.world, &["exec", "--grant", "unknown", "--", "true"]);
    assert_eq!(unknown.wait().code(), Some(64));
    assert!(unknown.printed().contains("there is no grant `unknown`"), "{}", unknown.printed());
    let mut nothing = Attach::start(&scene.world, &["exec", "--grant", "dev", "--", "/no/such/program"]);
    assert_eq!(nothing.wait().code(), Some(66));
    assert!(nothing.printed().contains("start `/no/such/program`"), "{}", nothing.printed());
    let talker = Attach::start(&scene.world, &["exec", "--grant", "dev", "--", "echo", "Last login: today"]);
    talker.wait_until_output_has("only the hub may write to its stdout");
}

/// A client that requests to attach a sandbox and disconnects before the response does not reserve it.
#[test]
fn an_attach_that_disconnects_before_its_response_holds_nothing() {
    let scene = Scene::new();
    let mut client = UnixStream::connect(&scene.world.layout().admin).unwrap();
    client.write_all(format!("{}and more, which is too early", hold_request()).as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101") && !answer.contains("attaching"), "{answer}");
    let mut arguments = exec_hub(&scene.socket());
    arguments.splice(1..1, ["--name".into(), "box".into()]);
    Attach::start(&scene.world, &arguments).wait_until_attached(1);
}

#[test]
fn a_hub_that_pins_another_key_refuses_with_the_reason() {
    let scene = Scene::new();
    let mut arguments = exec_hub(&scene.socket());
    let place = arguments.iter().position(|word| word == "{pin}").unwrap();
    arguments[place] = "1".repeat(64);
    let attach = Attach::start(&scene.world, &arguments);
    attach.wait_until_output_has(&format!("but {} is pinned", "1".repeat(64)));
    attach.wait_until_output_has("does the hub pin this sidecar's key");
    assert!(attach.printed().contains("`cofferdam key`"));
    assert_eq!(attach.times_attached(), 0);
    assert!(!scene.socket().exists(), "the socket exists");
}

/// Of several concurrent attaches of one sandbox one succeeds; the others leave no enrolments behind.
#[test]
fn concurrent_attaches_of_one_sandbox_create_one_enrolment() {
    let scene = Scene::new();
    let client: Vec<UnixStream> = (0..8)
        .map(|_| {
            let mut admin = UnixStream::connect(&scene.world.layout().admin).unwrap();
            admin.write_all(hold_request().as_bytes()).unwrap();
            admin
        })
        .collect();
    let mut answers: Vec<String> = client.iter().map(last_line).collect();
    answers.sort();
    let attached = answers.iter().filter(|answer| answer.contains("\"enrolment\"")).count();
    assert_eq!(attached, 1, "{answers:?}");
    let refused = answers.iter().filter(|answer| answer.contains("another `cofferdam attach` holds")).count();
    assert_eq!(refused, 7, "{answers:?}");
    let files = std::fs::read_dir(scene.world.layout().state.join("enrolments")).unwrap().count();
    assert_eq!(files, 1);
}

/// The request to hold the sandbox `box`.
fn hold_request() -> String {
    let body = json!({"grant": "dev", "name": "box"}).to_string();
    let head = "POST /v1/attach HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                connection: upgrade\r\nupgrade: cofferdam-hold\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

/// The line after the head of a response: the first of a stream, or the body.
fn last_line(admin: &UnixStream) -> String {
    use std::io::BufRead as _;
    admin.set_read_timeout(Some(PATIENCE)).expect("sockets work here");
    let mut lines = std::io::BufReader::new(admin).lines().map(|line| line.expect("sockets work here"));
    let _head = lines.by_ref().take_while(|line| !line.is_empty()).count();
    lines.next().unwrap_or_default()
}

#[test]
fn a_sandbox_without_network_and_files_is_reached_through_a_command() {
    let scene = Scene::new();
    let Some(bubblewrap) = Tool::Bubblewrap.path() else { return };
    let share = scene.directory.path().join("box");
    std::fs::create_dir(&share).unwrap();
    let place = share.display().to_string();
    let shim = shim_binary().display().to_string();
    let boxed = |inside: &[&str]| -> Vec<String> {
        let options =
            ["--unshare-all", "--ro-bind", &shim, "/shim", "--bind", &place, "/run/cofferdam/relay"];
        options.iter().chain(inside).map(|word| (*word).to_owned()).collect()
    };
    let mut arguments: Vec<String> =
        ["exec", "--grant", "dev", "--"].map(str::to_owned).into_iter().collect();
    arguments.push(bubblewrap.display().to_string());
    arguments.extend(boxed(&["/shim", "hub", "--pin", "{pin}"]));
    let attach = Attach::start(&scene.world, &arguments);
    attach.wait_until_attached(1);
    let mut inside = command(&bubblewrap);
    inside.env_clear().args(boxed(&["/shim", "--server", "tools"]));
    let mut shim = Harness::start(inside, "a shim in a box");
    assert!(shim.initialize().get("result").is_some());
    for round in 0..2 {
        let calls = send_calls(&mut shim, Round(round), 6);
        // Kills the command, not the hub inside: the hub has to detect the closed pipe.
        send(attach.command_pid(), Signal::SIGKILL);
        expect_responses(&mut shim, calls);
        attach.wait_until_attached(round + 2);
    }
    assert_eq!(scene.world.executions("tools").len(), 12);
}

#[test]
fn wrong_arguments_are_reported() {
    for (arguments, word) in [
        (&["hub"][..], "--pin is missing"),
        (&["hub", "--pin", "12"], "64 hexadecimal digits"),
        (&["hub", "--pin", &"1".repeat(64), "--listen", "0.0.0.0:7"], "--expose"),
    ] {
        let mut hub = command(shim_binary());
        hub.env_clear().args(arguments);
        let output = output_of(hub, "cofferdam-shim hub");
        assert_eq!(output.status.code(), Some(64));
        assert!(String::from_utf8_lossy(&output.stderr).contains(word), "{output:?}");
    }
    let mut missing = Harness::start(shim_at("hub:/no/such/file", "tools"), "cofferdam-shim");
    let id = missing.send_initialize();
    let answer = missing.answer_to(&id);
    assert_eq!(refusal_of(&answer), "relay_unavailable");
    assert!(answer["error"]["message"].as_str().unwrap().contains("is it running?"), "{answer}");
}
