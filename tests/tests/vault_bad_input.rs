//! Unusable secrets and paths in Vault: refused with secret and server, the path in the log only, without
//! effect on other servers of the same session.
//!
//! For failing logins see `vault_bad_logins`; for cut, huge and invalid responses `vault_client::replayed_responses`.

use std::time::Duration;

use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::{SharedSession, assert_logged_only, refused};
use cofferdam_tests::vault::{
    CANARY, leases, leave, prepared, root_certificate, set_certificate_ttl, token_file_auth,
    with_tools_server, world, world_with_vault_at,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy, second_address};
use cofferdam_tests::world::Builder;
use serde_json::{Value, json};
use vaultrs::{kv2, pki};

/// Adds the server `good`, whose secret can be read.
fn with_working_server(builder: Builder) -> Builder {
    builder
        .secret("github", "kv = \"secret/github\"")
        .server("good", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
}

fn fixture_with(template: &str) -> Server {
    Server::fixture().env("SECRET", template).allow(&["*"])
}

/// Asserts that the server is refused with these words, and that the server `good` is not; returns the refusal.
#[track_caller]
fn assert_refused_alone(sandbox: &mut SharedSession, server: &str, words: &[&str]) -> String {
    let mut harness = sandbox.shim(server);
    let text = refused(&mut harness, server, words);
    assert!(!text.contains(CANARY), "{text}");
    sandbox.assert_server_without_credential_shares_session_with(server);
    let mut good = sandbox.connected("good");
    assert!(good.call("echo", json!({"text": "x"})).get("result").is_some());
    leave(good);
    text
}

/// A change to a response of Vault.
type Change = fn(&mut Value);

#[test]
fn a_missing_mount_is_refused() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let all: &[&str] = &["read", "update"];
    bao.policy("agent", &[("secret/data/github", &["read"]), ("nomount/*", all)]);
    let mut sandbox = SharedSession::start(
        with_working_server(world(&bao))
            .secret("stored", "kv = \"nomount/github\"")
            .secret("made", "vault = \"nomount/creds/agent\"")
            .secret("written", "vault = \"nomount/issue/agent\"\nwrite = { name = \"x\" }")
            .server("stored", fixture_with("{stored.token}"))
            .server("made", fixture_with("{made.token}"))
            .server("written", fixture_with("{written.token}")),
    );
    for (server, path) in [
        ("stored", "GET `nomount/github`"),
        ("made", "GET `nomount/creds/agent`"),
        ("written", "POST `nomount/issue/agent`"),
    ] {
        let words = ["HTTP 404", "check the path, including its mount"];
        let text = assert_refused_alone(&mut sandbox, server, &words);
        assert_logged_only(&sandbox.world, &text, &[path]);
    }
}

#[test]
fn values_that_are_not_text_and_empty_secrets_are_handled() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let odd = json!({"number": 1234567890, "real": 12345678.5, "flag": true, "nothing": null, "list": ["a"], "short": "x"});
    bao.write_secret("odd", json!(odd));
    bao.write_secret("empty", json!({}));
    bao.write_secret("deleted", json!({"token": CANARY}));
    bao.operator("delete a secret", async |client| kv2::delete_latest(client, "secret", "deleted").await);
    bao.policy("agent", &[("secret/data/*", &["read"])]);
    let fields = ["number", "real", "flag", "nothing", "list", "short"];
    let mut builder = with_working_server(world(&bao))
        .secret("odd", "kv = \"secret/odd\"")
        .secret("empty", "kv = \"secret/empty\"")
        .secret("deleted", "kv = \"secret/deleted\"")
        .server("empty", fixture_with("{empty.token}"))
        .server("deleted", fixture_with("{deleted.token}"));
    for field in fields {
        builder = builder.server(field, fixture_with(&format!("{{odd.{field}}}")));
    }
    let mut sandbox = SharedSession::start(builder);
    // Numbers are used as they are written in Vault.
    for (field, value) in [("number", "1234567890"), ("real", "12345678.5")] {
        let _harness = sandbox.connected(field);
        let process = sandbox.world.fixture_processes(field)[0];
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(environment.contains(&format!("SECRET={value}")), "{field}");
    }
    for (server, why) in [
        ("flag", "its field `flag` has 4 bytes, fewer than 8"),
        ("short", "its field `short` has 1 bytes, fewer than 8"),
        ("nothing", "its field `nothing` is null, a list or an object"),
        ("list", "its field `list` is null, a list or an object"),
    ] {
        assert_refused_alone(&mut sandbox, server, &[why, "the secret `odd`"]);
    }
    assert_refused_alone(&mut sandbox, "empty", &["the secret `empty`", "it is empty"]);
    let words = ["the secret `deleted`", "Vault has nothing at this path"];
    let text = assert_refused_alone(&mut sandbox, "deleted", &words);
    assert_logged_only(&sandbox.world, &text, &["secret/data/deleted"]);
}

