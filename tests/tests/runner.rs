//! `tests/runner` loses no test: every listed test is started, and a test without a result has failed. No test is
//! skipped silently, neither by the runner nor by `cargo test`.
//!
//! Most tests run it with a fake `cargo` that builds nothing and returns one test program, a script whose tests behave
//! as their names say.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::process::{Running, command, into_file, is_alive, output_of, read};
use cofferdam_tests::tools::Tool;
use nix::sys::signal::Signal;
use serde_json::json;

/// Behaves like a test program of Rust: lists its tests, or runs the one that is named.
const PROGRAM: &str = r#"#!/usr/bin/env bash
printf '%s\n' "$*" >>"$HOME/calls"
result() { echo "test result: $1. $2 passed; $3 failed; $4 ignored; 0 measured; 0 filtered out"; }
case "$*" in
  *--list*) for name in $TESTS; do echo "$name: test"; done ;;
  *passes*) echo "before the result"; result ok 1 0 0 ;;
  *left_out*) result ok 0 0 1 ;;
  *lacks_a_tool*) echo "  $2: Socat is missing" >>"$COFFERDAM_SKIPPED"; result ok 1 0 0 ;;
  *fails*) echo "what went wrong"; result FAILED 0 1 0; exit 101 ;;
  *crashes*) echo "last words"; kill -SEGV $$ ;;
  *says_nothing*) ;;
  *finds_nothing*) result ok 0 0 0 ;;
  *pretends*) result ok 1 0 0; exit 3 ;;
  *hangs*) setsid sleep 300 & echo $! >"$HOME/descendant"; wait ;;
esac
"#;

/// A fake `cargo`: prints the message that names the program, and records its arguments.
const CARGO: &str = r#"#!/usr/bin/env bash
printf '%s\n' "$*" >>"$HOME/builds"
echo '{"reason":"compiler-message"}'
cat "$HOME/artifact"
"#;

/// A directory with the fake `cargo` and the fake test program, in which the real runner is run.
struct FakeProject {
    directory: tempfile::TempDir,
}

impl FakeProject {
    fn new() -> Self {
        let project = Self { directory: tempfile::tempdir().expect("a temporary directory can be made") };
        project.script("cargo", CARGO);
        let program = project.script("program", PROGRAM);
        let manifest = project.path("Cargo.toml");
        std::fs::write(&manifest, "[package]\nname = \"some-package\"\n")
            .expect("a temporary directory is writable");
        let artifact = json!({
            "reason": "compiler-artifact", "executable": program, "profile": {"test": true},
            "manifest_path": manifest, "target": {"kind": ["test"], "name": "some_tests"},
        });
        std::fs::write(project.path("artifact"), format!("{artifact}\n"))
            .expect("a temporary directory is writable");
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&read(&self.path(name))).into_owned()
    }

    fn script(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a temporary directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("a temporary directory is writable");
        path
    }

    /// The runner, for a program with these tests.
    fn command(&self, tests: &str) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace");
        let mut command = command(root.join("tests/runner"));
        let search =
            format!("{}:{}", self.directory.path().display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", search).env("HOME", self.directory.path()).env("TESTS", tests);
        command.env("CARGO_TARGET_DIR", self.directory.path());
        command
    }

    /// What the runner prints for these tests, and whether it succeeds.
    #[track_caller]
    fn run(&self, tests: &str, arguments: &[&str]) -> (String, bool) {
        let mut command = self.command(tests);
        command.args(arguments);
        let Output { status, stdout, stderr } = output_of(command, "tests/runner");
        assert_eq!(String::from_utf8_lossy(&stderr), "");
        (String::from_utf8_lossy(&stdout).into_owned(), status.success())
    }
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn success_is_reported_in_one_closing_line() {
    let (printed, succeeded) = FakeProject::new().run("passes passes_too left_out", &[]);
    assert!(succeeded, "{printed}");
    assert_eq!(last_line(&printed), "2 passed, 0 failed, 1 skipped");
    assert!(!printed.contains("before the result"), "the output of a passed test is shown: {printed}");
}

#[test]
fn a_test_that_does_not_report_success_has_failed() {
    for test in ["fails", "crashes", "says_nothing", "finds_nothing", "pretends"] {
        let (printed, succeeded) = FakeProject::new().run(&format!("passes {test} passes_too"), &[]);
        assert!(!succeeded, "{test}: {printed}");
        assert_eq!(last_line(&printed), "2 passed, 1 failed, 0 skipped", "{test}");
        let again = format!("tests/run -p some-package --test some_tests -- --exact {test}");
        assert!(printed.contains(&again), "{test}: {printed}");
    }
}

