//! The real SDKs of E2B work with the double as they do with the platform.

use std::process::Command;

use cofferdam_tests::e2b_double::{API_KEY, E2bDouble};
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2b");

#[test]
fn the_python_sdk_works_on_the_double() {
    let Some(python) = Tool::Python.path() else { return };
    let mut script = command(python);
    script.arg(format!("{DIRECTORY}/sdk.py"));
    assert_runs_every_step(
        script,
        "Python",
        &["create", "files", "input", "pause and resume", "fork", "keys and ids"],
    );
}

#[test]
fn the_javascript_sdk_works_on_the_double() {
    let (Some(node), Some(module)) = (Tool::Node.path(), Tool::E2bSdk.path()) else { return };
    let mut script = command(node);
    script.arg(format!("{DIRECTORY}/sdk.mjs")).env("E2B_MODULE", module);
    assert_runs_every_step(
        script,
        "JavaScript",
        &["create", "files", "input", "pause and resume", "keys and ids"],
    );
}

/// The double's clock is fast, so that keep-alives arrive in every stream that lasts a second.
fn assert_runs_every_step(mut script: Command, name: &str, steps: &[&str]) {
    let Some(double) = E2bDouble::with_speed(100) else { return };
    script.env("E2B_API_URL", double.api_url()).env("E2B_SANDBOX_URL", double.sandbox_url());
    script.env("E2B_API_KEY", API_KEY).env("E2B_DEBUG", "false").env_remove("E2B_DOMAIN");
    let output = output_of(script, name);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    for step in steps {
        assert!(stdout.contains(&format!("step: {step}\n")), "{name} did not run `{step}`:\n{stdout}");
    }
    let log = double.log();
    let secret = |line: &&String| line.contains(API_KEY);
    assert_eq!(log.iter().find(secret), None, "the log contains the API key");
    // As on the platform, the input of SendInput is logged, and that of StreamInput is not.
    let has = |text: &str| log.iter().any(|line| line.contains(text));
    assert!(has("b25lCg=="), "the input `one` of SendInput is not logged");
    assert!(!has("dGhyZWUK"), "the input `three`, which only the Python SDK can stream, is logged");
}
