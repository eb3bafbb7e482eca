//! Locks and stores that are damaged, foreign or in disagreement: a finding of `check`, and a server that does not start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use cofferdam_tests::server::Server;

use crate::Scene;

/// Changes an installed package, and returns what `check` finds and what a call is answered.
#[track_caller]
fn after(change: impl FnOnce(&mut Scene)) -> (Vec<String>, String) {
    let mut scene = Scene::npm();
    scene.install(&["--yes"]);
    assert_eq!(scene.check(), [] as [&str; 0]);
    change(&mut scene);
    (scene.check(), scene.start_error())
}

#[test]
fn a_lock_that_is_cut_or_was_changed_is_not_used() {
    for change in
        [|text: &str| text[..text.len() / 2].to_owned(), |text: &str| text.replace("sha512-", "sha512-A")]
    {
        let (found, error) = after(|scene| {
            let text = scene.lock_text().expect("a lock");
            fs::write(scene.lock(), change(&text)).expect("write the lock");
        });
        assert_eq!(found, ["package-lock"]);
        assert!(error.contains("`cofferdam install tools`"), "{error}");
    }
}

#[test]
fn a_lock_of_another_package_or_without_the_server_is_not_used() {
    let (found, _) = after(|scene| {
        scene.world.rewrite(|world| world.server("tools", Server::package("npm:@fixture/server@1.0.1")));
    });
    assert_eq!(found, ["package-lock"]);
    let (found, _) = after(|scene| fs::remove_file(scene.lock()).expect("remove the lock"));
    assert_eq!(found, ["package-lock"]);
}

#[test]
fn changed_files_of_a_package_are_not_started() {
    let (found, error) = after(|scene| {
        let file = scene.tree().join("node_modules/answer/index.js");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("make it writable");
        fs::write(&file, "module.exports = 'something else';\n").expect("write to it");
    });
    assert_eq!(found, ["package-not-installed"]);
    assert!(error.contains("`cofferdam install tools`"), "{error}");
}

#[test]
fn a_package_that_was_removed_is_installed_again_as_it_is_locked() {
    let mut scene = Scene::npm();
    scene.install(&["--yes"]);
    let lock = scene.lock_text();
    fs::rename(scene.world.layout().state.join("packages"), scene.home.path().join("moved"))
        .expect("move the store");
    assert_eq!(scene.check(), ["package-not-installed"]);
    scene.start_error();
    // Nothing is decided, so nobody is asked.
    assert!(scene.install(&[]).contains("1 installed, 0 unchanged\n"));
    assert_eq!((scene.lock_text(), scene.check()), (lock, Vec::new()));
}
