//! `just shim` names what a clean machine lacks before it builds anything.
//!
//! The tests run the real check with a `PATH` of their own, in which a fake `rustc` names the directory of a standard
//! library.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

use cofferdam_tests::process::{command, output_of};

const MACHINE: &str = std::env::consts::ARCH;

/// A machine that has the shell's own programs, and what a test adds.
struct FakeMachine(tempfile::TempDir);

impl FakeMachine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().expect("a temporary directory can be made"));
        for name in ["bash", "uname"] {
            let installed = ["/usr/bin", "/bin"].map(|directory| Path::new(directory).join(name));
            let installed = installed.iter().find(|path| path.exists()).expect("every machine has it");
            symlink(installed, machine.0.path().join(name)).expect("a temporary directory is writable");
        }
        machine
    }

    /// Adds a program that prints this text.
    fn with_program(self, name: &str, prints: &str) -> Self {
        let path = self.0.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho '{prints}'\n")).expect("the directory is writable");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the file is ours");
        self
    }

    /// Adds a `rustc` whose standard library for musl is installed.
    fn with_rust(self) -> Self {
        let library = self.0.path().display().to_string();
        self.with_program("rustc", &library)
    }

    fn check(&self, environment: &[(&str, &str)]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shim/check-toolchain");
        let mut check = command(self.0.path().join("bash"));
        check.arg(script).env_clear().env("PATH", self.0.path()).envs(environment.iter().copied());
        output_of(check, "shim/check-toolchain")
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_compiler_for_musl_is_named_with_its_package() {
    let output = FakeMachine::new().with_rust().check(&[]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let printed = printed(&output);
    assert!(printed.contains("`sudo apt install musl-tools`"), "{printed}");
    assert!(!printed.contains("rustup"), "{printed}");
}

#[test]
fn a_missing_standard_library_is_named_with_its_command() {
    let machine = FakeMachine::new().with_program("musl-gcc", "").with_program("rustc", "/nonexistent");
    let output = machine.check(&[]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let printed = printed(&output);
    assert!(printed.contains(&format!("`rustup target add {MACHINE}-unknown-linux-musl`")), "{printed}");
    assert!(!printed.contains("musl-tools"), "{printed}");
}

#[test]
fn a_machine_with_both_passes_whichever_compiler_it_has() {
    let cross_compiler = format!("{MACHINE}-linux-musl-gcc");
    for compiler in ["musl-gcc", &cross_compiler] {
        let output = FakeMachine::new().with_rust().with_program(compiler, "").check(&[]);
        assert!(output.status.success() && output.stderr.is_empty(), "{compiler}: {output:?}");
    }
    let variable = format!("CC_{MACHINE}_unknown_linux_musl");
    let output = FakeMachine::new().with_rust().check(&[(&variable, "/opt/musl/bin/cc")]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_recipe_checks_before_it_builds() {
    let justfile = include_str!("../../Justfile");
    let recipe: Vec<&str> = justfile.lines().skip_while(|line| *line != "shim:").skip(1).take(2).collect();
    assert!(
        matches!(recipe[..], ["    @shim/check-toolchain", build] if build.contains("cargo build")),
        "{recipe:?}"
    );
}
