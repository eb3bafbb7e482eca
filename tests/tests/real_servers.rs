//! Third-party MCP servers, called through shim and sidecar.

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
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
    let world = World::new().server("files", server.allow(&["read_*", "list_*"])).start();
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
    let mut modern = world.shim("time");
    assert!(modern.discover()["result"]["supportedVersions"].to_string().contains("2026-07-28"));
    assert!(modern.call_text("get_current_time", json!({"timezone": "UTC"})).contains("UTC"));
}
