//! `cargo install`, which takes the minutes of a release build, and what it depends on.

use std::path::Path;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::{Running, command, output_of};
use serde_json::Value;

use super::commands_of_guide;

pub(crate) const SECTION: &str = "From source";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// `cargo install` would install every program of the package.
#[test]
fn the_package_of_the_sidecar_has_one_program() {
    let mut cargo = command(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline", "--locked"]).current_dir(root());
    let output = output_of(cargo, "cargo metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("the workspace has packages");
    let sidecar = packages.iter().find(|package| package["name"] == "cofferdam").expect("it has the sidecar");
    let targets = sidecar["targets"].as_array().expect("a package has targets");
    let programs: Vec<&str> = targets
        .iter()
        .filter(|target| target["kind"] == serde_json::json!(["bin"]))
        .filter_map(|target| target["name"].as_str())
        .collect();
    assert_eq!(programs, ["cofferdam"]);
}

#[test]
#[ignore = "minutes: just slow"]
fn cargo_installs_a_program_that_says_where_its_shim_comes_from() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let [commands] = &commands_of_guide(SECTION)[..] else { panic!("the guide has one block") };
    let mut install = command("sh");
    install.args(["-ec", commands]).current_dir(root()).env("CARGO_INSTALL_ROOT", directory.path());
    // A release build of everything, on a machine that may be busy.
    let status = Running::spawn(install, "cargo install").wait(PATIENCE * 60);
    assert!(status.success(), "{commands}");
    let program = directory.path().join("bin/cofferdam");
    let mut demo = command(&program);
    demo.arg("demo");
    assert!(output_of(demo, "cofferdam demo").status.success());
    let mut shim = command(&program);
    shim.arg("shim");
    let refused = output_of(shim, "cofferdam shim");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(66), "{said}");
    assert!(
        said.contains("--manifest-path shim/Cargo.toml")
            && said.contains("a packaged `cofferdam` contains it"),
        "{said}"
    );
}
