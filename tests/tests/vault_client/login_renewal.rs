//! A login over time: renewals, the maximum lifetime, and tokens that are revoked early.

use std::path::PathBuf;

use cofferdam_tests::openbao::{AppRole, OpenBao};
use cofferdam_tests::vault_fault_proxy::VaultFaultProxy;
use cofferdam_vault::Kind;
use cofferdam_vault::login::{Method, SecretId};

use crate::support::{client, client_at, create_app_role, eventually, log_in, secret_id, value, write_file};

fn method(server: &OpenBao, role_id_file: PathBuf) -> Method {
    let file = write_file(server, "secret-id", &secret_id(server));
    Method::AppRole { mount: "approle".into(), role_id_file, secret_id: SecretId::Plain { file } }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_again_and_again_and_stays_the_same() {
    let Some(server) = OpenBao::dev() else { return };
    let role_id = create_app_role(&server, "2s", "1h");
    let test_login = log_in(client(&server), method(&server, role_id));
    let first = test_login.login.current().await.unwrap();
    let mut ends = vec![first.expires.unwrap()];
    // Four renewals take more than twice the token's lifetime.
    while ends.len() < 5 {
        let last = ends[ends.len() - 1];
        let mut end = last;
        eventually("the token was renewed", async || {
            end = test_login.login.current().await.unwrap().expires.unwrap();
            end > last
        })
        .await;
        ends.push(end);
    }
    let now = test_login.login.current().await.unwrap();
    assert_eq!((now.token_number, value(&now.token)), (1, value(&first.token)));
    assert!(client(&server).lookup_self(&first.token).await.is_ok(), "Vault has not renewed the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_its_maximum_a_token_is_replaced_while_it_still_lives() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let role_id = create_app_role(&server, "6s", "9s");
    let test_login = log_in(vault.clone(), method(&server, role_id));
    let first = test_login.login.current().await.unwrap();
    let second = test_login.wait_for_token(2).await;
    assert_ne!(value(&first.token), value(&second.token));
    vault.lookup_self(&first.token).await.expect("the old token overlaps with the new one");
    vault.lookup_self(&second.token).await.unwrap();
    test_login.login.end().await.unwrap();
    for token in [&first.token, &second.token] {
        assert_eq!(
            vault.lookup_self(token).await.unwrap_err().kind(),
            Kind::Denied,
            "a token was not revoked with its login"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_renewed_is_replaced_while_it_still_lives() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let role_id = create_app_role(&server, "6s", "6s");
    server.app_role("agent", AppRole::default().token_type("batch").token_ttl("6s"));
    let test_login = log_in(vault.clone(), method(&server, role_id));
    let first = test_login.login.current().await.unwrap();
    assert!(!first.renewable && first.accessor.is_none());
    test_login.wait_for_token(2).await;
    vault.lookup_self(&first.token).await.expect("the old token overlaps with the new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_revoked_by_others_is_replaced_after_a_refused_request() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let role_id = create_app_role(&server, "10m", "1h");
    let proxy = VaultFaultProxy::in_front_of(server.listens_at);
    let test_login = log_in(client_at(&proxy.address()), method(&server, role_id));
    let first = test_login.login.current().await.unwrap();
    // The token is refused by its policies but valid: it is not replaced.
    assert_eq!(vault.read(&first.token, "sys/mounts").await.unwrap_err().kind(), Kind::Denied);
    // The task verifies one refusal after the other: when it starts the second, the first has had its effect.
    for verifications in 1..=2 {
        test_login.login.report_refusal(first.token_number);
        eventually("the task verifies the refused token, or replaces it", async || {
            let requests = |path| proxy.count(path);
            requests("auth/token/lookup-self") == verifications || requests("auth/approle/login") > 1
        })
        .await;
    }
    assert_eq!(proxy.count("auth/approle/login"), 1, "{:?}", proxy.seen());
    let current = test_login.login.current().await.unwrap();
    assert_eq!((current.token_number, value(&current.token)), (1, value(&first.token)));
    let accessor = first.accessor.as_ref().unwrap().as_str();
    server.revoke_accessor(accessor);
    assert_eq!(vault.lookup_self(&first.token).await.unwrap_err().kind(), Kind::Denied);
    test_login.login.report_refusal(first.token_number);
    let second = test_login.wait_for_token(2).await;
    vault.lookup_self(&second.token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_revoked_before_its_renewal_is_replaced_at_the_renewal() {
    let Some(server) = OpenBao::dev() else { return };
    let role_id = create_app_role(&server, "3s", "1h");
    let test_login = log_in(client(&server), method(&server, role_id));
    let first = test_login.login.current().await.unwrap();
    let accessor = first.accessor.as_ref().unwrap().as_str();
    server.revoke_accessor(accessor);
    test_login.wait_for_token(2).await;
}