#[test]
fn a_test_that_lacks_a_tool_is_listed_and_does_not_count_as_passed() {
    let (printed, succeeded) = FakeProject::new().run("passes lacks_a_tool lacks_a_tool_too left_out", &[]);
    assert!(succeeded, "{printed}");
    assert_eq!(last_line(&printed), "1 passed, 0 failed, 3 skipped");
    for reason in ["  lacks_a_tool: Socat is missing\n", "  lacks_a_tool_too: Socat is missing\n"] {
        assert!(printed.contains(reason), "{reason}: {printed}");
    }
}

#[test]
fn socat_is_found_on_the_path() {
    let Some(path) = Tool::Socat.path() else { return };
    assert!(path.ends_with("socat") && path.is_file(), "{}", path.display());
}

/// Runs [`socat_is_found_on_the_path`] as `cargo test` does, on a machine without `socat`.
#[test]
fn a_test_that_lacks_a_tool_fails_or_says_that_it_did_not_run() {
    let test = "socat_is_found_on_the_path";
    let run = |variables: &[(&str, &str)]| {
        let program = std::env::current_exe().expect("the test program has a path");
        let mut command = command(program);
        command.args(["--exact", test]).env("PATH", "/nonexistent");
        command.env_remove("CI").env_remove("COFFERDAM_SKIP").env_remove("COFFERDAM_SKIPPED");
        command.envs(variables.iter().copied());
        let Output { status, stdout, stderr } = output_of(command, "the test program");
        let printed = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (printed, status.success())
    };
    let permitted: &[_] = &[("COFFERDAM_SKIP", "1")];
    let (printed, succeeded) = run(permitted);
    assert!(succeeded, "{printed}");
    assert!(printed.contains(&format!("NOT RUN: {test}: Socat is missing")), "{printed}");
    let refused: [&[_]; 3] = [&[], &[("COFFERDAM_SKIP", "0")], &[("COFFERDAM_SKIP", "1"), ("CI", "true")]];
    for variables in refused {
        let (printed, succeeded) = run(variables);
        assert!(!succeeded, "{variables:?}: {printed}");
        for words in ["Socat is missing", "tests/run", "COFFERDAM_SKIP=1"] {
            assert!(printed.contains(words), "{variables:?}: {words}: {printed}");
        }
    }
}

#[test]
fn a_failure_shows_its_output_and_how_it_ended() {
    let (printed, _) = FakeProject::new().run("fails crashes", &[]);
    for words in ["what went wrong", "exit status 101", "last words", "SIGSEGV"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
}

#[test]
fn arguments_reach_cargo_the_listing_and_each_test() {
    let project = FakeProject::new();
    let arguments = ["-p", "some-package", "--test", "some_tests", "pas", "--", "--ignored", "--nocapture"];
    let (printed, _) = project.run("passes", &arguments);
    let cargo = project.text("builds");
    assert!(cargo.trim_end().ends_with("-p some-package --test some_tests"), "{cargo}");
    let calls = project.text("calls");
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls, ["pas --ignored --list --format terse", "--exact passes --ignored --nocapture"]);
    assert!(printed.contains("before the result"), "{printed}");
}

#[test]
fn a_build_that_fails_is_a_failure() {
    let project = FakeProject::new();
    project.script("cargo", "#!/bin/sh\nexit 101\n");
    let (printed, succeeded) = project.run("passes", &[]);
    assert!(!succeeded, "{printed}");
    assert_eq!(project.text("calls"), "", "a test was run after a failed build");
}

#[test]
fn an_interrupted_runner_leaves_nothing_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let project = FakeProject::new();
        let mut command = project.command("hangs");
        command.stdin(Stdio::null()).stdout(into_file(&project.path("out")));
        let mut runner = Running::spawn(command, "tests/runner");
        let descendant = || project.text("descendant").trim().parse::<u32>().ok();
        wait_until("the test runs", || descendant().is_some());
        runner.signal(signal);
        assert!(!runner.wait(cofferdam_tests::deadline::PATIENCE).success());
        wait_until("the test's descendant has exited", || !is_alive(descendant().unwrap()));
        let printed = project.text("out");
        assert!(printed.contains(signal.as_str()) && printed.contains("some_tests::hangs"), "{printed}");
        assert_eq!(last_line(&printed), "0 passed, 1 failed, 0 skipped");
    }
}

#[test]
fn a_hanging_test_is_named_when_the_time_is_over() {
    let project = FakeProject::new();
    let mut command = project.command("passes hangs");
    command.env("COFFERDAM_TEST_TIMEOUT", "3");
    let Output { status, stdout, .. } = output_of(command, "tests/runner");
    let printed = String::from_utf8_lossy(&stdout).into_owned();
    assert!(!status.success() && printed.contains("out of time"), "{printed}");
    assert_eq!(last_line(&printed), "1 passed, 1 failed, 0 skipped");
}
