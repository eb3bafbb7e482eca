//! What outlives a session although Vault revoked its token, what outlives a sidecar that was killed, and what the next
//! start of the sidecar knows about the start before.

use std::fs;
use std::time::Duration;

use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::{SharedSession, refused};
use cofferdam_tests::vault::{
    CANARY, app_role_with, leases, leave, minter, prepared, session_tokens, set_certificate_ttl,
    token_file_auth, token_role, tokens, with_tools_server, with_tools_server_keeping_certificate, world,
    world_with_vault, world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::VaultFaultProxy;
use cofferdam_tests::vault_logins::{create_app_role, user, wrapped_secret_id};
use cofferdam_tests::world::World;
use serde_json::{Value, json};

/// The detail of the last record of this event.
#[track_caller]
fn last_detail(world: &World, event: &str) -> String {
    let record = world.audit().into_iter().rfind(|record| record["event"] == event);
    let record = record.unwrap_or_else(|| panic!("the audit has no `{event}`"));
    record["detail"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn session_id(world: &World) -> String {
    world.sessions()[0]["session"].as_str().expect("there is a session").to_owned()
}

fn alerts(world: &World) -> Vec<Value> {
    world.audit().into_iter().filter(|record| record["event"] == "alert").collect()
}

/// A certificate without a lease, a web token, a version of a key-value secret and a file beside a leased certificate.
#[test]
fn a_credential_that_vault_cannot_revoke_is_named_at_the_end_with_its_expiry() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.enable_login("people", "userpass");
    user(&bao, "people", "agent", "correct horse", &["sidecar", "agent"]);
    let password = write_file(&bao, "password", "correct horse\n");
    let auth = format!(
        "auth = {{ method = \"userpass\", mount = \"people\", username = \"agent\", password-file = {password:?} }}"
    );
    let role = json!({"allow_any_name": true, "enforce_hostnames": false, "generate_lease": false, "ttl": "1h", "key_type": "ec", "key_bits": 256});
    bao.api("POST", "pki/roles/unleased", role);
    bao.api("POST", "identity/oidc/key/agents", json!({"allowed_client_ids": ["*"]}));
    bao.api("POST", "identity/oidc/role/agent", json!({"key": "agents", "ttl": "2h"}));
    bao.policy(
        "agent",
        &[
            ("secret/data/github", &["read"]),
            ("pki/issue/agent", &["update"]),
            ("pki/issue/unleased", &["update"]),
            ("identity/oidc/token/agent", &["read"]),
        ],
    );
    let server = Server::fixture()
        .env("STATIC", "{github.token}")
        .env("LOCAL", "{local.value}")
        .env("BEARER", "{bearer.token}")
        .file("leased.pem", "{leased.private_key}")
        .file("unleased.pem", "{unleased.private_key}")
        .allow(&["*"]);
    let world = world_with_vault(&bao, &auth)
        .secret("github", "kv = \"secret/github\"")
        .secret_file("local", "a-local-CANARY-value")
        .secret("bearer", "vault = \"identity/oidc/token/agent\"\npublic = [\"client_id\", \"ttl\"]")
        .secret("leased", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .secret("unleased", "vault = \"pki/issue/unleased\"\nwrite = { common_name = \"agent.internal\" }")
        .server("tools", server)
        .start();
    let _harness = world.connected("tools");
    let shown = world.cofferdam_text(&["sessions"]);
    for line in [
        "`github` from Vault's `secret/github`: no lease, cannot be revoked, no known expiry",
        "`bearer` from Vault's `identity/oidc/token/agent`: no lease, cannot be revoked, expires in 1",
        "`unleased` from Vault's `pki/issue/unleased`: no lease, cannot be revoked, expires in 59m",
        "`leased` from Vault's `pki/issue/agent`: lease ",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let printed = world.cofferdam_text(&["kill", &session_id(&world)]);
    let year =
        |secret: &str, origin: &str| format!("`{secret}` from {origin}: cannot be revoked; expires at 20");
    for line in [
        "`github` from Vault's `secret/github`: cannot be revoked; no known expiry".to_owned(),
        year("bearer", "Vault's `identity/oidc/token/agent`"),
        year("unleased", "Vault's `pki/issue/unleased`"),
        "`local` from the file `".to_owned(),
        " of `leased`: revoked after ".to_owned(),
    ] {
        assert!(printed.contains(&line), "{line}\n{printed}");
    }
    assert!(!printed.contains("`leased` from"), "{printed}");
    let detail = last_detail(&world, "link_end");
    for word in [
        "`bearer` expires at 20",
        "`github` has no known expiry",
        "`local` has no known expiry",
        "`unleased` expires at 20",
    ] {
        assert!(detail.contains(word), "{word}\n{detail}");
    }
    assert!(!detail.contains("`leased`"), "{detail}");
    world.assert_secret_not_leaked(CANARY);
}

/// The process with the earlier value may have stored it: it still works after the session.
#[test]
fn earlier_values_that_are_still_valid_are_named_at_the_end() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let server = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let world = world(&bao)
        .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
        .server("tools", server)
        .start();
    let _harness = world.connected("tools");
    bao.write_secret("github", json!({"token": "ghp-CANARY-of-the-next-version"}));
    wait_until("another process has taken over", || {
        world.audit().iter().any(|record| record["event"] == "replacement")
    });
    let shown = world.cofferdam_text(&["sessions"]);
    assert!(shown.contains("; 1 earlier value may still be valid"), "{shown}");
    let printed = world.cofferdam_text(&["kill", &session_id(&world)]);
    let line = "`github` from Vault's `secret/github`: cannot be revoked; 2 values, no known expiry";
    assert!(printed.contains(line), "{printed}");
    let detail = last_detail(&world, "link_end");
    assert!(detail.contains("; not revocable: `github` (2 values) has no known expiry"), "{detail}");
}

/// The server that used the credential has left before the session ends.
#[test]
fn what_outlives_a_session_is_reported_with_its_last_link() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let server = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let sandbox =
        SharedSession::start(world(&bao).secret("github", "kv = \"secret/github\"").server("tools", server));
    leave(sandbox.connected("tools"));
    let ends = |world: &World| -> Vec<String> {
        let ends = world.audit().into_iter().filter(|record| record["event"] == "link_end");
        ends.map(|record| record["detail"].as_str().unwrap_or_default().to_owned()).collect()
    };
    wait_until("the first link has ended", || ends(&sandbox.world).len() == 1);
    assert!(!ends(&sandbox.world)[0].contains("not revocable"), "{:?}", ends(&sandbox.world));
    let world = sandbox.leave();
    wait_until("the session has ended", || ends(&world).len() == 2);
    let detail = last_detail(&world, "link_end");
    assert!(detail.contains("not revocable: `github` has no known expiry"), "{detail}");
}

#[test]
fn the_login_of_a_killed_sidecar_is_revoked_by_the_next() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, token_role(&["agent"]).orphan(true));
    let mut world = with_tools_server(world_with_vault(&bao, &auth)).start();
    let harness = world.connected("tools");
    let logins = || tokens(&bao, |token| token["display_name"] == "approle");
    let login = logins();
    assert_eq!(login.len(), 1);
    world.kill9_sidecar();
    drop(harness);
    assert_eq!(logins().len(), 1, "the login ended without a sidecar");
    world.start_sidecar();
    wait_until("the login of the killed sidecar is revoked", || {
        let now = logins();
        now.len() == 1 && now[0]["accessor"] != login[0]["accessor"]
    });
    wait_until("its lease is gone", || leases(&bao) == 0 && session_tokens(&bao).is_empty());
    let directory = world.layout().state.join("vault");
    wait_until("only the new login is left on disk", || fs::read_dir(&directory).unwrap().count() == 1);
    world.stop_sidecar();
    assert_eq!((logins().len(), fs::read_dir(&directory).unwrap().count()), (0, 0));
}

