//! What the shipped programs are built from: no crates for tests only, according to `cargo tree`, and a shim that stays small.

use std::collections::BTreeSet;
use std::path::Path;

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::cannot_run;

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

/// It is uploaded into sandboxes, and copied into images.
#[test]
fn the_static_shim_has_at_most_two_and_a_half_megabytes() {
    const MAX_BYTES: u64 = 2_500_000;
    let Some(shim) = std::env::var_os("COFFERDAM_SHIM_BIN") else {
        return cannot_run("COFFERDAM_SHIM_BIN does not name the static shim; tests/run builds it");
    };
    let size = std::fs::metadata(&shim).expect("the shim is built").len();
    assert!(size <= MAX_BYTES, "{} has {size} bytes", Path::new(&shim).display());
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
