//! The Python SDK.

use std::process::Command;

use cofferdam_tests::process::command;
use cofferdam_tests::tools::Tool;

use super::setup::{Setup, first_block, packaging, run};

/// Python with the package on its path, for a script with these arguments.
fn python(arguments: &[&str]) -> Option<Command> {
    let mut script = command(Tool::Python.path()?);
    script.args(arguments).current_dir(packaging().join("python"));
    Some(script)
}

/// Python with one of the scenarios; connections and tasks that it leaves open are errors.
fn scenario(name: &str) -> Option<Command> {
    let file = packaging().join("python/tests/scenarios.py");
    python(&["-W", "error::ResourceWarning:cofferdam_sdk", &file.to_string_lossy(), name])
}

fn with_package(script: &mut Command) {
    script.env("PYTHONPATH", packaging().join("python/src")).env("PYTHONDONTWRITEBYTECODE", "1");
}

/// Runs a scenario with a sidecar on this host.
#[track_caller]
fn assert_scenario_succeeds(name: &str) {
    let (Some(mut script), Some(setup)) = (scenario(name), Setup::new()) else { return };
    setup.on_socket(&mut script);
    with_package(&mut script);
    assert!(run(script, name).contains("done\n"));
}

#[test]
fn a_sandbox_of_the_e2b_sdk_is_attached_for_the_time_of_a_block() {
    assert_scenario_succeeds("e2b_sync");
}

#[test]
fn a_sandbox_of_the_async_e2b_sdk_is_attached_until_the_block_is_left_or_cancelled() {
    assert_scenario_succeeds("e2b_async");
}

#[test]
fn a_sandbox_of_the_daytona_sdk_is_attached() {
    assert_scenario_succeeds("daytona_sync");
}

#[test]
fn a_sandbox_of_the_async_daytona_sdk_is_attached() {
    assert_scenario_succeeds("daytona_async");
}

#[test]
fn refusals_are_typed_and_deadlines_hold() {
    assert_scenario_succeeds("refusals");
}

#[test]
fn sandboxes_are_enrolled_and_changes_watched() {
    assert_scenario_succeeds("enrol_and_watch");
}

#[test]
fn tokens_and_authorities_are_checked_over_tls() {
    let (Some(mut script), Some(setup)) = (scenario("over_tls"), Setup::new()) else { return };
    let token = setup.over_tls(&mut script);
    with_package(&mut script);
    let printed = run(script, "over_tls");
    assert!(printed.contains("done\n") && !printed.contains(&token));
}

#[test]
fn a_sidecar_that_is_gone_is_noticed() {
    let (Some(mut script), Some(mut setup)) = (scenario("sidecar_gone"), Setup::new()) else { return };
    setup.on_socket(&mut script);
    with_package(&mut script);
    script.env("SIDECAR", setup.world.sidecar().id().to_string());
    assert!(run(script, "sidecar_gone").contains("done\n"));
}

#[test]
fn the_quick_start_works_as_written() {
    let readme = std::fs::read_to_string(packaging().join("python/README.md")).expect("there is a README");
    let (Some(mut script), Some(setup)) = (python(&["-c", &first_block(&readme, "python")]), Setup::new())
    else {
        return;
    };
    setup.on_socket(&mut script);
    with_package(&mut script);
    let printed = run(script, "the quick start");
    assert!(printed.contains("tools"), "{printed}");
}

#[test]
fn the_quick_start_of_the_guide_for_orchestrators_works_as_written() {
    let page = include_str!("../../../packaging/guide/quick-starts.md");
    let (Some(mut script), Some(setup)) = (python(&["-c", &first_block(page, "python")]), Setup::new())
    else {
        return;
    };
    setup.on_socket(&mut script);
    with_package(&mut script);
    let printed = run(script, "the quick start");
    assert!(printed.lines().any(|line| line == "tools"), "{printed}");
}

#[test]
fn types_responses_and_settings_are_right() {
    for file in ["tests/test_types.py", "tests/test_pure.py"] {
        let Some(mut script) = python(&[file]) else { return };
        with_package(&mut script);
        let printed = run(script, file);
        assert!(printed.contains("\nOK\n"), "{printed}");
    }
}

#[test]
fn the_package_is_typed_strictly() {
    let cache = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(mut script) = python(&["-m", "mypy", "src", "--cache-dir", &cache.path().to_string_lossy()])
    else {
        return;
    };
    script.env("PYTHONDONTWRITEBYTECODE", "1");
    assert!(run(script, "mypy").starts_with("Success"));
}
