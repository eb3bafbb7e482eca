//! No environment variable changes which Vault is used, through which proxy, or which authorities are trusted.

use std::path::Path;

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{command, output_of};
use cofferdam_vault::Problem;

use crate::support::{client_at, client_over_tls};

/// Variables with the server's addresses, for the child process below.
const PLAIN: &str = "COFFERDAM_TEST_VAULT_PLAIN";
const SECURE: &str = "COFFERDAM_TEST_VAULT_SECURE";
const INSIDE: &str = "environment::a_client_in_a_misleading_environment";

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_changes_nothing() {
    let Some(server) = OpenBao::configured() else { return };
    let ca_file = &server.tls.as_ref().unwrap().ca_file;
    assert!(client_over_tls(&server, Some(ca_file)).health().await.is_ok());
    let nowhere = format!("http://{}", free_address());
    let mut inside = command(std::env::current_exe().unwrap());
    inside.args(["--exact", INSIDE, "--ignored", "--nocapture"]);
    inside.env(PLAIN, server.address()).env(SECURE, server.tls_address());
    for name in ["SSL_CERT_FILE", "VAULT_CACERT", "BAO_CACERT"] {
        inside.env(name, ca_file);
    }
    inside.env("SSL_CERT_DIR", ca_file.parent().unwrap_or(Path::new("/")));
    for name in
        ["VAULT_ADDR", "BAO_ADDR", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "VAULT_PROXY_ADDR"]
    {
        inside.env(name, &nowhere);
    }
    inside
        .env("VAULT_SKIP_VERIFY", "true")
        .env("VAULT_NAMESPACE", "none-such")
        .env("VAULT_TOKEN", "s.none-such");
    let output = output_of(inside, "a client in a misleading environment");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test above, in a process with other environment variables"]
async fn a_client_in_a_misleading_environment() {
    let (Ok(plain), Ok(secure)) = (std::env::var(PLAIN), std::env::var(SECURE)) else { return };
    assert_eq!(client_at(&plain).health().await.unwrap().status, 200);
    // The variables name the server's authority, but the system does not trust it, so the connection is refused.
    let refused = client_at(&secure).health().await.unwrap_err();
    assert!(matches!(refused.problem, Problem::Unreachable { .. }), "{refused:?}");
    assert!(refused.explained().contains("certificate"), "{}", refused.explained());
}
