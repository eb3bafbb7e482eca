//! The shim's dependencies are fixed, so that a crate cannot be added to the sandbox's binary by accident.

use std::path::Path;

/// To update the list: `COFFERDAM_WRITE_DEPENDENCIES=1 cargo test -p cofferdam-shim dependencies`.
#[test]
#[expect(clippy::disallowed_methods, reason = "cargo lists the dependencies")]
fn the_dependencies_are_the_listed_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(["--target", "x86_64-unknown-linux-musl", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let mut names: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    let found = names.join("\n") + "\n";
    let path = folder.join("dependencies.txt");
    if std::env::var_os("COFFERDAM_WRITE_DEPENDENCIES").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), found);
}
