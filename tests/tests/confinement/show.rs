//! `cofferdam confine show`: what a server would get is what it gets.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use cofferdam_process::{Pty, Window};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::Running;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

fn shown(world: &World, server: &str) -> Value {
    let output = world.cofferdam(&["confine", "show", server, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// A server that sends its mounts and the names of its variables, and the configuration of everything that `show` lists.
fn telling(interpreter: &Path, directory: &Path) -> Server {
    let script = "import json, os, sys; data = [open('/proc/self/mountinfo').read(), list(os.environ)]; \
                  print(json.dumps({'jsonrpc': '2.0', 'method': 'notifications/message', \
                  'params': {'level': 'info', 'data': data}}), flush=True); sys.stdin.read()";
    let path = |name: &str| {
        let path = directory.join(name);
        std::fs::create_dir(&path).expect("make a directory");
        path
    };
    Server::command([interpreter.display().to_string(), "-c".into(), script.into()])
        .env("FIRST", "{one.value}")
        .env("TMPDIR", "/tmp/x")
        .file("key", "{one.value}")
        .shown(&path("read"))
        .writing(&path("write"))
        .line(&format!("cwd = {:?}", path("cwd").display().to_string()))
        .confine("hosts = [\"*.example.com:443\", \"127.0.0.1:8080\"]")
        .confine("home = \"keep\"")
        .confine("memory = \"1GiB\"")
}

/// The mounts of a process: whether each can be written.
fn mounts(mountinfo: &str) -> BTreeMap<String, bool> {
    let mount = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields[4].to_owned(), fields[5].split(',').any(|option| option == "rw"))
    };
    mountinfo.lines().map(mount).collect()
}

#[test]
fn what_is_shown_is_what_the_process_sees() {
    // In a virtual environment, so that parts of the program are shown too.
    let Some(server) = Tool::TimeServer.path() else { return };
    let interpreter = server.parent().expect("a directory").join("python3");
    let directory = tempfile::tempdir().expect("make a directory");
    let base = directory.path().canonicalize().expect("it is there");
    let world =
        World::new().server("telling", telling(&interpreter, &base)).secret_file("one", "a-secret-4711");
    let before = shown(&world.clone().prepare(), "telling");
    let world = world.start();
    let mut shim = world.shim("telling");
    shim.send_request("initialize", json!({}));
    let data = shim.message_with_method("notifications/message")["params"]["data"].clone();
    let report = shown(&world, "telling");

    let files = report["files"].as_array().expect("a list");
    let mounts = mounts(data[0].as_str().expect("text"));
    let is_mounted = |file: &&Value| {
        let content = file["content"].as_str().unwrap_or_default();
        !["a link to", "a file made", "an empty directory"].iter().any(|other| content.starts_with(other))
            || content.contains("in memory")
    };
    for file in files.iter().filter(is_mounted) {
        let path = file["path"].as_str().expect("a path");
        let writable = *mounts.get(path).unwrap_or_else(|| panic!("{path} in {mounts:#?}"));
        // A device is written to also where the directory entry cannot be changed.
        let is_device = file["content"] == "a device";
        assert!(is_device || file["write"] == writable, "{path}: {mounts:#?}");
    }
    // What is mounted inside of a shown directory comes with it; the directory of the injected files has no name before.
    let injected = data[0].as_str().expect("text");
    for (path, _) in mounts.iter().filter(|(path, _)| *path != "/") {
        let around = |file: &Value| Path::new(path).starts_with(file["path"].as_str().expect("a path"));
        let is_injected = path.contains("cofferdam") && path.starts_with("/dev/shm");
        assert!(files.iter().any(around) || is_injected, "{path} is not shown: {injected}");
    }
    let why = |path: &Path| {
        let of_path = |file: &&Value| file["path"] == path.display().to_string();
        files.iter().find(of_path).unwrap_or_else(|| panic!("{} in {report:#}", path.display()))["why"]
            .clone()
    };
    assert_eq!(why(&base.join("read")), "confine.read");
    assert_eq!(why(&base.join("write")), "confine.write");
    assert_eq!(why(&base.join("cwd")), "cwd");
    assert_eq!(why(Path::new("/home/server")), "confine.home");
    assert_eq!(why(Path::new("/usr")), "system");
    assert_eq!(why(interpreter.parent().and_then(Path::parent).expect("a virtual environment")), "program");

    let mut variables: Vec<&str> = report["variables"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    let mut inside: Vec<&str> =
        data[1].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    // Python sets it for itself where the locale is that of C.
    inside.retain(|name| *name != "LC_CTYPE");
    variables.retain(|name| *name != "LC_CTYPE");
    (variables.sort_unstable(), inside.sort_unstable());
    assert_eq!(variables, inside);
    assert!(
        !report.to_string().contains("a-secret-4711") && !report.to_string().contains("/tmp/x"),
        "{report:#}"
    );
    assert_eq!(report["injected_files"], json!(["key"]));
    assert_eq!(
        report["hosts"],
        json!([
            {"host": "*.example.com:443", "addresses": "its public addresses"},
            {"host": "127.0.0.1:8080", "addresses": "this address"},
        ])
    );
    let memory = json!({"limit": "memory of each process", "value": 1 << 30});
    assert!(report["limits"].as_array().expect("a list").contains(&memory), "{report:#}");
    assert_eq!(
        before["files"].as_array().map(Vec::len),
        Some(files.len()),
        "it is the same without a sidecar"
    );
}

#[test]
fn the_report_for_a_person_fits_into_eighty_columns_and_makes_nothing() {
    let directory = tempfile::tempdir().expect("make a directory");
    let world = World::new()
        .server("server", telling(Path::new("/usr/bin/python3"), directory.path()))
        .secret_file("one", "a-secret-4711")
        .prepare();
    let pty = Pty::open(Window::new(24, 80)).expect("a terminal can be made");
    let end = || Stdio::from(pty.inside.try_clone().expect("it can be duplicated"));
    let mut command = world.cofferdam_command();
    command.args(["confine", "show", "server", "-c"]).arg(&world.layout().config).env("NO_COLOR", "1");
    command.stdin(end()).stdout(end()).stderr(end());
    let mut run = Running::spawn(command, "cofferdam confine show");
    drop(pty.inside);
    // The terminal is read to its end: the error means that no process has it open any more.
    let mut shown = Vec::new();
    let _ = std::fs::File::from(pty.host).read_to_end(&mut shown);
    assert!(run.wait(PATIENCE).success());
    let shown = String::from_utf8(shown).expect("UTF-8");
    for line in shown.lines() {
        let longest = line.split(' ').map(|word| word.chars().count()).max().unwrap_or_default();
        assert!(line.chars().count() <= 80 || longest > 60, "{line}\n{shown}");
    }
    for expected in [
        "server `server` is confined; it runs /usr/bin/python3",
        "because: confine.write",
        "because: own: an empty directory in memory, at most 256MiB",
        "from the configuration: FIRST, TMPDIR",
        "*.example.com:443 at its public addresses",
        "127.0.0.1:8080 at this address",
        "memory of each process: 1GiB",
        "  key",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    world.assert_nothing_is_in_the_state_directory();
}

#[test]
fn a_server_without_walls_is_named_as_such_and_others_cannot_be_shown() {
    let world = World::new()
        .server("open", Server::fixture().line("confine = \"off\""))
        .server("remote", Server::http("https://mcp.example.com/"))
        .server("gone", Server::command(["/nonexistent/server"]).confined())
        .server("listed", Server::command(["/bin/cat"]).confine("exec = [\"/usr/bin/true\"]"))
        .prepare();
    let text = world.cofferdam_text(&["confine", "show", "open"]);
    assert!(text.starts_with("server `open` is not confined"), "{text}");
    assert_eq!(shown(&world, "open"), json!({"server": "open", "confined": false}));
    for (arguments, code, message) in [
        (&["confine", "show", "opne"][..], 64, "did you mean `open`?"),
        (&["confine", "show", "remote"], 64, "it does not run on this host"),
        (&["confine", "show", "gone"], 78, "there is no `/nonexistent/server`"),
        (&["confine", "show", "open", "--manifest"], 78, "is not confined"),
    ] {
        let output = world.cofferdam(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
    }
    let programs = shown(&world, "listed")["programs"].clone();
    let programs: Vec<&str> = programs.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(programs.contains(&"/usr/bin/true") && programs.contains(&"/usr/bin/cat"), "{programs:?}");
}
