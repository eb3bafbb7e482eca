//! Response wrapping: secret-ids are unwrapped once, by the sidecar, or raise an alert.

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::vault::app_role_with;
use cofferdam_tests::vault_logins::wrap;
use cofferdam_vault::login::{Method, SecretId};
use cofferdam_vault::{Kind, Problem, UnwrappedBy};
use serde_json::json;

use crate::support::{client, create_app_role, explained, log_in, token, value, write_file};

fn method(role_id_file: std::path::PathBuf, file: std::path::PathBuf, role: &str) -> Method {
    let secret_id = SecretId::Wrapped { file, role: role.to_owned() };
    Method::AppRole { mount: "approle".into(), role_id_file, secret_id }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapping_token_is_looked_up_without_use_and_unwrapped_once() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let wrap = token(&wrap(&server, "auth/token/create", &json!({"policies": ["default"], "ttl": "1m"})));
    for _ in 0..2 {
        assert_eq!(vault.wrapping_lookup(&wrap).await.unwrap().creation_path, "auth/token/create");
    }
    let opened = vault.unwrap(&wrap).await.unwrap();
    assert!(
        vault.lookup_self(&opened.auth.unwrap().token).await.is_ok(),
        "the unwrapped login's token is not valid"
    );
    assert_eq!(vault.unwrap(&wrap).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapped_secret_id_is_unwrapped_once_and_used_for_every_later_login() {
    let Some(server) = OpenBao::dev() else { return };
    let role_id = create_app_role(&server, "2s", "3s");
    let wrapped =
        write_file(&server, "wrapped", &wrap(&server, "auth/approle/role/agent/secret-id", &json!({})));
    let test_login = log_in(client(&server), method(role_id.clone(), wrapped.clone(), "agent"));
    let first = test_login.wait_for_token(1).await;
    let later = test_login.wait_for_token(3).await;
    assert_ne!(value(&first.token), value(&later.token));

    let thief = log_in(client(&server), method(role_id, wrapped.clone(), "agent"));
    let alert = thief.login.current().await.unwrap_err();
    assert_eq!(alert.kind(), Kind::Alert, "{}", alert.explained());
    assert!(matches!(alert.problem, Problem::WrapSpent { by: UnwrappedBy::AnotherParty }), "{alert:?}");
    assert!(
        alert.explained().contains("ALERT") && alert.explained().contains("destroy"),
        "{}",
        alert.explained()
    );
    let text = std::fs::read_to_string(&wrapped).unwrap();
    assert!(!explained(&alert).contains(&text));
    // After a new wrapping token is delivered the login succeeds without a restart.
    write_file(&server, "wrapped", &wrap(&server, "auth/approle/role/agent/secret-id", &json!({})));
    thief.wait_for_token(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapping_token_created_elsewhere_is_never_unwrapped() {
    let Some(server) = OpenBao::dev() else { return };
    let role_id = create_app_role(&server, "60s", "1h");
    server.app_role("other", &mut app_role_with(&["default"], "60s"));
    let forged = wrap(&server, "sys/wrapping/wrap", &json!({"secret_id": "chosen-by-an-attacker"}));
    let others = wrap(&server, "auth/approle/role/other/secret-id", &json!({}));
    // The right path is a prefix of its path.
    server.app_role("agent2", &mut app_role_with(&["default"], "60s"));
    let longer = wrap(&server, "auth/approle/role/agent2/secret-id", &json!({}));
    let custom = wrap(
        &server,
        "auth/approle/role/agent/custom-secret-id",
        &json!({"secret_id": "chosen-by-an-attacker"}),
    );
    for wrapped in [&forged, &others, &longer, &custom] {
        let test_login = log_in(
            client(&server),
            method(role_id.clone(), write_file(&server, "wrapped", wrapped), "agent"),
        );
        let alert = test_login.login.current().await.unwrap_err();
        assert!(matches!(alert.problem, Problem::WrapNotFromRole { .. }), "{alert:?}");
        assert_eq!(alert.kind(), Kind::Alert);
        assert!(
            client(&server).wrapping_lookup(&token(wrapped)).await.is_ok(),
            "the wrapping token was unwrapped"
        );
    }
}