#[test]
fn a_path_that_the_policies_deny_is_named_in_the_log_only() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut sandbox = SharedSession::start(
        with_working_server(world(&bao))
            .secret("other", "kv = \"secret/other\"")
            .secret("cert", "vault = \"pki/issue/another\"\nwrite = { common_name = \"agent.internal\" }")
            .server("stored", fixture_with("{other.token}"))
            .server("made", fixture_with("{cert.private_key}")),
    );
    for (server, path) in [("stored", "GET `secret/data/other`"), ("made", "POST `pki/issue/another`")] {
        let words = ["Vault refuses", "allow this path in its policies", "tried again in "];
        let text = assert_refused_alone(&mut sandbox, server, &words);
        assert_logged_only(&sandbox.world, &text, &[path]);
    }
}

#[test]
fn a_field_that_cannot_be_used_is_refused_where_it_is_used() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    // The server `good` uses another field of the same secret.
    let mut sandbox = SharedSession::start(
        with_working_server(world(&bao))
            .server("nested", fixture_with("{github.nested}"))
            .server("empty", fixture_with("{github.empty}"))
            .server("missing", fixture_with("{github.tokn}")),
    );
    for (server, why) in [
        ("nested", "its field `nested` is null, a list or an object"),
        ("empty", "its field `empty` is empty"),
        ("missing", "has no field `tokn`"),
    ] {
        assert_refused_alone(&mut sandbox, server, &[why, "the secret `github`"]);
    }
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let tls = bao.tls.as_ref().unwrap();
    let elsewhere = format!("https://{}", second_address(tls.listens_at));
    let auth = format!("ca-file = {:?}\n{}", tls.ca_file, token_file_auth(&bao));
    let requests_before = bao.audit().len();
    let mut sandbox = SharedSession::start(with_tools_server(world_with_vault_at(&elsewhere, &auth)));
    let words = ["the secret `cert`", "cannot be reached", "`ca-file`"];
    let text = refused(&mut sandbox.shim("tools"), "tools", &words);
    assert_logged_only(&sandbox.world, &text, &["not valid for name"]);
    sandbox.assert_server_without_credential_responds();
    assert_eq!(bao.audit().len(), requests_before, "a request was made");
}

/// Vault's clock and the sidecar's differ by years: Vault's expiry times are relative to its own clock.
#[test]
fn a_clock_that_differs_from_vaults_does_no_harm() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.mount_kv("plain", KvEngine::V1);
    bao.policy("agent", &[("plain/token", &["read"])]);
    // It expires in 2001, an hour after the `Date` of the response; by the sidecar's clock it expired long ago.
    bao.write_plain_secret(
        "plain",
        "token",
        json!({"token": "plain-CANARY-of-2001", "expiration": 1_000_003_600}),
    );
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    proxy.rule("plain/token", Action::Dated("Sun, 09 Sep 2001 01:46:40 GMT"));
    let mut sandbox = SharedSession::start(
        world_with_vault_at(&proxy.address(), &token_file_auth(&bao))
            .secret("old", "vault = \"plain/token\"\npublic = [\"expiration\"]")
            .server("tools", fixture_with("{old.token}")),
    );
    let mut harness = sandbox.connected("tools");
    for _ in 0..20 {
        assert!(harness.call("echo", json!({"text": "x"})).get("result").is_some());
    }
    sandbox.assert_server_without_credential_shares_session_with("tools");
    let sessions = sandbox.world.sessions();
    let link = sessions.as_array().unwrap().iter().find(|link| link["server"] == "tools").unwrap();
    let left = link["credentials"][0]["expires-in-seconds"].as_u64();
    assert!(left.is_some_and(|left| (3500..=3600).contains(&left)), "{link}");
    assert_eq!(proxy.count("plain/token"), 1, "{:?}", proxy.seen());
}

