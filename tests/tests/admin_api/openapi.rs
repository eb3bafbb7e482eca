//! Compares the OpenAPI document with a running sidecar, with schemathesis.

use std::path::Path;
use std::process::{Output, Stdio};

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;

use super::tls::Remote;
use super::*;

/// Excluded routes: the stream of events does not end, and schemathesis does not support upgrades.
const STREAMS: &str = "^/v1/(events|attach)";
/// The default `ttl` of a grant.
const TTL_OF_DEV_MS: u64 = 8 * 60 * 60 * 1000;
const FOR_ADMINISTRATORS: &str = "^/v1/(tokens|reload)";

/// Sends requests with a token and with a certificate, and with values that this sidecar accepts, so that some succeed.
#[test]
fn schemathesis_finds_no_contradiction_between_document_and_sidecar() {
    let Some(schemathesis) = Tool::Schemathesis.path() else { return };
    let remote = Remote::start();
    let document = with_values_of_this_sidecar(&remote.world);
    let (certificate, key) = remote.clients.client("orchestrator").write(remote.files.path(), "client");
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    // A certificate authenticates a request that has no header for it.
    let certified =
        ["--request-cert", &certificate, "--request-cert-key", &key, "--exclude-checks", "ignored_auth"];
    let with_certificate = [&["--include-path-regex", FOR_ADMINISTRATORS], &certified[..]].concat();
    let header = token_header(&remote);
    let with_token = ["--exclude-path-regex", STREAMS, "--header", &header];
    for arguments in [&with_token[..], &with_certificate] {
        let output = check(&schemathesis, &remote, &document, arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(!remote.world.log().contains("panicked"), "{}", remote.world.log());
    let listed = AdminClient::socket(&remote.world).get("/v1/enrolments").ok();
    assert!(!listed["enrolments"].as_array().unwrap().is_empty(), "no request was carried out");
}

/// The test above would fail if a response contradicted the document.
#[test]
fn schemathesis_finds_a_response_of_another_type() {
    let Some(schemathesis) = Tool::Schemathesis.path() else { return };
    let remote = Remote::start();
    let mut document = with_values_of_this_sidecar(&remote.world);
    let response = &mut document["paths"]["/v1/enrolments"]["post"]["responses"]["200"];
    let field = &mut response["content"]["application/json"]["schema"]["properties"]["expires-in-seconds"];
    assert_eq!(field["type"], "integer");
    *field = json!({"type": "string"});
    let header = token_header(&remote);
    let arguments = ["--include-path-regex", "^/v1/enrolments$", "--header", &header];
    let output = check(&schemathesis, &remote, &document, &arguments);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("is not of type \"string\""), "{printed}");
}

fn token_header(remote: &Remote) -> String {
    let token = remote.world.cofferdam_text(&["token", "create", "--grant", "dev"]);
    format!("Authorization: Bearer {}", token.trim())
}

/// Runs schemathesis with this document against the sidecar.
#[track_caller]
fn check(schemathesis: &Path, remote: &Remote, document: &Value, arguments: &[&str]) -> Output {
    let directory = remote.files.path();
    let file = directory.join("openapi.json");
    std::fs::write(&file, document.to_string()).expect("a temporary directory is writable");
    let mut run = command(schemathesis);
    run.env("HOME", directory).current_dir(directory).stdin(Stdio::null());
    run.arg("run").arg(&file).args(["--url", &format!("https://{}", remote.address)]);
    run.arg("--tls-verify").arg(directory.join("authority.pem")).args(arguments);
    run.args(["--phases", "coverage,fuzzing", "--seed", "1", "--max-examples", "20", "--no-color"]);
    output_of(run, "schemathesis")
}

/// The served document, narrowed to a grant that exists and to lifetimes that it allows.
fn with_values_of_this_sidecar(world: &World) -> Value {
    let mut document = AdminClient::socket(world).get("/v1/openapi.json").ok();
    for path in ["/v1/enrolments", "/v1/tokens"] {
        let schema =
            &mut document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let fields = &mut schema["properties"];
        assert!(fields["ttl-ms"]["maximum"].is_number(), "{fields}");
        match path {
            "/v1/tokens" => fields["grants"]["items"] = json!({"const": "dev"}),
            _ => {
                fields["grant"] = json!({"const": "dev"});
                fields["ttl-ms"]["maximum"] = json!(TTL_OF_DEV_MS);
            }
        }
    }
    document
}