#[test]
fn files_of_logins_that_have_expired_are_removed() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let auth = minter(&bao, &mut token_role(&["agent"]));
    bao.app_role("sidecar", app_role_with(&["minter"], "3s").token_max_ttl("3s"));
    let mut world = with_tools_server(world_with_vault(&bao, &auth)).start();
    let logins = |world: &World| world.log().matches("logged in to Vault").count();
    wait_until("there were several logins", || logins(&world) >= 4);
    let directory = world.layout().state.join("vault");
    let files = fs::read_dir(&directory).unwrap().count();
    assert!((1..=3).contains(&files), "{files} files after {} logins", logins(&world));
    // A sealed Vault revokes nothing, but the tokens of all logins expire within three seconds.
    bao.seal();
    holds_within(Duration::from_secs(4), || false);
    world.stop_sidecar();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "the next start would report a crash");
}

fn wrapped_auth(bao: &OpenBao) -> String {
    let role_id = create_app_role(bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let wrapped = write_file(bao, "wrapped", &wrapped_secret_id(bao));
    format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    )
}

#[test]
fn a_wrap_that_an_earlier_start_unwrapped_needs_a_new_one_and_is_no_alert() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = wrapped_auth(&bao);
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let mut world = with_tools_server(world_with_vault_at(&proxy.address(), &auth)).start();
    leave(world.connected("tools"));
    world.stop_sidecar();
    let asked = proxy.count("sys/wrapping");
    world.start_sidecar();
    let mut harness = world.shim("tools");
    refused(&mut harness, "tools", &[]);
    for words in ["this sidecar has already unwrapped", "deliver a new wrapped secret-id"] {
        assert!(world.log().contains(words), "{words}\n{}", world.log());
    }
    assert!(!world.log().contains("ALERT"), "{}", world.log());
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
    assert_eq!(proxy.count("sys/wrapping"), asked, "Vault was asked about a wrap that is known to be spent");
    let checked = world.cofferdam(&["check", "--online"]);
    let printed = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        printed.contains("this sidecar has already unwrapped") && !printed.contains("ALERT"),
        "{printed}"
    );
    // Neither the wrapping token nor the secret-id nor the login is stored.
    let wrap = fs::read_to_string(bao.directory.path().join("wrapped")).unwrap();
    world.assert_secret_not_leaked(&wrap);
    write_file(&bao, "wrapped", &wrapped_secret_id(&bao));
    wait_until("a new wrap works without a restart", || harness.initialize().get("result").is_some());
}

