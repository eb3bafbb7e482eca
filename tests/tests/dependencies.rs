//! What the shipped programs are built from, according to `cargo tree`, and a shim that stays small.

use std::collections::BTreeSet;
use std::path::Path;

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::cannot_run;

/// Another Vault client, and the HTTP client that it uses. The sidecar is built with them for the request types of
/// `vault setup`, which our own client sends.
const VAULT_CLIENT: [&str; 3] = ["reqwest", "rustify", "vaultrs"];

#[test]
fn the_shim_is_built_without_a_vault_client() {
    let found = crates_of("shim");
    assert!(found.contains("rustls"), "`cargo tree` for the shim does not list rustls: {found:?}");
    let foreign: Vec<_> = VAULT_CLIENT.iter().filter(|name| found.contains(**name)).collect();
    assert!(foreign.is_empty(), "the shim is built with {foreign:?}");
}

#[test]
fn only_vault_setup_uses_the_request_types_of_another_vault_client() {
    let sidecar = crates_of("sidecar");
    assert!(sidecar.contains("cofferdam-vault-setup") && sidecar.contains("vaultrs"), "{sidecar:?}");
    for folder in [
        "audit",
        "egress",
        "net",
        "packages",
        "platforms",
        "policy",
        "process",
        "scrub",
        "secrets",
        "servers",
        "vault",
    ] {
        let found = crates_of(&format!("sidecar/{folder}"));
        let foreign: Vec<_> = VAULT_CLIENT.iter().filter(|name| found.contains(**name)).collect();
        assert!(foreign.is_empty(), "sidecar/{folder} is built with {foreign:?}");
    }
    // The types describe requests. What would send them is not named in the crate's sources.
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sidecar/vault-setup/src");
    for entry in std::fs::read_dir(sources).expect("the crate has sources").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a source is text");
        for sender in ["VaultClient", "vaultrs::client", "rustify::client", "reqwest", ".exec("] {
            assert!(!text.contains(sender), "{} uses `{sender}`", entry.path().display());
        }
    }
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