/// Values that no server sends, written into live responses.
#[test]
fn rewritten_lease_durations_of_zero_and_of_100_years_are_handled() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let changes: [(&str, Change); 6] = [
        ("a lease of 0", |answer| answer["lease_duration"] = json!(0)),
        ("a renewable lease of 0", |answer| {
            answer["lease_duration"] = json!(0);
            answer["renewable"] = json!(true);
        }),
        ("a lease of a century", |answer| answer["lease_duration"] = json!(100_u64 * 365 * 24 * 3600)),
        ("a lease of all time", |answer| {
            answer["lease_duration"] = json!(u64::MAX);
            answer["renewable"] = json!(true);
        }),
        ("no lease, expired long ago by this clock", |answer| {
            answer["lease_id"] = json!("");
            answer["lease_duration"] = json!(0);
            answer["data"]["expiration"] = json!(1_700_000_000);
        }),
        ("no lease, and a century", |answer| {
            answer["lease_id"] = json!("");
            answer["lease_duration"] = json!(0);
            answer["data"]["ttl"] = json!(u64::MAX);
        }),
    ];
    for (what, change) in changes {
        let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
        proxy.rule("pki/issue", Action::Rewrite(change));
        let mut sandbox = SharedSession::start(with_tools_server(world_with_vault_at(
            &proxy.address(),
            &token_file_auth(&bao),
        )));
        let mut harness = sandbox.connected("tools");
        let requests_before = proxy.count("");
        // Several times the shortest delay between two requests.
        let retries_too_often = holds_within(Duration::from_secs(3), || {
            assert!(harness.call("echo", json!({"text": "x"})).get("result").is_some(), "{what}");
            proxy.count("") - requests_before > 3
        });
        assert!(!retries_too_often, "{what}: {:?}", proxy.seen());
        assert!(!sandbox.world.log().contains("panicked"), "{what}");
        sandbox.assert_server_without_credential_shares_session_with("tools");
        leave(harness);
        let _world = sandbox.leave();
        wait_until("the lease is gone with its token", || leases(&bao) == 0);
    }
}

#[test]
fn rewritten_token_durations_are_handled() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let changes: [(&str, &str, Change); 4] = [
        ("auth/token/create", "a century", |answer| answer["auth"]["lease_duration"] = json!(u64::MAX)),
        ("auth/token/create", "nothing", |answer| answer["auth"]["lease_duration"] = json!(0)),
        ("auth/token/lookup-self", "a century", |answer| answer["data"]["ttl"] = json!(u64::MAX)),
        ("auth/token/lookup-self", "a second", |answer| answer["data"]["ttl"] = json!(1)),
    ];
    for (path, what, change) in changes {
        let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
        proxy.rule(path, Action::Rewrite(change));
        let mut sandbox = SharedSession::start(with_tools_server(world_with_vault_at(
            &proxy.address(),
            &token_file_auth(&bao),
        )));
        let mut harness = sandbox.connected("tools");
        for _ in 0..50 {
            assert!(harness.call("echo", json!({"text": "x"})).get("result").is_some(), "{path}: {what}");
        }
        assert!(proxy.count("") <= 25, "{path}: {what}: {:?}", proxy.seen());
        assert!(!sandbox.world.log().contains("panicked"), "{path}: {what}");
        sandbox.assert_server_without_credential_shares_session_with("tools");
        leave(harness);
        let _world = sandbox.leave();
        wait_until("nothing is left", || leases(&bao) == 0);
    }
}

/// Without rewriting: a server whose mounts allow it issues leases of a hundred years.
#[test]
fn a_real_lease_of_a_hundred_years_ends_with_its_session() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let century = format!("{}h", 100 * 365 * 24);
    let longer = format!("{}h", 120 * 365 * 24);
    bao.api("POST", "sys/mounts/pki/tune", json!({"max_lease_ttl": longer}));
    bao.operator("delete the root certificate", async |client| pki::cert::ca::delete(client, "pki").await);
    root_certificate(&bao, &longer);
    set_certificate_ttl(&bao, &century);
    let mut sandbox = SharedSession::start(with_tools_server(world(&bao)));
    let harness = sandbox.connected("tools");
    assert_eq!(leases(&bao), 1);
    sandbox.assert_server_without_credential_shares_session_with("tools");
    leave(harness);
    let _world = sandbox.leave();
    wait_until("the lease is gone", || leases(&bao) == 0);
}
