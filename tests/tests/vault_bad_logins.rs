//! Logins that fail: the refusal of a request names the secret and the server, the log the request to Vault; attacks raise
//! an alert, and servers of the same session that need no credential are not affected. With a valid credential in the file the login succeeds
//! without a restart.

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::openbao::{AppRole, OpenBao};
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::{SharedSession, assert_logged_only, refused};
use cofferdam_tests::vault::{
    app_role_with, prepared, tokens, with_tools_server, world_with_vault, world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::vault_logins::{
    create_app_role, secret_id, signed_web_token, unwrap, wrapped_secret_id,
};
use serde_json::json;

/// How a refusal names the secret that the refused server needs.
const NEEDED: &str = "the secret `cert`";

#[test]
fn a_wrapped_secret_id_that_another_party_unwrapped_is_refused() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = create_app_role(&bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let stolen = wrapped_secret_id(&bao);
    unwrap(&bao, &stolen);
    let wrapped = write_file(&bao, "wrapped", &stolen);
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let mut sandbox = SharedSession::start(with_tools_server(world_with_vault_at(&proxy.address(), &auth)));
    let mut harness = sandbox.shim("tools");
    let words = [NEEDED, "ALERT", "already unwrapped", "destroy that secret-id"];
    for _ in 0..3 {
        let text = refused(&mut harness, "tools", &words);
        assert_logged_only(&sandbox.world, &text, &["sys/wrapping/lookup"]);
    }
    // The alert is in the log and in the audit, and the login is not retried all the time.
    let world = &sandbox.world;
    assert!(world.log().contains("ALERT: the wrapped secret-id was already unwrapped"));
    let alerts = || world.audit().iter().filter(|record| record["event"] == "alert").count();
    wait_until("the audit has the alert", || alerts() == 1);
    assert_eq!(proxy.count("sys/wrapping/lookup"), 1);
    assert!(!world.log().contains(&stolen));
    sandbox.assert_server_without_credential_shares_session_with("tools");
    write_file(&bao, "wrapped", &wrapped_secret_id(&bao));
    wait_until("a new secret-id works", || harness.initialize().get("result").is_some());
    let alerts = sandbox.world.audit().iter().filter(|record| record["event"] == "alert").count();
    assert_eq!(alerts, 1);
}

#[test]
fn an_unwrap_whose_response_was_lost_raises_an_alert() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = create_app_role(&bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let wrapped = write_file(&bao, "wrapped", &wrapped_secret_id(&bao));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    proxy.rule("sys/wrapping/unwrap", Action::CutAfter(60));
    let mut sandbox = SharedSession::start(with_tools_server(world_with_vault_at(&proxy.address(), &auth)));
    let mut harness = sandbox.shim("tools");
    wait_until("the second try is an alert", || {
        harness.initialize()["error"]["message"].as_str().is_some_and(|text| text.contains("ALERT"))
    });
    let words = [NEEDED, "in a response that was lost, or to another party", "destroy that secret-id"];
    let text = refused(&mut harness, "tools", &words);
    assert_logged_only(&sandbox.world, &text, &["POST `sys/wrapping/lookup`"]);
    assert_eq!(proxy.count("sys/wrapping/unwrap"), 1, "the secret-id was not unwrapped exactly once");
    sandbox.assert_server_without_credential_shares_session_with("tools");
    proxy.clear_rules();
    write_file(&bao, "wrapped", &wrapped_secret_id(&bao));
    wait_until("a new secret-id works", || harness.initialize().get("result").is_some());
}

/// Neither the file of the login, nor its user, nor Vault's paths and address are for the sandbox.
#[test]
fn an_unreadable_login_file_is_not_named_to_the_sandbox() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let hidden = bao.directory.path().join("hidden-place");
    std::fs::create_dir(&hidden).unwrap();
    let role_id = write_file(&bao, "role-id", "0123");
    let missing = hidden.join("secret-id");
    let not_a_key = write_file(&bao, "hidden-place/login.key", "not a key");
    let certificate = write_file(&bao, "hidden-place/login.pem", "not a certificate");
    let (plain, tls) = (bao.address(), bao.tls_address());
    let ca_file = &bao.tls.as_ref().unwrap().ca_file;
    let missing_login = "hidden-place/secret-id";
    for (address, auth, logged) in [
        (
            &plain,
            format!(
                "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {missing:?} }}"
            ),
            ["auth/approle/login", missing_login],
        ),
        (
            &plain,
            format!(
                "auth = {{ method = \"userpass\", username = \"hidden-user\", password-file = {missing:?} }}"
            ),
            ["auth/userpass/login/hidden-user", missing_login],
        ),
        (
            &tls,
            format!(
                "ca-file = {ca_file:?}\nauth = {{ method = \"cert\", role = \"hidden-role\", cert-file = {certificate:?}, key-file = {not_a_key:?} }}"
            ),
            ["auth/cert/login", "hidden-place/login.pem"],
        ),
    ] {
        let sandbox = SharedSession::start(with_tools_server(world_with_vault_at(address, &auth)));
        let mut harness = sandbox.shim("tools");
        let text = refused(&mut harness, "tools", &[NEEDED, "correct `auth` in [vault]", "tried again in "]);
        assert_logged_only(&sandbox.world, &text, &logged);
        let received = String::from_utf8_lossy(harness.received()).into_owned();
        for word in ["hidden", "auth/", bao.directory.path().to_str().unwrap(), address] {
            assert!(!received.contains(word), "the sandbox is told `{word}`: {received}");
        }
    }
}

