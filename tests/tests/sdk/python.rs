//! The Python SDK.

use std::process::Command;

use cofferdam_tests::process::command;
use cofferdam_tests::tools::Tool;

use super::setup::{SdkSetup, first_code_block, packaging, run};

/// A Python command with these arguments, in `packaging/python`; `None` if there is no Python.
fn python(arguments: &[&str]) -> Option<Command> {
    let mut script = command(Tool::Python.path()?);
    script.args(arguments).current_dir(packaging().join("python"));
    Some(script)
}

/// The command for one scenario of `scenarios.py`; an unclosed resource (ResourceWarning) fails it.
fn scenario_command(name: &str) -> Option<Command> {
    let file = packaging().join("python/tests/scenarios.py");
    python(&["-W", "error::ResourceWarning:cofferdam_sdk", &file.to_string_lossy(), name])
}

fn add_package_path(script: &mut Command) {
    script.env("PYTHONPATH", packaging().join("python/src")).env("PYTHONDONTWRITEBYTECODE", "1");
}

/// Runs a scenario with a sidecar on this host.
#[track_caller]
fn assert_scenario_succeeds(name: &str) {
    let (Some(mut script), Some(setup)) = (scenario_command(name), SdkSetup::new()) else { return };
    setup.use_socket(&mut script);
    add_package_path(&mut script);
    assert!(run(script, name).contains("done\n"));
}

#[test]
fn a_sandbox_of_the_e2b_sdk_is_attached_while_the_block_runs() {
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
fn refused_requests_raise_specific_exceptions_and_timeouts_apply() {
    assert_scenario_succeeds("refusals");
}

#[test]
fn sandboxes_are_enrolled_and_changes_watched() {
    assert_scenario_succeeds("enrol_and_watch");
}

#[test]
fn over_tls_the_bearer_token_and_the_server_certificate_are_verified() {
    let (Some(mut script), Some(setup)) = (scenario_command("over_tls"), SdkSetup::new()) else { return };
    let token = setup.use_tls(&mut script);
    add_package_path(&mut script);
    let printed = run(script, "over_tls");
    assert!(printed.contains("done\n") && !printed.contains(&token));
}

#[test]
fn the_sdk_reports_that_the_sidecar_has_exited() {
    let (Some(mut script), Some(mut setup)) = (scenario_command("sidecar_gone"), SdkSetup::new()) else {
        return;
    };
    setup.use_socket(&mut script);
    add_package_path(&mut script);
    script.env("SIDECAR", setup.world.sidecar().id().to_string());
    assert!(run(script, "sidecar_gone").contains("done\n"));
}

#[test]
fn the_quick_start_works_as_written() {
    let readme = std::fs::read_to_string(packaging().join("python/README.md")).expect("there is a README");
    let (Some(mut script), Some(setup)) =
        (python(&["-c", &first_code_block(&readme, "python")]), SdkSetup::new())
    else {
        return;
    };
    setup.use_socket(&mut script);
    add_package_path(&mut script);
    let printed = run(script, "the quick start");
    assert!(printed.contains("tools"), "{printed}");
}

#[test]
fn the_quick_start_of_the_guide_for_orchestrators_works_as_written() {
    let page = include_str!("../../../packaging/guide/quick-starts.md");
    let (Some(mut script), Some(setup)) =
        (python(&["-c", &first_code_block(page, "python")]), SdkSetup::new())
    else {
        return;
    };
    setup.use_socket(&mut script);
    add_package_path(&mut script);
    let printed = run(script, "the quick start");
    assert!(printed.lines().any(|line| line == "tools"), "{printed}");
}

#[test]
fn the_python_unit_tests_pass() {
    for file in ["tests/test_types.py", "tests/test_pure.py"] {
        let Some(mut script) = python(&[file]) else { return };
        add_package_path(&mut script);
        let printed = run(script, file);
        assert!(printed.contains("\nOK\n"), "{printed}");
    }
}

#[test]
fn mypy_accepts_the_package_in_strict_mode() {
    let cache = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(mut script) = python(&["-m", "mypy", "src", "--cache-dir", &cache.path().to_string_lossy()])
    else {
        return;
    };
    script.env("PYTHONDONTWRITEBYTECODE", "1");
    assert!(run(script, "mypy").starts_with("Success"));
}
