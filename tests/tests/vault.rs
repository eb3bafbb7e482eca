//! Sessions with a real OpenBao: what a server gets, what other processes do not get, and that nothing is left when a
//! session ends, however it ends.

use std::fs;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::send;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    CANARY, app_role_with, lease_id, leases, leave, login_token, minter, prepared, session_tokens,
    token_file_auth, token_role, tokens, with_tools_server, world, world_with_tools_server, world_with_vault,
    world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::vault_logins::{create_app_role, secret_id};
use nix::sys::signal::Signal;
use serde_json::json;

#[test]
fn a_field_of_a_secret_in_vault_reaches_only_its_server() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let server = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let world =
        world(&bao).secret("github", "kv = \"secret/github\"").server("tools", server).capturing().start();
    let mut harness = world.connected("tools");
    let shown = harness.call("env", json!({})).to_string();
    assert!(shown.contains("SECRET=[redacted:github.token]"), "{shown}");
    let process = world.fixture_processes("tools")[0];
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains(&format!("SECRET={CANARY}")));
    world.assert_secret_not_leaked(CANARY);
    // The sidecar's audit and Vault's can be joined: by the request id here, by the token's metadata there.
    let decision = world.decisions().pop().unwrap();
    assert!(decision["secrets"][0].to_string().len() > 40, "{decision}");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let tokens = session_tokens(&bao);
    assert_eq!(tokens.len(), 1, "{tokens:?}");
    let meta = &tokens[0]["meta"];
    assert_eq!(*meta, json!({"session": session, "sandbox": "shared socket", "grant": "dev"}));
    assert_eq!(tokens[0]["policies"], json!(["agent", "default"]));
    assert!(tokens[0]["ttl"].as_u64().unwrap() <= 8 * 3600, "{tokens:?}");
    // The server's environment does not have the login's token.
    assert!(!environment.contains(&login_token(&bao)), "{environment}");
    let directory = world.layout().state.join("vault");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    leave(harness);
    wait_until("the session's token is revoked", || session_tokens(&bao).is_empty());
    wait_until("nothing is left on disk", || fs::read_dir(&directory).unwrap().count() == 0);
}

#[test]
fn a_lease_is_gone_when_its_session_ends() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = world_with_tools_server(&bao).start();
    let harness = world.connected("tools");
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (1, 1));
    leave(harness);
    wait_until("the lease is gone", || leases(&bao) == 0);
    wait_until("the token is gone", || session_tokens(&bao).is_empty());
}

#[test]
fn a_lease_is_gone_when_its_shim_was_killed_and_does_not_come_back() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = world_with_tools_server(&bao).relay("resume-grace = \"1s\"").start();
    let mut harness = world.connected("tools");
    assert_eq!(leases(&bao), 1);
    harness.kill9();
    wait_until("the lease is gone", || leases(&bao) == 0);
}

#[test]
fn a_revocation_without_response_is_pending_and_done_later() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = with_tools_server(world_with_vault_at(&proxy.address(), &token_file_auth(&bao))).start();
    let _harness = world.connected("tools");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    // Requests sent now never get a response: only a later attempt can revoke.
    proxy.rule("", Action::NeverRespond);
    let printed = world.cofferdam_text(&["kill", &session]);
    assert!(printed.contains("Vault token: pending ("), "{printed}");
    assert!(printed.contains(" of `cert`: pending ("), "{printed}");
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (1, 1));
    proxy.clear_rules();
    wait_until("the lease is gone", || leases(&bao) == 0);
    wait_until("the token is gone", || session_tokens(&bao).is_empty());
    let directory = world.layout().state.join("vault");
    wait_until("nothing is left on disk", || fs::read_dir(&directory).unwrap().count() == 0);
}

#[test]
fn an_expiring_token_is_replaced_and_its_secret_read_again() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, token_role(&["agent"]).token_explicit_max_ttl("6s"));
    let world = with_tools_server(world_with_vault(&bao, &auth)).start();
    let mut harness = world.connected("tools");
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (1, 1));
    let first = lease_id(&bao);
    wait_until("the first token expires, and its lease with it", || {
        assert!(leases(&bao) > 0, "there was no lease for a while");
        leases(&bao) == 1 && lease_id(&bao) != first
    });
    let processes = world.fixture_processes("tools");
    send(*processes.last().unwrap(), Signal::SIGKILL);
    wait_until("a new process has a new credential", || {
        let answer = harness.call("env", json!({}));
        answer.get("result").is_some() && world.fixture_processes("tools").len() > processes.len()
    });
    assert!(leases(&bao) > 0);
}

#[test]
fn tokens_and_lease_ids_are_scrubbed() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = world_with_tools_server(&bao).capturing().start();
    let mut harness = world.connected("tools");
    let (token, lease) = (login_token(&bao), format!("pki/issue/agent/{}", lease_id(&bao)));
    let answer = harness.call("echo", json!({"text": format!("{token} and {lease}")})).to_string();
    // The lease is the session's own; the login is the sidecar's.
    assert!(answer.contains("\"[redacted] and [redacted:vault.lease-id]\""), "{answer}");
    world.assert_secret_not_leaked(&token);
    world.assert_secret_not_leaked(&lease);
}

