//! Crates for tests only are not dependencies of the shipped programs, according to `cargo tree`.

use std::collections::BTreeSet;
use std::path::Path;

use cofferdam_tests::process::{command, output_of};

/// Crates for the tests alone: an independent Vault client, and the HTTP client that it uses.
const TESTS_ONLY: [&str; 3] = ["reqwest", "rustify", "vaultrs"];

#[test]
fn shipped_programs_do_not_depend_on_test_only_crates() {
    for program in ["shim", "sidecar"] {
        let found = crates_of(program);
        assert!(found.contains("rustls"), "`cargo tree` for {program} does not list rustls: {found:?}");
        let foreign: Vec<_> = TESTS_ONLY.iter().filter(|name| found.contains(**name)).collect();
        assert!(foreign.is_empty(), "{program} is built with {foreign:?}");
    }
    let tests = crates_of("tests");
    assert!(
        TESTS_ONLY.iter().all(|name| tests.contains(*name)),
        "a crate of TESTS_ONLY is no longer a dependency of the tests: {tests:?}"
    );
}

/// The names of all crates that a package is built from, with all its features.
fn crates_of(folder: &str) -> BTreeSet<String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join("Cargo.toml");
    let mut cargo = command(env!("CARGO"));
    cargo.args(["tree", "--offline", "--locked", "--all-features", "--edges", "normal,build"]);
    cargo.args(["--prefix", "none", "--format", "{p}", "--manifest-path"]).arg(manifest);
    let tree = String::from_utf8(output_of(cargo, "cargo tree").stdout).expect("cargo writes text");
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}
