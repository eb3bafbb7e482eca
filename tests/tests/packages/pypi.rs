//! Packages of the Python package index.

use cofferdam_tests::http::Reply;
use cofferdam_tests::server::Server;
use serde_json::json;

use crate::Scene;
use crate::registry::wheel;

fn scene() -> Scene {
    Scene::new(Server::package("pypi:fixture-server==1.0").line("args = [\"--x\"]"))
}

#[test]
fn a_wheel_is_installed_in_an_environment_of_its_own_and_its_server_answers() {
    let mut scene = scene();
    scene.registry.publish_python();
    let shown = scene.install(&["--yes"]);
    assert!(
        shown.contains(
            "tools: pypi:fixture-server==1.0, 1 package, changes the lock\n  + fixture-server 1.0\n"
        ),
        "{shown}"
    );
    assert_eq!(scene.check(), [] as [&str; 0]);
    assert!(!scene.tree().join("venv/bin/pip").exists(), "a package manager is in the environment");
    scene.registry.take_requests();
    scene.world.start_sidecar();
    assert_eq!(scene.world.connected("tools").call_text("answer", json!({})), "python --x");
    assert_eq!(scene.registry.take_requests().len(), 0);
    assert_eq!(scene.check(), [] as [&str; 0], "the server left its package as it was");
}

#[test]
fn a_changed_wheel_a_gone_package_and_source_code_are_told_apart() {
    let scene = scene();
    let gone = scene.install_fails(69);
    assert!(gone.contains("the Python package index does not have it"), "{gone}");
    let source = "<a href=\"/files/fixture_server-1.0.tar.gz\">fixture_server-1.0.tar.gz</a>";
    scene.registry.set("/simple/fixture-server/", Reply::Page(source.into()));
    let source = scene.install_fails(69);
    assert!(source.contains("only source code") && source.contains("compiler"), "{source}");
    scene.registry.publish_python();
    scene.registry.set("/files/fixture_server-1.0-py3-none-any.whl", Reply::Bytes(wheel("import os")));
    let changed = scene.install_fails(65);
    assert!(changed.contains("another digest"), "{changed}");
}
