//! Each login method, with a real server.

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::encodings::base64url;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::vault::new_token;
use cofferdam_tests::vault_logins::{service_account, user, web_token};
use cofferdam_vault::Kind;
use cofferdam_vault::login::{Method, SecretId};
use serde_json::json;

use crate::support::{
    client, client_over_tls, create_app_role, eventually, explained, log_in, secret_id, value, write_file,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_is_renewed_read_again_and_never_revoked() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let make =
        |ttl: &str, max: &str| server.create_token(new_token(&["default"]).ttl(ttl).explicit_max_ttl(max));
    let first = make("3s", "5s");
    let path = write_file(&server, "token", &format!("{first}\n"));
    let test_login = log_in(vault.clone(), Method::TokenFile { path: path.clone() });
    let held = test_login.wait_for_token(1).await;
    assert_eq!(value(&held.token), first);
    assert!(held.renewable && held.accessor.is_some() && held.policies == ["default"]);
    let second = make("1h", "2h");
    write_file(&server, "token", &second);
    let later = test_login.wait_for_token(2).await;
    assert_eq!(value(&later.token), second, "the file is read again before the token expires");
    test_login.login.end().await.unwrap();
    assert!(vault.lookup_self(&later.token).await.is_ok(), "a user's token was revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approle_logs_in_and_its_token_is_revoked_at_the_end() {
    let Some(server) = OpenBao::dev() else { return };
    let vault = client(&server);
    let role_id_file = create_app_role(&server, "60s", "1h");
    let secret = write_file(&server, "secret-id", &format!("{}\n", secret_id(&server)));
    let method = || Method::AppRole {
        mount: "approle".into(),
        role_id_file: role_id_file.clone(),
        secret_id: SecretId::Plain { file: secret.clone() },
    };
    let test_login = log_in(vault.clone(), method());
    let held = test_login.login.current().await.unwrap();
    assert_eq!(held.token_number, 1);
    assert!(vault.lookup_self(&held.token).await.is_ok());
    test_login.login.end().await.unwrap();
    assert_eq!(vault.lookup_self(&held.token).await.unwrap_err().kind(), Kind::Denied);
    assert_eq!(test_login.login.current().await.unwrap_err().kind(), Kind::Stopped);

    let wrong = "a-secret-id-that-was-never-issued";
    write_file(&server, "secret-id", wrong);
    let refused = log_in(vault.clone(), method()).login.current().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.explained());
    assert!(!explained(&refused).contains(wrong));
    std::fs::remove_file(&secret).unwrap();
    let test_login = log_in(vault, method());
    let missing = test_login.login.current().await.unwrap_err();
    assert_eq!(missing.kind(), Kind::Credential);
    assert!(missing.explained().contains("secret-id"), "{}", missing.explained());
    write_file(&server, "secret-id", &secret_id(&server));
    test_login.wait_for_token(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_logs_in_with_a_password() {
    let Some(server) = OpenBao::dev() else { return };
    server.enable_login("people", "userpass");
    let password = "correct horse \"battery\" staple";
    user(&server, "people", "agent", password, &["default"]);
    let password_file = write_file(&server, "password", &format!("{password}\r\n"));
    let method = |username: &str| Method::Userpass {
        mount: "people".into(),
        username: username.into(),
        password_file: password_file.clone(),
    };
    let held = log_in(client(&server), method("agent")).login.current().await.unwrap();
    assert_eq!(held.policies, ["default"]);
    let refused = log_in(client(&server), method("unknown")).login.current().await.unwrap_err();
    assert!(matches!(refused.kind(), Kind::Invalid | Kind::Denied), "{}", refused.explained());
    assert!(!explained(&refused).contains("correct horse"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_logs_in_and_one_of_another_authority_does_not() {
    let Some(server) = OpenBao::configured() else { return };
    let clients = Authority::new();
    server.enable_login("cert", "cert");
    let role = json!({"certificate": clients.pem(), "allowed_common_names": ["agent.internal"], "token_policies": ["default"], "token_ttl": "2s", "token_max_ttl": "1h"});
    server.api("POST", "auth/cert/certs/agent", role);
    let ca_file = server.tls.as_ref().unwrap().ca_file.clone();
    let directory = server.directory.path();
    let method = |(certificate_file, key_file)| Method::Cert {
        mount: "cert".into(),
        certificate_file,
        key_file,
        role: Some("agent".into()),
    };
    let right = clients.client("agent.internal").write(directory, "right");
    let test_login = log_in(client_over_tls(&server, Some(&ca_file)), method(right.clone()));
    let held = test_login.login.current().await.unwrap();
    eventually("the token was renewed with the same certificate", async || {
        test_login.login.current().await.is_ok_and(|now| now.token_number == 1 && now.expires > held.expires)
    })
    .await;
    for wrong in [Authority::new().client("agent.internal"), clients.client("other.internal")] {
        let test_login =
            log_in(client_over_tls(&server, Some(&ca_file)), method(wrong.write(directory, "wrong")));
        let refused = test_login.login.current().await.unwrap_err();
        assert!(matches!(refused.kind(), Kind::Invalid | Kind::Denied), "{}", refused.explained());
    }
    let mixed = (right.0, directory.join("wrong.key"));
    let refused =
        log_in(client_over_tls(&server, Some(&ca_file)), method(mixed)).login.current().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Credential, "{}", refused.explained());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_token_of_the_servers_own_issuer_logs_in() {
    let Some(server) = OpenBao::dev() else { return };
    let jwt = web_token(&server, &["default"]);
    let jwt_file = write_file(&server, "jwt", &jwt);
    let method = Method::Jwt { mount: "jwt".into(), role: "agent".into(), jwt_file };
    let held = log_in(client(&server), method.clone()).login.current().await.unwrap();
    assert_eq!(held.policies, ["default"]);
    let (signed, _) = jwt.rsplit_once('.').unwrap();
    write_file(&server, "jwt", &format!("{signed}.{}", base64url(&[7; 64])));
    let refused = log_in(client(&server), method).login.current().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.explained());
    assert!(!explained(&refused).contains(signed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_of_kubernetes_logs_in() {
    let Some(server) = OpenBao::dev() else { return };
    let jwt = service_account(&server, &["default"]);
    let method = |role: &str| Method::Kubernetes {
        mount: "kubernetes".into(),
        role: role.into(),
        jwt_file: write_file(&server, "jwt", &jwt),
    };
    let held = log_in(client(&server), method("agent")).login.current().await.unwrap();
    assert_eq!(
        client(&server).lookup_self(&held.token).await.unwrap().metadata["service_account_name"],
        "cofferdam"
    );
    let refused = log_in(client(&server), method("other")).login.current().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.explained());
}
