//! `cofferdam-shim servers`, `tools` and `call`: the tools of a sandbox for scripts, over every kind of link.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

use cofferdam_tests::attach::{Attach, exec_hub, shim_binary};
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{Running, command, into_file, output_of, read};
use cofferdam_tests::sandbox::Sandbox;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// What a command printed, and its exit code.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self.stdout
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs the shim's command on this link.
#[track_caller]
fn run_at(relay: &str, arguments: &[&str]) -> Ran {
    output_of(at(relay, arguments), &format!("cofferdam-shim {arguments:?}")).into()
}

fn at(relay: &str, arguments: &[&str]) -> Command {
    let mut command = command(shim_binary());
    command.env_clear().args(arguments).args(["--relay", relay]);
    command
}

/// The same with this text on stdin.
#[track_caller]
fn run_with_input(relay: &str, arguments: &[&str], input: &str) -> Ran {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("in"), input).expect("a temporary directory is writable");
    let mut command = at(relay, arguments);
    command.stdin(File::open(path("in")).expect("it was just written"));
    command.stdout(into_file(&path("out"))).stderr(into_file(&path("err")));
    let status = Running::spawn(command, "cofferdam-shim").wait(PATIENCE);
    Output { status, stdout: read(&path("out")), stderr: read(&path("err")) }.into()
}

