//! Servers are confined unless the configuration says otherwise, and what follows from that.

use std::path::Path;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

#[test]
fn sessions_show_which_servers_have_no_walls() {
    let world = World::new()
        .server("walls", Server::fixture())
        // What is shown of such a server is what this test is about.
        .server("open", Server::fixture().unconfined())
        .start();
    let mut shims = ["walls", "open"].map(|server| world.connected(server));
    shims.iter_mut().for_each(|shim| _ = shim.call_text("echo", json!({"text": "it runs"})));
    let of = |server: &str| {
        let sessions = world.sessions();
        let found = sessions.as_array().expect("a list").iter().find(|session| session["server"] == server);
        found.expect("it has a link")["confine"].clone()
    };
    assert_eq!((of("walls"), of("open")), (json!("on"), json!("off")));
    let text = world.cofferdam_text(&["sessions"]);
    let notes = text.matches("confine: off; the server can reach all that the sidecar's user can").count();
    assert_eq!(notes, 1, "{text}");
}

#[test]
fn a_server_that_cannot_be_downloaded_is_refused_at_once_with_the_lines_that_it_lacks() {
    let Some(node) = Tool::Node.path() else { return };
    let npx = node.with_file_name("npx");
    let server = Server::command([npx.to_str().expect("a path that is text"), "-y", "some-server"]);
    let world = World::new().server("fetched", server).start();
    let mut shim = world.shim("fetched");
    let refused = shim.initialize();
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("server_unavailable") && message.contains("let it be downloaded"), "{refused}");
    wait_until("the log names the lines", || {
        world.log().contains("`home = \\\"keep\\\"` to `[servers.fetched.confine]`")
            || world.log().contains("`home = \"keep\"` to `[servers.fetched.confine]`")
    });
}

/// The suite shows that servers work inside their walls, so those without walls are counted. Each says why it has none.
#[test]
fn at_most_ten_places_of_this_suite_start_a_server_without_walls() {
    let sources = sources(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(sources.len() > 100, "{}", sources.len());
    let call = concat!(".unconfined", "()");
    let count: usize = sources.iter().map(|text| text.matches(call).count()).sum();
    assert!((1..=10).contains(&count), "{count}");
}

fn sources(directory: &Path) -> Vec<String> {
    let entries =
        std::fs::read_dir(directory).expect("it is a directory").flatten().map(|entry| entry.path());
    let texts = entries.flat_map(|path| match path.extension() {
        Some(ending) if ending == "rs" => vec![std::fs::read_to_string(path).expect("a source is text")],
        _ if path.is_dir() && !path.ends_with("node_modules") => sources(&path),
        _ => Vec::new(),
    });
    texts.collect()
}

/// Lists the directory and writes into it.
const LOOKS_AROUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/workspace.py");

#[test]
fn each_grant_has_its_own_workspace() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = |name: &str| directory.path().join(name);
    for name in ["one", "two"] {
        std::fs::create_dir(path(name)).expect("a temporary directory is writable");
        std::fs::write(path(name).join(format!("file-of-{name}")), "").expect("it is writable");
    }
    let server = |key: &str| {
        let server = Server::command(["/usr/bin/python3", LOOKS_AROUND]);
        server.env("ONE", &text(&path("one"))).env("TWO", &text(&path("two"))).confine(key)
    };
    let world = World::new()
        .server("writer", server("write = [\"{workspace}\"]"))
        .server("reader", server("read = [\"{workspace}\"]"))
        .grant(&format!("workspace = {:?}", path("one")))
        .grant(&format!("[grants.other]\nservers = [\"writer\"]\nworkspace = {:?}", path("two")))
        .start();
    let socket = directory.path().join("other");
    world.cofferdam_text(&["enroll", "--grant", "other", "--socket", &text(&socket)]);
    let seen = |server: &str, link: &str| -> Value {
        let mut shim = world.bare_shim_command();
        shim.args(["--relay", link, "--server", server]);
        let text = Harness::start(shim, "cofferdam-shim").initialized().call_text("look", json!({}));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let (shared, other) = (world.link(), format!("unix:{}", text(&socket.join("relay.sock"))));
    assert_eq!(seen("writer", &shared), json!({"one": ["file-of-one"], "two": null, "written": true}));
    assert_eq!(
        seen("reader", &shared),
        json!({"one": ["file-of-one", "new"], "two": null, "written": false})
    );
    assert_eq!(seen("writer", &other), json!({"one": null, "two": ["file-of-two"], "written": false}));
    assert!(path("one/new").exists() && !path("two/new").exists());
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
