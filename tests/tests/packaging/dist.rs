//! What `just dist` builds: the same bytes in another folder, and a shim for aarch64 that works. Builds take minutes, so this
//! runs in `just slow`.

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{Running, command, into_file, output_of, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::json;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Builds both shims as they are published, from the sources in `folder`.
#[track_caller]
fn build_shims(folder: &Path, target: &Path) -> Option<[PathBuf; 2]> {
    let tools = Tool::CargoAuditable.path()?;
    let out = tempfile::tempdir().expect("a temporary directory can be made");
    let mut dist: Command = command(folder.join("packaging/dist"));
    dist.arg(out.path()).arg("shims").current_dir(folder);
    let path = std::env::var("PATH").expect("PATH is set");
    let tools = tools.parent().expect("a program is in a directory");
    dist.env("PATH", format!("{path}:{}", tools.display())).env("CARGO_TARGET_DIR", target);
    dist.env("SOURCE_DATE_EPOCH", "1750000000");
    let log = out.path().join("log");
    dist.stdout(into_file(&log)).stderr(into_file(&log));
    let status = Running::spawn(dist, "packaging/dist").wait(PATIENCE * 60);
    assert!(status.success(), "{}", String::from_utf8_lossy(&read(&log)));
    Some(
        ["x86_64", "aarch64"].map(|architecture| {
            target.join(format!("{architecture}-unknown-linux-musl/shim/cofferdam-shim"))
        }),
    )
}

/// A clone of the commit that is checked out, so that both builds have the same commit in `--version`.
#[track_caller]
fn clone_into(folder: &Path) {
    let mut clone = command("git");
    clone.args(["clone", "--quiet"]).arg(root()).arg(folder);
    let output = output_of(clone, "git clone");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "minutes: just slow"]
fn two_builds_of_the_shim_in_different_folders_have_the_same_bytes() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let folders = ["one", "a/folder/with/a/longer/path"].map(|name| directory.path().join(name));
    let mut built = Vec::new();
    for folder in &folders {
        clone_into(folder);
        let Some(shims) = build_shims(folder, &folder.join("target")) else { return };
        built.push(shims);
    }
    for (one, two) in built[0].iter().zip(&built[1]) {
        let (one, two) = (read(one), read(two));
        assert!(!one.is_empty() && one == two, "the builds differ");
        let text = String::from_utf8_lossy(&one);
        let here = directory.path().display().to_string();
        assert!(
            !text.contains(&here) && !text.contains("registry/src"),
            "a folder of this machine is in the shim"
        );
    }
}

/// `COFFERDAM_AARCH64_SHIM_BIN` names one that is built already.
#[test]
#[ignore = "minutes: just slow"]
fn the_shim_for_aarch64_relays_a_call() {
    let Some(emulator) = Tool::QemuAarch64.path() else { return };
    let shim = match std::env::var_os("COFFERDAM_AARCH64_SHIM_BIN") {
        Some(built) => built.into(),
        None => {
            let Some([_, shim]) = build_shims(root(), &root().join("target/dist-shims")) else { return };
            shim
        }
    };
    let world = World::new().server("tools", Server::fixture()).start();
    let mut command = command(emulator);
    command.arg(shim).args(["--server", "tools", "--relay", &world.link()]).env_clear();
    let mut harness = Harness::start(command, "cofferdam-shim for aarch64").initialized();
    assert_eq!(harness.call_text("add", json!({"a": 20, "b": 22})), "42");
    harness.close_stdin();
    assert!(harness.wait_for_exit().success(), "{}", harness.stderr());
}
