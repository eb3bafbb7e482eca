//! Manifests: an upper bound of what the configuration may give a server.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

/// A directory with a manifest of these words, and its path.
fn manifest(words: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = directory.path().join("agent-manifest.json");
    write(&path, words);
    (directory, path)
}

fn write(path: &PathBuf, words: &[&str]) {
    let manifest = json!({ "description": "a server of a test", "permissions": words });
    std::fs::write(path, manifest.to_string()).expect("write the manifest");
}

/// A server with a manifest that may execute nothing but its own program.
fn server(manifest: &PathBuf) -> Server {
    let server = Server::fixture().confine("exec = []");
    server.line(&format!("manifest = {:?}", manifest.display().to_string()))
}

fn builder(server: Server) -> Builder {
    World::new().server("bounded", server)
}

#[track_caller]
fn assert_check(world: &World, arguments: &[&str], code: i32, message: &str) {
    let output = world.cofferdam(&[&["check"], arguments].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(message), "{message} in {stderr}");
}

const FILES: [&str; 3] = ["mcp.ac.filesystem.read", "mcp.ac.filesystem.write", "mcp.ac.filesystem.delete"];

#[test]
fn what_goes_beyond_the_manifest_is_refused_by_check_start_and_reload() {
    // The fixture writes its records and has variables of its own.
    let all = [&FILES[..], &["mcp.ac.system.env.read"]].concat();
    let (_directory, path) = manifest(&all);
    let mut world = builder(server(&path)).start();
    assert_eq!(world.connected("bounded").call_text("echo", json!({"text": "inside"})), "inside");

    write(&path, &FILES);
    let missing = "`servers.bounded.env` needs `mcp.ac.system.env.read`, which the server's manifest lacks";
    assert_check(&world, &[], 78, missing);
    let output = world.cofferdam(&["reload"]);
    assert_eq!(output.status.code(), Some(78), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.connected("bounded").call_text("echo", json!({"text": "as before"})), "as before");
    world.stop_sidecar();
    let output = world.cofferdam(&["serve"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains(missing), "{stderr}");
}

#[test]
fn what_the_manifest_allows_in_general_waits_for_a_path_or_host() {
    let words =
        [&FILES[..], &["mcp.ac.system.env.read", "mcp.ac.network.client", "mcp.ac.location"]].concat();
    let (_directory, path) = manifest(&words);
    let waiting = "its manifest allows `mcp.ac.network.client`, but no `confine.hosts` says what that is";
    let world = builder(server(&path)).prepare();
    assert_check(&world, &[], 0, waiting);
    assert_check(
        &world,
        &[],
        0,
        "add a line such as `hosts = [\"api.example.com:443\"]` to `servers.bounded.confine`",
    );
    assert_check(&world, &["--strict"], 78, waiting);
    let text = world.cofferdam_text(&["confine", "show", "bounded"]);
    assert!(text.contains("mcp.ac.network.client: refused, because no key refines it"), "{text}");
    assert!(text.contains("  mcp.ac.location\n"), "{text}");
    for decided in ["hosts = [\"api.example.com:443\"]", "hosts = []"] {
        let world = builder(server(&path).confine(decided)).prepare();
        assert_check(&world, &["--strict"], 0, "");
    }
}

#[test]
fn the_manifest_that_is_written_is_the_narrowest_that_check_accepts() {
    let write_manifest = |server: Server, path: &PathBuf| {
        let text = builder(server).prepare().cofferdam_text(&["confine", "show", "bounded", "--manifest"]);
        std::fs::write(path, &text).expect("write the manifest");
        serde_json::from_str::<Value>(&text).expect("it is JSON")
    };
    let directory = tempfile::tempdir().expect("make a directory");
    let path = directory.path().join("agent-manifest.json");
    let without = Server::fixture().confine("hosts = [\"api.example.com:443\"]");
    let written = write_manifest(without.clone(), &path);
    let words =
        [&FILES[..], &["mcp.ac.system.env.read", "mcp.ac.system.exec", "mcp.ac.network.client"]].concat();
    assert_eq!(written, json!({"name": "bounded", "permissions": words}));

    let bounded = without.line(&format!("manifest = {:?}", path.display().to_string()));
    let world = builder(bounded.clone()).prepare();
    assert_check(&world, &["--strict"], 0, "");
    assert_eq!(write_manifest(bounded, &path), written, "written again, it is the same");
    for missing in &words {
        let narrower: Vec<&str> = words.iter().copied().filter(|word| word != missing).collect();
        write(&path, &narrower);
        assert_check(&world, &[], 78, &format!("`{missing}`, which"));
    }
}

#[test]
fn a_file_that_is_no_manifest_is_refused() {
    let (directory, path) = manifest(&[]);
    let at = |name: &str| directory.path().join(name);
    symlink(&path, at("link")).expect("link");
    std::fs::write(at("large"), " ".repeat(64 * 1024 + 1)).expect("write");
    std::fs::write(at("cut"), r#"{"permissions": ["mcp.ac"#).expect("write");
    for (path, message) in [
        (at("link"), "it is a symbolic link: name the file itself"),
        (at("large"), "it is larger than 64 KiB"),
        (at("cut"), "it ends in the middle of its JSON"),
        (directory.path().to_owned(), "it is not a regular file"),
        (PathBuf::from("/dev/zero"), "it is not a regular file"),
        (at("missing"), "No such file or directory"),
    ] {
        assert_check(&builder(server(&path)).prepare(), &[], 78, message);
    }
}
