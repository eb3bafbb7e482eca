//! Vault works, but what the sidecar has or needs was changed by the operator: certificates, tokens, roles and
//! policies.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::assert_logged_only;
use cofferdam_tests::vault::{
    app_role_with, leases, login_token, minter, new_token, prepared, session_tokens, set_certificate_ttl,
    token_file_auth, token_role, tokens, world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::{VaultFaultProxy, second_address};
use cofferdam_tests::vault_logins::{create_app_role, secret_id};
use serde_json::{Value, json};
use vaultrs::token;

use crate::support::{Load, behind_proxy, refused, three_servers, three_servers_at};

/// A world over TLS with one server that needs no Vault.
fn over_tls(bao: &OpenBao, address: &str, ca_file: &Path) -> cofferdam_tests::world::World {
    let auth = format!("ca-file = {ca_file:?}\n{}", token_file_auth(bao));
    three_servers(world_with_vault_at(address, &auth)).server("own", Server::fixture().allow(&["*"])).start()
}

#[test]
fn a_certificate_of_another_authority_or_name_is_refused() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let tls = bao.tls.as_ref().unwrap();
    let untrusted = Authority::new().write(bao.directory.path(), "untrusted");
    let elsewhere = format!("https://{}", second_address(tls.listens_at));
    for (address, ca_file, word) in [
        (bao.tls_address(), &untrusted, "invalid peer certificate"),
        (elsewhere, &tls.ca_file, "not valid for name"),
    ] {
        let world = over_tls(&bao, &address, ca_file);
        let text = refused(&mut world.shim("late"), &["cannot be reached", "`ca-file`"]);
        assert_logged_only(&world, &text, &[word]);
        assert!(world.connected("own").call("echo", json!({"text": "x"})).get("result").is_some());
    }
    let world = over_tls(&bao, &bao.tls_address(), &tls.ca_file);
    assert!(world.shim("late").initialize().get("result").is_some());
    assert!(!bao.audit().is_empty());
}

#[test]
fn an_expired_token_in_a_file_is_reported_and_the_next_one_is_used() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let good = login_token(&bao);
    let mut wanted = new_token(&["sidecar", "agent"]);
    let short = bao.create_token(wanted.ttl("1s").explicit_max_ttl("1s").no_parent(true));
    wait_until("the token has expired", || !bao.is_live(&short));
    write_file(&bao, "token", &short);
    let (proxy, world) = behind_proxy(&bao);
    let mut late = world.shim("late");
    let words = ["the token is invalid", "check that the token is valid"];
    // Long enough that a busy loop would show.
    holds_within(Duration::from_secs(3), || {
        let text = refused(&mut late, &words);
        assert_logged_only(&world, &text, &["GET `auth/token/lookup-self`"]);
        false
    });
    assert!(proxy.count("") <= 12, "{:?}", proxy.seen());
    assert!(!world.log().contains(&short));
    write_file(&bao, "token", &good);
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
}

#[test]
fn a_revoked_users_token_is_reported_and_valid_credentials_stay_in_use() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let (_proxy, world) = behind_proxy(&bao);
    let loads =
        [Load::start(world.connected("tools"), "echo"), Load::start(world.connected("web"), "headers")];
    loads.iter().for_each(Load::assert_calls_continue);
    bao.operator("revoke the login", async |client| token::revoke(client, &login_token(&bao)).await);
    let mut late = world.shim("late");
    refused(&mut late, &["Vault refuses"]);
    // The session's tokens were revoked with their parent, so re-reads of the secret are refused by now.
    wait_until("the re-read has failed", || world.log().contains("reading a secret failed secret=github"));
    loads.iter().for_each(Load::assert_calls_continue);
    let another = bao.create_token(new_token(&["sidecar", "agent"]).ttl("1h").no_parent(true));
    write_file(&bao, "token", &another);
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
    loads.iter().for_each(Load::assert_calls_continue);
    let _ = loads.map(Load::end);
}

