//! The OpenAPI document against the running sidecar, by schemathesis.

use std::process::Stdio;

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;

use super::tls::Remote;
use super::*;

#[test]
fn schemathesis_finds_no_contradiction_between_document_and_sidecar() {
    let Some(schemathesis) = Tool::Schemathesis.path() else { return };
    let remote = Remote::start();
    let token = remote.world.cofferdam_text(&["token", "create", "--grant", "dev"]);
    let document = AdminClient::socket(&remote.world).get("/v1/openapi.json").ok();
    let file = remote.files.path().join("openapi.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let mut run = command(schemathesis);
    run.env("HOME", remote.files.path()).current_dir(remote.files.path()).stdin(Stdio::null());
    run.arg("run").arg(&file).args(["--url", &format!("https://{}", remote.address)]);
    run.arg("--tls-verify").arg(remote.files.path().join("authority.pem"));
    run.args(["--header", &format!("Authorization: Bearer {}", token.trim())]);
    // The stream of events has no end.
    run.args(["--exclude-path", "/v1/events", "--seed", "1", "--max-examples", "20", "--no-color"]);
    run.args(["--phases", "examples,coverage,fuzzing"]);
    let output = output_of(run, "schemathesis");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!remote.world.log().contains("panicked"), "{}", remote.world.log());
    AdminClient::socket(&remote.world).get("/v1/sessions").ok();
}
