//! The requests of each login method, as both clients make them.

use cofferdam_tests::certificates::Authority;
use cofferdam_vault::login::SecretId;
use vaultrs::api::auth::{cert, kubernetes, oidc, userpass};

use super::*;

/// The login methods, each at a mount with another name than the default.
pub(super) async fn logins(ours: &RecordedClient) -> Vec<Pair> {
    let mount = || "here".to_owned();
    let (certificate_file, key_file) = Authority::new().client("agent").write(ours.directory.path(), "login");
    let app_role = Method::AppRole {
        mount: mount(),
        role_id_file: ours.write_file("role-id", "role-1"),
        secret_id: SecretId::Plain { file: ours.write_file("secret-id", "secret-1") },
    };
    let by_certificate = |role| Method::Cert {
        mount: mount(),
        certificate_file: certificate_file.clone(),
        key_file: key_file.clone(),
        role,
    };
    let jwt_file = ours.write_file("jwt", "e30.e30.e30");
    let jwt = Method::Jwt { mount: mount(), role: "agent".into(), jwt_file: jwt_file.clone() };
    let service_account = Method::Kubernetes { mount: mount(), role: "agent".into(), jwt_file };
    let password_file = ours.write_file("password", "correct horse");
    let password = Method::Userpass { mount: mount(), username: "agent".into(), password_file };
    let token_file = Method::TokenFile { path: ours.write_file("token", TOKEN) };
    vec![
        pair(
            "login by AppRole",
            RecordedClient::login_request(app_role).await,
            &approle::requests::LoginWithApproleRequest {
                mount: mount(),
                role_id: "role-1".into(),
                secret_id: "secret-1".into(),
            },
            &[],
        ),
        pair(
            "login by certificate",
            RecordedClient::login_request(by_certificate(Some("agent".into()))).await,
            &cert::requests::LoginRequest { mount: mount(), cert_name: "agent".into() },
            &[Deviation::CertName],
        ),
        pair(
            "login by JWT",
            RecordedClient::login_request(jwt).await,
            &oidc::requests::JWTLoginRequest {
                mount: mount(),
                jwt: "e30.e30.e30".into(),
                role: Some("agent".into()),
            },
            &[],
        ),
        pair(
            "login by service account",
            RecordedClient::login_request(service_account).await,
            &kubernetes::requests::LoginWithKubernetesRequest {
                mount: mount(),
                role: "agent".into(),
                jwt: "e30.e30.e30".into(),
            },
            &[],
        ),
        pair(
            "login by token file",
            RecordedClient::login_request(token_file).await,
            &token::requests::LookupTokenSelfRequest {},
            &[],
        ),
        pair(
            "login by password",
            RecordedClient::login_request(password).await,
            &userpass::requests::LoginRequest {
                mount: mount(),
                username: "agent".into(),
                password: "correct horse".into(),
            },
            &[],
        ),
    ]
}
