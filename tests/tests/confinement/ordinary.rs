//! Real servers notice nothing of their walls: what they answer is what they answer without.

use std::path::{Path, PathBuf};

use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

/// Everything that a server says of itself, and the results of these calls.
fn conversation(server: Server, calls: &[(&str, Value)]) -> Vec<Value> {
    let world = World::new().server("real", server).start();
    let mut shim = world.connected("real");
    let lists =
        ["tools/list", "prompts/list", "resources/list"].map(|method| shim.request(method, json!({})));
    let answers = calls.iter().map(|(tool, arguments)| shim.call(tool, arguments.clone()));
    let answers: Vec<Value> = lists.into_iter().chain(answers).collect();
    answers.into_iter().map(|answer| json!([answer["result"], answer["error"]])).collect()
}

/// Without walls the server is the same program, so what it says then is what it should say.
#[track_caller]
fn assert_walls_make_no_difference(server: Server, calls: &[(&str, Value)]) {
    assert_eq!(conversation(server.clone().unconfined(), calls), conversation(server, calls));
}

#[test]
fn server_everything() {
    let Some(server) = Server::everything() else { return };
    let calls = [("echo", json!({"message": "hello"})), ("get-sum", json!({"a": 20, "b": 22}))];
    assert_walls_make_no_difference(server, &calls);
}

#[test]
fn server_filesystem() {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("hello.txt"), "hello").expect("write a file");
    let Some(server) = Server::filesystem(directory.path()) else { return };
    let calls = [
        ("read_text_file", json!({"path": path("hello.txt")})),
        ("write_file", json!({"path": path("new.txt"), "content": "x"})),
        ("edit_file", json!({"path": path("new.txt"), "edits": [{"oldText": "x", "newText": "y"}]})),
        ("list_directory", json!({"path": path("")})),
        ("read_text_file", json!({"path": "/etc/passwd"})),
    ];
    assert_walls_make_no_difference(server.writing(directory.path()), &calls);
    assert_eq!(std::fs::read_to_string(path("new.txt")).expect("the server wrote it"), "y");
}

#[test]
fn server_filesystem_that_may_only_read() {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("hello.txt"), "hello").expect("write a file");
    let Some(server) = Server::filesystem(directory.path()) else { return };
    let world = World::new().server("files", server).start();
    let mut shim = world.connected("files");
    assert_eq!(shim.call_text("read_text_file", json!({"path": path("hello.txt")})), "hello");
    let refused = shim.call_text("write_file", json!({"path": path("new.txt"), "content": "x"}));
    assert!(refused.contains("EROFS"), "{refused}");
    assert!(!Path::new(&path("new.txt")).exists());
}

#[test]
fn server_time() {
    let Some(server) = Server::time() else { return };
    let calls = [(
        "convert_time",
        json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
    )];
    assert_walls_make_no_difference(server, &calls);
}

/// The interpreters of these servers are outside of `/usr`, in a home directory or a cache.
#[test]
fn an_interpreter_in_a_home_directory_is_found() {
    let Some(server) = Tool::TimeServer.path() else { return };
    let interpreter: PathBuf = server.parent().expect("a directory").join("python3");
    assert!(interpreter.is_symlink(), "this test needs a virtual environment: {}", interpreter.display());
    let real = interpreter.canonicalize().expect("the interpreter is there");
    let script = "import sys, ssl, sqlite3, json; print(json.dumps({'jsonrpc': '2.0', 'method': 'notifications/message', \
                  'params': {'level': 'info', 'data': [sys.prefix, sys.base_prefix]}}), flush=True); sys.stdin.read()";
    let server = Server::command([interpreter.display().to_string(), "-c".into(), script.into()]);
    let world = World::new().server("python", server).start();
    let mut shim = world.shim("python");
    shim.send_request("initialize", json!({}));
    let data = shim.message_with_method("notifications/message")["params"]["data"].clone();
    let base = data[1].as_str().expect("a prefix");
    assert_ne!(data[0], data[1], "it did not find its virtual environment");
    assert!(real.starts_with(base), "{base} is not around {}", real.display());
}
