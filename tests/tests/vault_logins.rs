//! Each login method with a real sidecar: a server gets its credential, no link passes on that of the login, and the
//! login is revoked at the end.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    app_role_with, leases, leave, login_token, prepared, session_tokens, token_file_auth, tokens,
    with_tools_server, world_with_vault, world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::vault_logins::{
    create_app_role, secret_id, service_account, user, web_token, wrapped_secret_id,
};
use cofferdam_tests::world::Builder;
use serde_json::{Value, json};

/// The policies of the sidecar's login.
const POLICIES: [&str; 2] = ["sidecar", "agent"];

/// Asserts that a session gets its credential through this login and returns it, that no session is shown what these
/// files of the login contain, and that the sidecar's stop ends the login, which Vault lists under this name.
#[track_caller]
fn assert_login_works(bao: &OpenBao, builder: Builder, login: &str, files: &[&Path]) {
    let is_login = |token: &Value| token["display_name"].as_str().is_some_and(|name| name.starts_with(login));
    let mut world = with_tools_server(builder).server("bare", Server::fixture()).start();
    let harness = world.connected("tools");
    assert_eq!((leases(bao), session_tokens(bao).len()), (1, 1));
    let mut bare = world.connected("bare");
    for file in files {
        assert_redacted(&mut bare, &fs::read_to_string(file).expect("the login reads this file"));
    }
    assert_eq!(session_tokens(bao)[0]["policies"], json!(["agent", "default"]));
    assert_eq!(tokens(bao, is_login).len(), 1, "{:?}", tokens(bao, |_| true));
    leave(harness);
    wait_until("the session leaves nothing", || (leases(bao), session_tokens(bao).len()) == (0, 0));
    assert_eq!(tokens(bao, is_login).len(), 1, "the login ended with the session");
    world.stop_sidecar();
    wait_until("the login has ended", || tokens(bao, is_login).is_empty());
}

/// Asserts that a server's text with this credential arrives without any line of it, and without a name.
#[track_caller]
fn assert_redacted(harness: &mut Harness, credential: &str) {
    let shown = harness.call_text("echo", json!({"text": credential}));
    let mut lines = credential.trim().lines().filter(|line| line.len() >= 8 && !line.starts_with("-----"));
    assert!(lines.all(|line| !shown.contains(line)) && shown.contains("[redacted]"), "{shown}");
    assert!(!shown.contains("vault."), "{shown}");
}

#[test]
fn login_with_a_token_file_that_is_not_revoked() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut world = with_tools_server(world_with_vault(&bao, &token_file_auth(&bao)))
        .server("bare", Server::fixture())
        .start();
    leave(world.connected("tools"));
    assert_redacted(&mut world.connected("bare"), &login_token(&bao));
    world.stop_sidecar();
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (0, 0));
    let login = login_token(&bao);
    assert!(bao.is_live(&login));
}

#[test]
fn login_with_an_approle() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = create_app_role(&bao, &mut app_role_with(&POLICIES, "10m"));
    let secret_id = write_file(&bao, "secret-id", &format!("{}\n", secret_id(&bao)));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret_id:?} }}"
    );
    assert_login_works(&bao, world_with_vault(&bao, &auth), "approle", &[&role_id, &secret_id]);
}

#[test]
fn login_with_a_wrapped_secret_id_that_is_unwrapped_once() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let role_id = create_app_role(&bao, app_role_with(&POLICIES, "2s").token_max_ttl("3s"));
    let wrapped = write_file(&bao, "wrapped", &wrapped_secret_id(&bao));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let world = with_tools_server(world_with_vault(&bao, &auth)).start();
    let _harness = world.connected("tools");
    let request_count = |path: &str| {
        let is_request = |record: &&Value| record["type"] == "request" && record["request"]["path"] == path;
        bao.audit().iter().filter(is_request).count()
    };
    wait_until("the login was repeated", || request_count("auth/approle/login") >= 3);
    assert_eq!(request_count("sys/wrapping/unwrap"), 1);
    // A session that starts after a later login gets its credential too.
    let _another = world.connected("tools");
}

/// The secret-id that the proxy of the next test passed on.
static UNWRAPPED: Mutex<String> = Mutex::new(String::new());

#[test]
fn the_wrapping_token_and_the_secret_id_that_it_wrapped_are_redacted() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = create_app_role(&bao, &mut app_role_with(&POLICIES, "10m"));
    let wrap = wrapped_secret_id(&bao);
    let wrapped = write_file(&bao, "wrapped", &wrap);
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let keep = |response: &mut Value| {
        *UNWRAPPED.lock().unwrap() = response["data"]["secret_id"].as_str().unwrap_or_default().to_owned();
    };
    proxy.rule("sys/wrapping/unwrap", Action::Rewrite(keep));
    let world = with_tools_server(world_with_vault_at(&proxy.address(), &auth))
        .server("bare", Server::fixture())
        .start();
    let _logged_in = world.connected("tools");
    let mut bare = world.connected("bare");
    let secret_id = UNWRAPPED.lock().unwrap().clone();
    assert!(secret_id.len() > 30, "{secret_id}");
    for credential in [wrap, secret_id] {
        assert_redacted(&mut bare, &credential);
    }
}

#[test]
fn login_with_a_web_token_of_the_servers_own_issuer() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let jwt_file = write_file(&bao, "jwt", &web_token(&bao, &POLICIES));
    let auth = format!("auth = {{ method = \"jwt\", role = \"agent\", jwt-file = {jwt_file:?} }}");
    assert_login_works(&bao, world_with_vault(&bao, &auth), "jwt", &[&jwt_file]);
}

#[test]
fn login_with_a_kubernetes_service_account() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let jwt_file = write_file(&bao, "jwt", &service_account(&bao, &POLICIES));
    let auth = format!("auth = {{ method = \"kubernetes\", role = \"agent\", jwt-file = {jwt_file:?} }}");
    assert_login_works(&bao, world_with_vault(&bao, &auth), "kubernetes", &[&jwt_file]);
}

#[test]
fn login_with_a_certificate() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let clients = Authority::new();
    bao.enable_login("cert", "cert");
    let role = json!({"certificate": clients.pem(), "allowed_common_names": ["agent.internal"], "token_policies": POLICIES, "token_ttl": "10m"});
    bao.api("POST", "auth/cert/certs/agent", role);
    let (certificate, key) = clients.client("agent.internal").write(bao.directory.path(), "login");
    let ca_file = &bao.tls.as_ref().unwrap().ca_file;
    let auth = format!(
        "ca-file = {ca_file:?}\nauth = {{ method = \"cert\", role = \"agent\", cert-file = {certificate:?}, key-file = {key:?} }}"
    );
    assert_login_works(&bao, world_with_vault_at(&bao.tls_address(), &auth), "cert", &[&key]);
}

#[test]
fn login_with_a_password() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.enable_login("people", "userpass");
    user(&bao, "people", "agent", "correct horse", &POLICIES);
    let password = write_file(&bao, "password", "correct horse\n");
    let auth = format!(
        "auth = {{ method = \"userpass\", mount = \"people\", username = \"agent\", password-file = {password:?} }}"
    );
    assert_login_works(&bao, world_with_vault(&bao, &auth), "people", &[&password]);
}
