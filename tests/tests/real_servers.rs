//! Third-party MCP servers, called through shim and sidecar.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::process::Running;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::json;

#[test]
fn server_everything_works() {
    let Some(server) = Server::everything() else { return };
    let world = World::new().server("everything", server).start();
    let mut shim = world.connected("everything");
    let tools = shim.request("tools/list", json!({}));
    assert!(tools["result"]["tools"].as_array().is_some_and(|tools| tools.len() >= 10), "{tools}");
    assert_eq!(shim.call_text("echo", json!({"message": "hello"})), "Echo: hello");
    assert!(shim.call_text("get-sum", json!({"a": 20, "b": 22})).contains("42"));
    assert!(shim.request("resources/list", json!({}))["result"]["resources"].is_array());
    assert!(shim.request("prompts/list", json!({}))["result"]["prompts"].is_array());
}

#[test]
fn server_everything_reports_progress() {
    let Some(server) = Server::everything() else { return };
    let world = World::new().server("everything", server).start();
    let mut shim = world.connected("everything");
    let call = json!({"name": "trigger-long-running-operation", "arguments": {"duration": 1, "steps": 2}, "_meta": {"progressToken": "p"}});
    let id = shim.send_request("tools/call", call);
    let progress = shim.message_with_method("notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "p");
    assert!(shim.answer_to(&id).get("result").is_some());
}

#[test]
fn server_filesystem_works_within_its_rules() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::write(directory.path().join("hello.txt"), "hello from a file").unwrap();
    let Some(server) = Server::filesystem(directory.path()) else { return };
    // It could write: the rules are what stops it.
    let server = server.writing(directory.path()).allow(&["read_*", "list_*"]);
    let world = World::new().server("files", server).start();
    let mut shim = world.connected("files");
    let path = |name: &str| directory.path().join(name).display().to_string();
    assert!(
        shim.call_text("read_text_file", json!({"path": path("hello.txt")})).contains("hello from a file")
    );
    let refused = shim.call("write_file", json!({"path": path("new.txt"), "content": "x"}));
    assert_eq!(refused["error"]["message"], "Unknown tool: write_file");
    assert!(!directory.path().join("new.txt").exists());
}

#[test]
fn server_time_works_in_both_eras() {
    let Some(server) = Server::time() else { return };
    let world = World::new().server("time", server).start();
    let mut legacy = world.connected("time");
    assert!(legacy.call_text("get_current_time", json!({"timezone": "UTC"})).contains("UTC"));
    // A process of this server accepts only the era of its first request: the other era needs another process.
    let mut stateless = world.shim("time");
    assert!(stateless.discover()["result"]["supportedVersions"].to_string().contains("2026-07-28"));
    assert!(stateless.call_text("get_current_time", json!({"timezone": "UTC"})).contains("UTC"));
}

/// `python -m` prefers modules of its directory. A sidecar that is started in a project, which a sandbox can write, must not
/// start its servers there.
#[test]
fn a_module_in_the_directory_of_the_sidecar_is_not_started() {
    let Some(python) = Tool::Python.path() else { return };
    let project = tempfile::tempdir().expect("a temporary directory can be made");
    let planted = project.path().join("mcp_server_time.py");
    std::fs::write(&planted, "open('started', 'w')\n").expect("a temporary directory is writable");
    let python = python.display().to_string();
    let server = Server::command([&python, "-m", "mcp_server_time", "--local-timezone", "UTC"]);
    let server = server.confine("home = \"keep\"");
    let in_project = Server::command([&python, "-m", "mcp_server_time"]).writing(project.path());
    let in_project = in_project.line(&format!("cwd = {:?}", project.path()));
    let world = World::new().server("time", server).server("in-project", in_project).prepare();
    let mut command = world.cofferdam_command();
    command.args(["serve", "-c"]).arg(&world.layout().config).current_dir(project.path());
    let mut sidecar = Running::spawn(command, "cofferdam serve");
    wait_until("the sidecar accepts links", || UnixStream::connect(&world.layout().relay).is_ok());
    let mut shim = world.connected("time");
    let now = shim.call_text("get_current_time", json!({"timezone": "UTC"}));
    assert!(now.contains("UTC"), "{now}");
    assert!(!project.path().join("started").exists());
    let own = world.layout().state.join("servers/time");
    let mode = own.metadata().expect("the server's lasting home is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // `cwd` names another directory, here the one with the other module.
    let mut shim = world.shim("in-project");
    shim.send_request("initialize", json!({}));
    wait_until("the other module runs", || project.path().join("started").exists());
    sidecar.signal(Signal::SIGTERM);
    assert!(sidecar.wait(PATIENCE).success());
}
