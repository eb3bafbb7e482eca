//! Packages of npm, from the first decision to the server's answer.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::http::Reply;
use cofferdam_tests::process::{Running, children_of, process_ids};
use cofferdam_tests::server::Server;
use serde_json::json;

use crate::{Scene, TOKEN, text_of};

#[test]
fn a_package_is_shown_then_installed_and_its_server_needs_no_registry() {
    let mut scene = Scene::npm();
    assert_eq!(scene.check(), ["package-lock"]);
    let message = scene.start_error();
    assert!(message.contains("`cofferdam install tools`"), "{message}");

    let shown = scene.install(&["--diff"]);
    assert!(shown.contains("tools: npm:@fixture/server@1.0.0, 2 packages, changes the lock\n  + @fixture/server 1.0.0\n  + answer 1.0.0\n"), "{shown}");
    assert!(shown.contains("have install scripts, which are not run: answer"), "{shown}");
    let unasked = scene.run(&["install"]);
    assert_eq!(unasked.status.code(), Some(64), "without a terminal nobody can agree: {}", text_of(&unasked));
    assert_eq!((scene.lock_text(), scene.installed().len()), (None, 0));

    let requests = scene.registry.take_requests();
    assert!(
        requests.iter().all(|request| request.headers["authorization"] == format!("Bearer {TOKEN}")),
        "{requests:?}"
    );
    assert!(scene.install(&["--yes"]).contains("1 installed, 0 unchanged; wrote "));
    assert!(!scene.tree().join("node_modules/answer/ran.json").exists(), "an install script ran");
    let lock = scene.lock_text().expect("the lock was written");
    for secret in [TOKEN.to_owned(), scene.registry.address().to_string()] {
        assert!(!lock.contains(&secret), "{secret} is in the lock");
    }
    assert_eq!(scene.check(), [] as [&str; 0]);

    // From here on nothing asks the registry.
    scene.registry.take_requests();
    scene.world.start_sidecar();
    let mut shim = scene.world.connected("tools");
    assert_eq!(shim.call_text("answer", json!({})), "answer of 1.0.0 ");
    assert!(scene.install(&[]).contains("0 installed, 1 unchanged\n"));
    assert_eq!(scene.registry.take_requests().len(), 0);
}

#[test]
fn arguments_reach_the_server_also_without_walls() {
    let server = Server::package("npm:@fixture/server@1.0.0").line("args = [\"--root\", \"/data\"]");
    let mut scene = Scene::new(server.line("confine = \"off\"").line("program = \"fixture-server\""));
    scene.registry.publish_npm();
    scene.install(&["--yes"]);
    scene.world.start_sidecar();
    let mut shim = scene.world.connected("tools");
    assert_eq!(shim.call_text("answer", json!({})), "answer of 1.0.0 --root /data");
}

#[test]
fn an_allowed_install_script_has_neither_the_network_nor_the_token() {
    let server = Server::package("npm:@fixture/server@1.0.0").line("install-scripts = \"allow\"");
    let scene = Scene::new(server);
    scene.registry.publish_npm();
    let shown = scene.install(&["--yes"]);
    assert!(shown.contains("run install scripts, without a network: answer"), "{shown}");
    let found =
        std::fs::read_to_string(scene.tree().join("node_modules/answer/ran.json")).expect("the script ran");
    assert_eq!(found, r#"{"token":false,"network":"ECONNREFUSED"}"#);
}

#[test]
fn a_newer_dependency_is_a_decision() {
    let scene = Scene::npm();
    scene.install(&["--yes"]);
    let before = scene.lock_text();
    scene.registry.publish_answers(&["1.0.0", "1.1.0"]);
    assert!(scene.install(&["--yes"]).contains("as locked"));
    let shown = scene.install(&["--update", "--diff"]);
    assert!(shown.contains("  ~ answer 1.0.0 -> 1.1.0\n"), "{shown}");
    assert_eq!(scene.lock_text(), before);
    scene.install(&["--update", "--yes"]);
    assert_ne!(scene.lock_text(), before);
    assert_eq!(scene.check(), [] as [&str; 0]);
}

#[test]
fn a_changed_file_a_gone_package_and_a_refused_token_are_told_apart() {
    let scene = Scene::npm();
    let archive = "/files/answer-1.0.0.tgz";
    scene.registry.set(archive, Reply::Bytes(b"something else".to_vec()));
    let changed = scene.install_fails(65);
    assert!(changed.contains("another digest than the lock or the registry says"), "{changed}");
    assert_eq!(scene.lock_text(), None);
    scene.registry.remove("/answer");
    let gone = scene.install_fails(69);
    assert!(gone.contains("the npm registry does not have it"), "{gone}");
    scene.registry.set("/answer", Reply::Status(401));
    let refused = scene.install_fails(77);
    assert!(refused.contains("refused the credential") && !refused.contains(TOKEN), "{refused}");
}

#[test]
fn an_installation_reaches_no_host_but_the_registry() {
    let scene = Scene::npm();
    let elsewhere = "http://files.other.example/answer.tgz".to_owned();
    scene.registry.set("/files/answer-1.0.0.tgz", Reply::Redirect(elsewhere));
    let refused = scene.install_fails(69);
    assert!(refused.contains("it wanted to reach files.other.example:443"), "{refused}");
}

#[test]
fn an_installation_that_is_killed_leaves_nothing_that_is_used() {
    let mut scene = Scene::npm();
    let archive = "/files/answer-1.0.0.tgz";
    let (held, gone) = std::sync::mpsc::channel();
    scene.registry.set(archive, Reply::Held(held));
    let mut install = Running::spawn(scene.command(&["install", "--yes"]), "cofferdam install");
    wait_until("npm asks for the archive", || {
        scene.registry.take_requests().iter().any(|request| request.path == archive)
    });
    let started = descendants(install.id());
    assert!(started.len() > 1, "npm runs: {started:?}");
    install.kill9();
    gone.recv_timeout(std::time::Duration::from_secs(20)).expect("npm is ended with it");
    wait_until("all its processes are gone", || !process_ids().any(|id| started.contains(&id)));
    assert_eq!((scene.lock_text(), scene.check()), (None, vec!["package-lock".to_owned()]));
    assert_eq!(scene.installed().len(), 1, "it was interrupted while it installed");
    scene.registry.publish_npm();
    scene.install(&["--yes"]);
    let tree = scene.tree();
    assert!(tree.join("node_modules/answer/index.js").is_file());
    scene.world.start_sidecar();
    assert_eq!(scene.world.connected("tools").call_text("answer", json!({})), "answer of 1.0.0 ");
}

fn descendants(process: u32) -> Vec<u32> {
    let children = children_of(process);
    children.iter().copied().chain(children.iter().flat_map(|child| descendants(*child))).collect()
}
