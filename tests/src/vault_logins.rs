//! Sets up an OpenBao for each login method. The policies are those of the token that a login returns.

use std::path::PathBuf;

use serde_json::{Value, json};
use vaultrs::api::auth::kubernetes::requests::CreateKubernetesRoleRequestBuilder;
use vaultrs::api::auth::userpass::requests::CreateUserRequestBuilder;
use vaultrs::auth::{kubernetes, userpass};
use vaultrs::sys::wrapping;

use crate::certificates::Authority;
use crate::encodings::base64url;
use crate::http::{Reply, listen};
use crate::openbao::{AppRole, Headers, OpenBao};
use crate::vault::write_file;

/// The path for creating secret-ids.
const SECRET_ID: &str = "auth/approle/role/agent/secret-id";

/// Creates an AppRole with these settings; returns the file with its role-id.
#[track_caller]
pub fn create_app_role(bao: &OpenBao, role: &mut AppRole) -> PathBuf {
    bao.enable_login("approle", "approle");
    bao.app_role("agent", role);
    write_file(bao, "role-id", &bao.role_id("agent"))
}

/// Creates another secret-id of that role.
#[track_caller]
pub fn secret_id(bao: &OpenBao) -> String {
    bao.secret_id("agent")
}

/// Creates another secret-id of that role, wrapped; returns the wrapping token, which unwraps it once.
#[track_caller]
pub fn wrapped_secret_id(bao: &OpenBao) -> String {
    wrap(bao, SECRET_ID, &json!({}))
}

/// Sends a request whose response is wrapped; returns the wrapping token.
#[track_caller]
pub fn wrap(bao: &OpenBao, path: &str, body: &Value) -> String {
    let headers = Headers { wrap_ttl: Some("60s"), ..Headers::default() };
    let answer = bao.call_with("POST", path, Some(&bao.root_token), body, headers);
    text(&answer.body["wrap_info"]["token"]).to_owned()
}

/// Unwraps a response; returns its content.
#[track_caller]
pub fn unwrap(bao: &OpenBao, wrap: &str) -> Value {
    let opened = bao.as_token(wrap, async |client| wrapping::unwrap(client, None).await);
    opened.unwrap_or_else(|error| panic!("cannot unwrap: {error}"))
}

/// A web token of the server's own issuer, for the role `agent` of `auth/jwt`.
#[track_caller]
pub fn web_token(bao: &OpenBao, policies: &[&str]) -> String {
    bao.enable_login("jobs", "userpass");
    bao.policy("issue", &[("identity/oidc/token/*", &["read"])]);
    let password = "job-password";
    user(bao, "jobs", "job", password, &["issue"]);
    bao.api("POST", "identity/oidc/key/jobs", json!({"allowed_client_ids": ["*"], "algorithm": "ES256"}));
    bao.api("POST", "identity/oidc/role/job", json!({"key": "jobs", "ttl": "10m"}));
    let login = async |client: &_| userpass::login(client, "jobs", "job", password).await;
    let job = bao.operator("log in as the job", login).client_token;
    let issued = bao.call("GET", "identity/oidc/token/job", Some(&job), &Value::Null).body["data"].clone();
    let keys = format!("{}/v1/identity/oidc/.well-known/keys", bao.address());
    configure_jwt(bao, &json!({"jwks_url": keys}), &json!([issued["client_id"]]), policies);
    text(&issued["token"]).to_owned()
}

/// A web token with these claims, signed by the server's transit engine with a key that `auth/jwt` trusts.
#[track_caller]
pub fn signed_web_token(bao: &OpenBao, claims: &Value) -> String {
    if !bao.is_mounted("transit") {
        bao.mount("transit", "transit");
        bao.api("POST", "transit/keys/issuer", json!({"type": "ecdsa-p256"}));
        let key = bao.api("GET", "transit/keys/issuer", Value::Null);
        let key = text(&key["data"]["keys"]["1"]["public_key"]).to_owned();
        configure_jwt(
            bao,
            &json!({"jwt_validation_pubkeys": [key]}),
            &json!(["vault"]),
            &["sidecar", "agent"],
        );
    }
    let header = json!({"alg": "ES256", "typ": "JWT"});
    let signed = [header, claims.clone()].map(|part| base64url(part.to_string().as_bytes())).join(".");
    let input = crate::encodings::base64(signed.as_bytes());
    let wanted = json!({"input": input, "marshaling_algorithm": "jws", "hash_algorithm": "sha2-256"});
    let signature = bao.api("POST", "transit/sign/issuer", wanted);
    let signature = text(&signature["data"]["signature"]).rsplit(':').next().unwrap_or_default().to_owned();
    format!("{signed}.{signature}")
}

/// Starts a fake cluster that reviews tokens, and writes the role `agent` of `auth/kubernetes`; returns a service
/// account's token.
#[track_caller]
pub fn service_account(bao: &OpenBao, policies: &[&str]) -> String {
    let cluster = listen(|request| {
        let is_ours = request.path == "/apis/authentication.k8s.io/v1/tokenreviews";
        let user = json!({"username": "system:serviceaccount:agents:cofferdam", "uid": "uid-1", "groups": ["system:serviceaccounts"]});
        Reply::Json(json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "status": {"authenticated": is_ours, "user": user, "audiences": ["vault"]},
        }))
    });
    bao.enable_login("kubernetes", "kubernetes");
    // vaultrs' type has no token for the reviewer.
    let config = json!({"kubernetes_host": format!("http://{cluster}"), "token_reviewer_jwt": "reviewer", "kubernetes_ca_cert": Authority::new().pem(), "disable_local_ca_jwt": true});
    bao.api("POST", "auth/kubernetes/config", config);
    let mut role = CreateKubernetesRoleRequestBuilder::default();
    role.bound_service_account_names(["cofferdam".to_owned()]);
    role.bound_service_account_namespaces(["agents".to_owned()]);
    role.token_policies(policies.iter().map(ToString::to_string).collect::<Vec<_>>());
    bao.operator("write a role for service accounts", async |client| {
        kubernetes::role::create(client, "kubernetes", "agent", Some(&mut role)).await
    });
    let claims = json!({
        "iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:agents:cofferdam",
        "aud": ["vault"], "iat": 1_700_000_000_u64, "nbf": 1_700_000_000_u64, "exp": 4_000_000_000_u64,
        "kubernetes.io": {"namespace": "agents", "serviceaccount": {"name": "cofferdam", "uid": "uid-1"}},
    });
    let parts = [r#"{"alg":"RS256","typ":"JWT"}"#.to_owned(), claims.to_string(), "signature".to_owned()];
    parts.map(|part| base64url(part.as_bytes())).join(".")
}

/// Configures `auth/jwt` and its role `agent`.
#[track_caller]
fn configure_jwt(bao: &OpenBao, issuer: &Value, audiences: &Value, policies: &[&str]) {
    bao.enable_login("jwt", "jwt");
    bao.api("POST", "auth/jwt/config", issuer.clone());
    let role = json!({"role_type": "jwt", "user_claim": "sub", "bound_audiences": audiences, "token_policies": policies});
    bao.api("POST", "auth/jwt/role/agent", role);
}

/// A user of a mount of `userpass`.
#[track_caller]
pub fn user(bao: &OpenBao, mount: &str, name: &str, password: &str, policies: &[&str]) {
    let mut user = CreateUserRequestBuilder::default();
    user.token_policies(policies.iter().map(ToString::to_string).collect::<Vec<_>>());
    bao.operator("write a user", async |client| {
        userpass::user::set(client, mount, name, password, Some(&mut user)).await
    });
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}"))
}