#[test]
fn a_script_finds_and_calls_the_tools_of_real_servers() {
    let (Some(everything), Some(time)) = (Server::everything(), Server::time()) else { return };
    let world = World::new().server("everything", everything).server("time", time).start();
    let run = |arguments: &[&str]| run_at(&world.link(), arguments);
    assert_eq!(run(&["servers"]).ok(), "everything\ntime\n");
    assert_eq!(run(&["servers", "--json"]).json(), json!({"servers": ["everything", "time"]}));

    let tools = run(&["tools", "time"]).ok();
    assert!(tools.lines().any(|line| line.starts_with("get_current_time(timezone)  ")), "{tools}");
    let all = run(&["tools"]).ok();
    assert!(all.starts_with("everything\n  ") && all.contains("\ntime\n  "), "{all}");
    assert!(all.contains("  get-sum(a, b)  "), "{all}");
    let listed = run(&["tools", "--json"]).json();
    assert_eq!(listed["servers"][1]["server"], "time");
    assert!(listed["servers"][0]["tools"].as_array().is_some_and(|tools| tools.len() >= 10), "{listed}");

    assert_eq!(run(&["call", "everything", "echo", r#"{"message": "hello"}"#]).ok(), "Echo: hello\n");
    let result = run(&["call", "--json", "everything", "get-sum", r#"{"a": 20, "b": 22}"#]).json();
    assert!(result["content"][0]["text"].as_str().unwrap().contains("42"), "{result}");
    let slow = r#"{"duration": 1, "steps": 2}"#;
    let slow = run(&["call", "everything", "trigger-long-running-operation", slow]);
    assert_eq!(slow.code, Some(0), "{slow:?}");
    assert!(slow.stderr.contains("progress 1/2") && slow.stdout.contains("completed"), "{slow:?}");

    let failed = run(&["call", "time", "get_current_time", r#"{"timezone": "Nowhere/None"}"#]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""));
    assert!(failed.stderr.starts_with("cofferdam-shim: the tool failed: "), "{failed:?}");
    let failed = run(&["call", "time", "get_current_time", "--json", r#"{"timezone": "Nowhere/None"}"#]);
    assert_eq!((failed.code, &failed.json()["isError"]), (Some(1), &json!(true)));
    assert!(world.sessions().as_array().unwrap().is_empty(), "every link ended with its command");
}

#[test]
fn servers_of_either_era_are_called() {
    let world = World::new()
        .server("legacy", Server::fixture_that("legacy"))
        .server("strict", Server::fixture_that("demands-handshake"))
        .server("stateless", Server::fixture_that("stateless"))
        .start();
    for server in ["legacy", "strict", "stateless"] {
        let run = |arguments: &[&str]| run_at(&world.link(), arguments).ok();
        assert_eq!(run(&["call", server, "add", r#"{"a": 2, "b": 3}"#]), "5\n", "{server}");
        assert!(run(&["tools", server]).contains("echo()"), "{server}");
    }
    let called = &world.received("stateless")[0];
    let call = called.iter().find(|message| message["method"] == "tools/call").expect("it was called");
    assert_eq!(call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
}

#[test]
fn exit_codes_tell_what_did_not_run_from_what_is_denied() {
    let world = World::new()
        .server(
            "tools",
            Server::fixture().allow(&["add", "write_*", "crash", "ask_client"]).ask(&["write_*"]),
        )
        .server("broken", Server::fixture_that("exits-at-once"))
        .server("other", Server::fixture())
        .granting(&["tools", "broken"])
        .start();
    let link = world.link();
    let code_and_reason = |arguments: &[&str]| {
        let ran = run_at(&link, arguments);
        let json = run_at(&link, &[arguments, &["--json"]].concat());
        assert_eq!(json.code, ran.code, "{json:?}");
        if ran.code != Some(64) {
            let reason = json.json()["trouble"]["code"].as_str().unwrap().to_owned();
            assert!(ran.stderr.starts_with(&format!("cofferdam-shim: {reason}: ")), "{ran:?}");
        }
        assert_eq!(ran.stdout, "");
        (ran.code.unwrap(), ran.stderr)
    };
    let expect = |arguments: &[&str], code: i32, word: &str| {
        let (found, reason) = code_and_reason(arguments);
        assert!(found == code && reason.contains(word), "{arguments:?}: {found} {reason}");
    };
    expect(&["call", "tools", "write_file"], 77, "approval_required");
    expect(&["call", "other", "add"], 77, "server_not_granted");
    expect(&["tools", "nowhere"], 77, "server_not_granted: ");
    expect(&["call", "broken", "add"], 69, "server_unavailable");
    expect(&["call", "tools", "echo"], 1, "Unknown tool: echo");
    expect(&["call", "tools", "crash"], 1, "outcome_unknown");
    for (arguments, word) in [
        (&["call", "tools"][..], "call SERVER TOOL"),
        (&["call", "tools", "add", "{"], "not JSON"),
        (&["call", "tools", "add", "[]"], "must be a JSON object"),
        (&["call", "tools", "add", r#"{"a":1,"a":2}"#], "arguments"),
        (&["servers", "x"], "unexpected argument `x`"),
        (&["tools", "--server", "tools"], "unknown option or command `--server`"),
    ] {
        expect(arguments, 64, word);
    }
    assert_eq!(world.times_executed("tools", "add"), 0);
    // A tool that asks the client for something gets an answer, so that it does not wait.
    let asked =
        run_at(&link, &["call", "tools", "ask_client", r#"{"method": "sampling/createMessage"}"#]).ok();
    assert!(asked.contains("-32601"), "{asked}");
    let missing = run_at("unix:/nonexistent/relay.sock", &["servers"]);
    assert!(missing.code == Some(69) && missing.stderr.contains("relay_unavailable"), "{missing:?}");
    let missing = run_at("unix:/nonexistent/relay.sock", &["call", "tools", "add"]);
    assert!(missing.code == Some(69) && missing.stderr.contains("/nonexistent/relay.sock"), "{missing:?}");
}

#[test]
fn one_broken_server_does_not_hide_the_tools_of_the_others() {
    let world = World::new()
        .server("broken", Server::fixture_that("exits-at-once"))
        .server("tools", Server::fixture_that("lists-in-pages"))
        .start();
    let ran = run_at(&world.link(), &["tools"]);
    assert_eq!(ran.code, Some(69));
    assert!(ran.stdout.starts_with("tools\n") && ran.stdout.contains("  echo()"), "{ran:?}");
    assert!(ran.stderr.contains("broken: server_unavailable"), "{ran:?}");
}

#[test]
fn arguments_come_from_stdin_and_results_may_be_large() {
    let world = World::new().server("tools", Server::fixture()).start();
    let call = |tool: &str, input: &str| run_with_input(&world.link(), &["call", "tools", tool, "-"], input);
    assert_eq!(call("add", "{\r\n  \"a\": 1,\n  \"b\": 2\n}\n").ok(), "3\n");
    let text = "long ".repeat(1_800_000);
    assert!(call("echo", &json!({"text": text}).to_string()).ok() == text + "\n");
    assert_eq!(call("big", r#"{"bytes": 9000000}"#).ok().len(), 9_000_001);
    let too_large = call("big", r#"{"bytes": 12000000}"#);
    assert!(too_large.code == Some(1) && too_large.stderr.contains("message_too_large"), "{too_large:?}");
    let before = world.executions("tools").len();
    for input in [String::new(), "nonsense".into(), "x".repeat(12_000_000)] {
        assert_eq!(call("add", &input).code, Some(64));
    }
    assert_eq!(world.executions("tools").len(), before, "nothing was sent");
    // Much that the client did not ask for does not block it.
    assert_eq!(call("flood", r#"{"messages": 300, "bytes": 100000}"#).ok(), "flooded\n");
}

#[test]
fn a_signal_ends_the_link_at_once() {
    let world = World::new().server("tools", Server::fixture()).start();
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let before = world.times_executed("tools", "slow");
        let mut slow = at(&world.link(), &["call", "tools", "slow", r#"{"ms": 60000}"#]);
        slow.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut slow = Running::spawn(slow, "cofferdam-shim call");
        wait_until("it runs", || world.times_executed("tools", "slow") > before);
        slow.signal(signal);
        assert_eq!(slow.wait(PATIENCE).code(), Some(code));
        wait_until("its session has ended", || world.sessions().as_array().unwrap().is_empty());
    }
}

#[test]
fn a_lost_connection_is_resumed_and_the_call_runs_once() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let out = directory.path().join("out");
    let mut slow = at(&world.link(), &["call", "tools", "slow", r#"{"ms": 1500}"#]);
    slow.stdin(Stdio::null()).stdout(into_file(&out)).stderr(Stdio::null());
    let mut slow = Running::spawn(slow, "cofferdam-shim call");
    wait_until("it runs", || world.times_executed("tools", "slow") == 1);
    world.cut_connections();
    assert_eq!(slow.wait(PATIENCE).code(), Some(0));
    assert_eq!(read(&out), b"late\n");
    assert_eq!(world.times_executed("tools", "slow"), 1);
}

/// Lists servers, lists tools and calls one, over a link that can be opened more than once.
#[track_caller]
fn assert_commands_work(kind: &str, run: impl Fn(&[&str]) -> Ran) {
    assert_eq!(run(&["servers"]).ok(), "other\ntools\n", "{kind}");
    assert!(run(&["tools"]).ok().contains("tools\n  add()"), "{kind}");
    assert_eq!(run(&["call", "tools", "add", r#"{"a": 20, "b": 22}"#]).ok(), "42\n", "{kind}");
}

fn two_servers(tls: SocketAddr) -> World {
    let builder = World::new().server("tools", Server::fixture()).server("other", Server::fixture());
    builder.relay(&format!("tls = \"{tls}\"")).start()
}

#[test]
fn commands_work_over_sockets_hubs_and_networks() {
    let tls = free_address();
    let world = two_servers(tls);
    assert_commands_work("unix", |arguments| run_at(&world.link(), arguments));

    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let socket = directory.path().join("box/relay.sock");
    let attach = Attach::exec(&world, &socket);
    assert_commands_work("hub", |arguments| run_at(&format!("unix:{}", socket.display()), arguments));
    attach.stop();
    let file = directory.path().join("box/hub");
    let mut hub = exec_hub(&file);
    let flag = hub.iter().position(|word| word == "--socket").expect("a hub has a socket");
    hub[flag] = "--loopback".into();
    let attach = Attach::start(&world, &hub);
    attach.wait_until_attached(1);
    assert_commands_work("loopback hub", |arguments| run_at(&format!("hub:{}", file.display()), arguments));

    let sandbox = Sandbox::enrolled(&world);
    assert_commands_work("tls", |arguments| sandbox.run(arguments).into());
    let web_socket = format!("wss://{tls}/relay");
    assert_commands_work("wss", |arguments| {
        sandbox.run(&[arguments, &["--relay", &web_socket]].concat()).into()
    });
}

/// These links carry one connection: `servers` needs it for itself, and `tools` without a name lists the only server.
#[test]
fn commands_work_over_links_that_open_once() {
    let world = World::new().server("tools", Server::fixture()).start();
    let over_descriptor = |arguments: &[&str]| {
        let socket = UnixStream::connect(&world.layout().relay).expect("the sidecar listens");
        fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty())).expect("a flag can be cleared");
        run_at(&format!("fd:{}", socket.as_raw_fd()), arguments)
    };
    assert_eq!(over_descriptor(&["servers"]).ok(), "tools\n");
    assert!(over_descriptor(&["tools"]).ok().contains("add()"));
    assert_eq!(over_descriptor(&["call", "tools", "add", r#"{"a": 1, "b": 2}"#]).ok(), "3\n");

    let address = free_address();
    let key = world.cofferdam_text(&["key"]).trim().to_owned();
    let attach = Attach::start(&world, &["dial", &address.to_string(), "--grant", "dev"]);
    let dialled =
        |arguments: &[&str]| run_at(&format!("listen:{address}"), &[arguments, &["--pin", &key]].concat());
    assert_eq!(dialled(&["call", "tools", "add", r#"{"a": 1, "b": 2}"#]).ok(), "3\n", "{}", attach.printed());
    assert!(dialled(&["tools"]).ok().contains("add()"), "{}", attach.printed());
    let servers = dialled(&["servers"]);
    assert!(servers.code == Some(69) && servers.stderr.contains("`cofferdam sessions`"), "{servers:?}");
}