#[test]
fn a_used_up_secret_id_is_refused() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut role = app_role_with(&["sidecar", "agent"], "2s");
    let role_id = create_app_role(&bao, role.token_max_ttl("2s").secret_id_num_uses(1_u64));
    let secret = write_file(&bao, "secret-id", &secret_id(&bao));
    let auth =
        format!("auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret:?} }}");
    let good = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let builder = world_with_vault(&bao, &auth)
        .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
        .server("good", good);
    let mut sandbox = SharedSession::start(with_tools_server(builder));
    let mut good = sandbox.connected("good");
    wait_until("the login has expired", || {
        sandbox.world.log().contains("the login to Vault or its renewal failed")
            && tokens(&bao, |token| token["display_name"] == "approle").is_empty()
    });
    let mut harness = sandbox.shim("tools");
    let used_up = std::fs::read_to_string(&secret).unwrap();
    let text = refused(&mut harness, "tools", &[NEEDED, "HTTP 400", "correct the path, the role"]);
    assert_logged_only(&sandbox.world, &text, &["POST `auth/approle/login`"]);
    assert!(!text.contains(&used_up) && !sandbox.world.log().contains(&used_up), "{text}");
    assert!(
        good.call("echo", json!({"text": "x"})).get("result").is_some(),
        "a value without a lease is no longer used"
    );
    // A new process gets the value too, although it cannot be read again.
    let _another = sandbox.connected("good");
    sandbox.assert_server_without_credential_shares_session_with("tools");
    let mut role = AppRole::default();
    bao.app_role("agent", role.secret_id_num_uses(0_u64).token_ttl("10m").token_max_ttl("1h"));
    write_file(&bao, "secret-id", &secret_id(&bao));
    wait_until("a new secret-id works", || harness.initialize().get("result").is_some());
}

#[test]
fn web_tokens_outside_their_validity_are_refused() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let claims = |not_before: u64, expires: u64| json!({"sub": "job", "aud": "vault", "iat": 1_700_000_000_u64, "nbf": not_before, "exp": expires});
    let good = signed_web_token(&bao, &claims(1_700_000_000, 4_000_000_000));
    let over = signed_web_token(&bao, &claims(1_700_000_000, 1_700_000_600));
    let early = signed_web_token(&bao, &claims(3_900_000_000, 4_000_000_000));
    let path = write_file(&bao, "jwt", &over);
    let auth = format!("auth = {{ method = \"jwt\", role = \"agent\", jwt-file = {path:?} }}");
    let mut sandbox = SharedSession::start(with_tools_server(world_with_vault(&bao, &auth)));
    let mut harness = sandbox.shim("tools");
    let text = refused(&mut harness, "tools", &[NEEDED, "HTTP 400", "correct the path, the role"]);
    assert_logged_only(&sandbox.world, &text, &["POST `auth/jwt/login`"]);
    let log = || sandbox.world.log();
    // Vault's own message is shown on the host only.
    assert!(log().contains("expired"));
    write_file(&bao, "jwt", &early);
    wait_until("the other token was read", || {
        refused(&mut harness, "tools", &[NEEDED, "HTTP 400"]);
        log().contains("not yet valid") || log().contains("not valid yet")
    });
    for text in [&over, &early] {
        assert!(!log().contains(text.rsplit('.').next().unwrap()));
    }
    sandbox.assert_server_without_credential_shares_session_with("tools");
    write_file(&bao, "jwt", &good);
    wait_until("a currently valid token works", || harness.initialize().get("result").is_some());
}

#[test]
fn a_client_certificate_with_another_name_is_refused() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let clients = Authority::new();
    bao.enable_login("cert", "cert");
    let role = json!({"certificate": clients.pem(), "allowed_common_names": ["agent.internal"], "token_policies": ["sidecar", "agent"]});
    bao.api("POST", "auth/cert/certs/agent", role);
    let directory = bao.directory.path();
    let (certificate, key) = clients.client("another.name").write(directory, "login");
    let ca_file = &bao.tls.as_ref().unwrap().ca_file;
    let auth = format!(
        "ca-file = {ca_file:?}\nauth = {{ method = \"cert\", role = \"agent\", cert-file = {certificate:?}, key-file = {key:?} }}"
    );
    let mut sandbox = SharedSession::start(with_tools_server(world_with_vault_at(&bao.tls_address(), &auth)));
    let mut harness = sandbox.shim("tools");
    let text = refused(&mut harness, "tools", &[NEEDED, "HTTP 400", "correct the path, the role"]);
    assert_logged_only(&sandbox.world, &text, &["POST `auth/cert/login`"]);
    sandbox.assert_server_without_credential_shares_session_with("tools");
    clients.client("agent.internal").write(directory, "login");
    wait_until("the right certificate works", || harness.initialize().get("result").is_some());
}