/// Revokes these tokens by their accessors.
fn revoke(bao: &OpenBao, tokens: Vec<Value>) {
    assert!(!tokens.is_empty());
    for token in tokens {
        bao.revoke_accessor(token["accessor"].as_str().expect("a token has an accessor"));
    }
}

#[test]
fn a_revoked_login_is_repeated_before_a_request_is_refused() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = create_app_role(&bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let secret_id = write_file(&bao, "secret-id", &secret_id(&bao));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret_id:?} }}"
    );
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = three_servers(world_with_vault_at(&proxy.address(), &auth)).start();
    let loads =
        [Load::start(world.connected("tools"), "echo"), Load::start(world.connected("web"), "headers")];
    loads.iter().for_each(Load::assert_calls_continue);
    revoke(&bao, tokens(&bao, |token| token["display_name"] == "approle"));
    wait_until("its children died with it", || session_tokens(&bao).is_empty());
    let mut late = world.shim("late");
    let answer = late.initialize();
    assert!(answer.get("result").is_some(), "{answer}");
    assert_eq!(proxy.count("auth/approle/login"), 2, "{:?}", proxy.seen());
    loads.iter().for_each(Load::assert_calls_continue);
    let _ = loads.map(Load::end);
}

#[test]
fn revoked_session_tokens_are_replaced_and_their_secrets_read_again() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    set_certificate_ttl(&bao, "8s");
    let world = three_servers_at(&bao, &bao.address()).start();
    let loads = ["tools", "late"].map(|server| Load::start(world.connected(server), "echo"));
    loads.iter().for_each(Load::assert_calls_continue);
    let before = session_tokens(&bao);
    assert_eq!((leases(&bao), before.len()), (1, 2));
    revoke(&bao, before.clone());
    let is_new = |token: &Value| !before.iter().any(|old| old["accessor"] == token["accessor"]);
    let whose = |token: &Value| token["meta"]["session"].as_str().map(str::to_owned);
    // There is no notification; the next reads fail and get new tokens.
    wait_until("each session has a token again", || {
        let new = session_tokens(&bao).into_iter().filter(is_new);
        new.filter_map(|token| whose(&token)).collect::<BTreeSet<_>>().len() == 2
    });
    wait_until("there is a credential again", || leases(&bao) == 1);
    loads.iter().for_each(Load::assert_calls_continue);
    let _ = loads.map(Load::end);
}

#[test]
fn with_a_deleted_policy_new_reads_are_refused_until_it_is_restored() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = three_servers_at(&bao, &bao.address()).start();
    let loads =
        [Load::start(world.connected("tools"), "echo"), Load::start(world.connected("web"), "headers")];
    loads.iter().for_each(Load::assert_calls_continue);
    bao.delete_policy("agent");
    let mut late = world.shim("late");
    for _ in 0..5 {
        let text = refused(&mut late, &["Vault refuses", "allow this path in its policies"]);
        assert_logged_only(&world, &text, &["POST `pki/issue/agent`"]);
    }
    // Longer than the secret's `refresh`: the last value that was read stays in use.
    wait_until("the poll was refused too", || world.log().contains("the values read before are still used"));
    loads.iter().for_each(Load::assert_calls_continue);
    bao.policy("agent", &[("secret/data/github", &["read"]), ("pki/issue/agent", &["update"])]);
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
    let _ = loads.map(Load::end);
}

#[test]
fn with_a_deleted_token_role_new_sessions_are_refused_until_it_is_restored() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut role = token_role(&["agent"]);
    let auth = minter(&bao, role.orphan(true));
    let world = three_servers(world_with_vault_at(&bao.address(), &auth)).start();
    let load = Load::start(world.connected("tools"), "echo");
    load.assert_calls_continue();
    bao.delete_token_role("cofferdam");
    let mut late = world.shim("late");
    let text = refused(&mut late, &["HTTP 400", "correct the path, the role"]);
    assert_logged_only(&world, &text, &["POST `auth/token/create/cofferdam`"]);
    load.assert_calls_continue();
    bao.token_role("cofferdam", &mut role);
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
    load.assert_calls_continue();
    load.end();
}