#[test]
fn tokens_and_leases_are_redacted_without_names_in_sessions_that_do_not_use_vault() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = world_with_tools_server(&bao).server("bare", Server::fixture().allow(&["*"])).start();
    let mut bare = world.connected("bare");
    let echoed = |bare: &mut Harness, text: &str| bare.call_text("echo", json!({"text": text}));
    let token = login_token(&bao);
    wait_until("the login's token is redacted before any session uses Vault", || {
        echoed(&mut bare, &token) == "[redacted]"
    });
    let other = world.connected("tools");
    let lease = format!("pki/issue/agent/{}", lease_id(&bao));
    assert_eq!(echoed(&mut bare, &format!("{token} and {lease}")), "[redacted] and [redacted]");
    leave(other);
    wait_until("the other session has ended", || leases(&bao) == 0);
    assert_eq!(echoed(&mut bare, &lease), "[redacted]", "a lease is forgotten too early");
}

/// The server can read the files that the sidecar reads to log in, as one without walls can.
#[test]
fn the_credential_of_the_login_is_redacted_in_every_session() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let Some(files) = Server::filesystem(bao.directory.path()) else { return };
    let role_id = create_app_role(&bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let value = secret_id(&bao);
    let secret_id = write_file(&bao, "secret-id", &format!("{value}\n"));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret_id:?} }}"
    );
    let world = world_with_vault(&bao, &auth).server("files", files.unconfined()).capturing().start();
    wait_until("the sidecar has logged in", || world.log().contains("logged in to Vault"));
    let mut harness = world.connected("files");
    for file in [&role_id, &secret_id] {
        let read = harness.call_text("read_text_file", json!({"path": file}));
        assert_eq!(read.trim(), "[redacted]");
    }
    world.assert_secret_not_leaked(&value);
}

#[test]
fn a_kill_revokes_and_reports_it() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = world_with_tools_server(&bao).start();
    let _harness = world.connected("tools");
    assert_eq!(leases(&bao), 1);
    let lease = lease_id(&bao);
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let printed = world.cofferdam_text(&["kill", &session]);
    assert!(printed.contains("Vault token: revoked after "), "{printed}");
    assert!(printed.contains(" of `cert`: revoked after "), "{printed}");
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (0, 0), "{printed}");
    let end = world.audit().into_iter().rfind(|record| record["event"] == "link_end").unwrap();
    assert!(end["detail"].as_str().unwrap().contains("leases: 1 revoked, 0 pending"), "{end}");
    assert!(!world.log().contains(&lease), "the log has the lease's id");
}

#[test]
fn an_orderly_stop_revokes_everything_but_the_users_own_token() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut world = world_with_tools_server(&bao).start();
    let _harness = world.connected("tools");
    assert_eq!(leases(&bao), 1);
    world.stop_sidecar();
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (0, 0));
    let login = login_token(&bao);
    assert!(bao.is_live(&login));
}

#[test]
fn tokens_of_a_killed_sidecar_are_revoked_by_the_next() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut world = world_with_tools_server(&bao).start();
    let harness = world.connected("tools");
    let left = session_tokens(&bao);
    assert_eq!((leases(&bao), left.len()), (1, 1));
    world.kill9_sidecar();
    drop(harness);
    assert_eq!(leases(&bao), 1, "the lease was revoked without a sidecar");
    world.start_sidecar();
    wait_until("the lease is gone", || leases(&bao) == 0);
    wait_until("the token is gone", || session_tokens(&bao).is_empty());
    wait_until("nothing is left on disk", || {
        fs::read_dir(world.layout().state.join("vault")).unwrap().count() == 0
    });
}

#[test]
fn a_sealed_vault_is_refused_with_the_next_attempt_and_needs_no_restart() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let world = world_with_tools_server(&bao).start();
    bao.seal();
    let mut harness = world.shim("tools");
    let refused = harness.initialize().to_string();
    for word in ["credential_unavailable", "the secret `cert`", "sealed", "tried again in ", "unseal Vault"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    assert!(world.log().contains("from Vault's `pki/issue/agent`"), "{}", world.log());
    // During the backoff there is no request to Vault; the refusal is the same.
    let again = harness.initialize().to_string();
    assert!(again.contains("credential_unavailable") && again.contains("tried again in "), "{again}");
    bao.unseal();
    wait_until("the server starts", || harness.initialize().get("result").is_some());
    assert_eq!(leases(&bao), 1);
}

#[test]
fn with_an_approle_login_and_a_token_role_nothing_remains_either() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, token_role(&["agent"]).orphan(true));
    let mut world = with_tools_server(world_with_vault(&bao, &auth)).start();
    let _harness = world.connected("tools");
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (1, 1));
    assert_eq!(tokens(&bao, |token| token["display_name"] == "approle").len(), 1);
    world.stop_sidecar();
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (0, 0));
    assert_eq!(tokens(&bao, |token| token["display_name"] == "approle").len(), 0);
}
