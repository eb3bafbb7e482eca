//! A real server that is sealed, frozen, dead, busy, or has another certificate.

use std::time::Duration;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::port::free_address;
use cofferdam_vault::login::{Method, SecretId};
use cofferdam_vault::{Kind, Problem};
use serde_json::json;

use crate::support::{
    client, client_at, client_over_tls, create_app_role, log_in, root, second_address, secret_id, write_file,
};

fn approle_method(server: &OpenBao, ttl: &str) -> Method {
    let role_id_file = create_app_role(server, ttl, "1h");
    let file = write_file(server, "secret-id", &secret_id(server));
    Method::AppRole { mount: "approle".into(), role_id_file, secret_id: SecretId::Plain { file } }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_server_is_reported_and_the_login_recovers_by_itself() {
    let Some(server) = OpenBao::configured() else { return };
    let vault = client(&server);
    let method = approle_method(&server, "60s");
    server.seal();
    let sealed = vault.read(&root(&server), "secret/x").await.unwrap_err();
    assert_eq!(sealed.kind(), Kind::Sealed, "{}", sealed.explained());
    assert!(sealed.explained().contains("unseal"), "{}", sealed.explained());
    let health = vault.health().await.unwrap();
    assert!(health.sealed && health.status == 503, "{health:?}");
    let test_login = log_in(vault, method);
    assert_eq!(test_login.login.current().await.unwrap_err().kind(), Kind::Sealed);
    assert!(!test_login.login.is_logged_in());
    server.unseal();
    test_login.wait_for_token(1).await;
    assert!(test_login.login.is_logged_in());
    assert!(!server.audit().is_empty(), "the configured server wrote no audit log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_frozen_server_times_out_and_may_have_run() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let test_login = log_in(vault.clone(), approle_method(&server, "2s"));
    test_login.login.current().await.unwrap();
    server.freeze();
    let root = root(&server);
    let late = tokio::time::timeout(PATIENCE, vault.read(&root, "sys/mounts")).await.expect("a limit");
    let late = late.unwrap_err();
    assert!(matches!(late.problem, Problem::NoAnswer { .. }), "{late:?}");
    assert_eq!(late.kind(), Kind::Unreachable);
    // The token of two seconds has expired by now, and there is no other.
    assert_eq!(test_login.login.current().await.unwrap_err().kind(), Kind::Unreachable);
    server.thaw();
    test_login.wait_for_token(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_server_is_reported_as_unreachable() {
    let gone = client_at(&format!("http://{}", free_address())).health().await.unwrap_err();
    assert!(matches!(gone.problem, Problem::Unreachable { .. }), "{gone:?}");
    assert!(gone.explained().contains("refused"), "{}", gone.explained());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_configured_authority_is_trusted() {
    let Some(server) = OpenBao::configured() else { return };
    let tls = server.tls.as_ref().unwrap();
    let health = client_over_tls(&server, Some(&tls.ca_file)).health().await.unwrap();
    assert_eq!(health.status, 200);
    let untrusted = Authority::new().write(server.directory.path(), "untrusted");
    for ca_file in [Some(untrusted.as_path()), None] {
        let refused = client_over_tls(&server, ca_file).health().await.unwrap_err();
        assert!(matches!(refused.problem, Problem::Unreachable { .. }), "{refused:?}");
        assert!(refused.explained().contains("certificate"), "{}", refused.explained());
    }
    // The right authority, and a certificate for another name.
    let other = format!("https://{}", second_address(tls.listens_at));
    let settings = cofferdam_vault::ClientSettings {
        address: other.parse().unwrap(),
        namespace: None,
        ca_file: Some(tls.ca_file.clone()),
    };
    let refused = cofferdam_vault::Vault::new(&settings).unwrap().health().await.unwrap_err();
    assert!(refused.explained().contains("not valid for name"), "{}", refused.explained());
    let empty = write_file(&server, "empty.pem", "no certificate at all");
    let settings = cofferdam_vault::ClientSettings { ca_file: Some(empty), ..settings };
    let refused = cofferdam_vault::Vault::new(&settings).unwrap_err();
    assert!(refused.to_string().contains("no certificate"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_reported_as_busy_with_the_time_to_retry() {
    let Some(server) = OpenBao::dev() else { return };
    let (vault, root) = (client(&server), root(&server));
    server.write_secret("app", json!({"a": "b"}));
    server.api("POST", "sys/quotas/config", json!({"enable_rate_limit_response_headers": true}));
    server.api("POST", "sys/quotas/rate-limit/few", json!({"rate": 1, "interval": "1h", "path": "secret/"}));
    vault.read(&root, "secret/data/app").await.unwrap();
    let busy = vault.read(&root, "secret/data/app").await.unwrap_err();
    match busy.kind() {
        Kind::Busy { retry_after: Some(time) } => assert!(time > Duration::ZERO, "{time:?}"),
        kind => panic!("{kind:?}: {}", busy.explained()),
    }
}