/// The wrapping token that another party unwrapped is still an alert after a restart of the sidecar.
#[test]
fn a_wrap_that_another_party_unwrapped_is_an_alert_after_a_restart_too() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = wrapped_auth(&bao);
    let mut world = with_tools_server(world_with_vault(&bao, &auth)).start();
    leave(world.connected("tools"));
    world.stop_sidecar();
    let stolen = wrapped_secret_id(&bao);
    cofferdam_tests::vault_logins::unwrap(&bao, &stolen);
    write_file(&bao, "wrapped", &stolen);
    world.start_sidecar();
    let mut harness = world.shim("tools");
    refused(&mut harness, "tools", &[]);
    assert!(world.log().contains("another party may have it"), "{}", world.log());
    wait_until("the audit has the alert", || alerts(&world).len() == 1);
}

#[test]
fn no_credential_is_made_for_a_process_that_cannot_take_it() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    set_certificate_ttl(&bao, "9s");
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world =
        with_tools_server_keeping_certificate(world_with_vault_at(&proxy.address(), &token_file_auth(&bao)))
            .start();
    let mut harness = world.connected("tools");
    let shown = || world.cofferdam_text(&["sessions"]);
    wait_until("the lease has ended", || leases(&bao) == 0);
    wait_until("`sessions` shows that the credential has expired", || shown().contains(", expired"));
    assert!(shown().contains("`replace = \"never\"`"), "{}", shown());
    assert_eq!(proxy.count("pki/issue"), 1, "{:?}", proxy.seen());
    assert!(
        !holds_within(Duration::from_secs(8), || proxy.count("pki/issue") > 1),
        "a certificate was issued for a process that cannot take it"
    );
    // The process still serves, and the next one gets a certificate of its own.
    assert!(harness.call("env", json!({})).get("result").is_some());
    harness.send_call("crash", json!({}));
    wait_until("the next process runs", || harness.call("env", json!({})).get("result").is_some());
    assert_eq!(proxy.count("pki/issue"), 2);
}

#[test]
fn plain_sessions_say_why_a_process_was_not_replaced() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let server = Server::fixture().env("SECRET", "{github.token}").line("replace = \"never\"").allow(&["*"]);
    let world = world(&bao)
        .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
        .server("tools", server)
        .start();
    let _harness = world.connected("tools");
    bao.write_secret("github", json!({"token": "ghp-CANARY-of-the-next-version"}));
    wait_until("`sessions` says why", || {
        let text =
            "  replacement: the process keeps the credential it was started with (`replace = \"never\"`)";
        world.cofferdam_text(&["sessions"]).contains(text)
    });
}
