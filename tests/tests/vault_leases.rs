//! The sidecar renews and replaces leases by itself: in these tests no client requests a credential twice.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::process::send;
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::SharedSession;
use cofferdam_tests::vault::{
    app_role_with, lease_id, leases, leave, minter, prepared, session_tokens, set_certificate_ttl,
    token_file_auth, token_role, tokens, with_tools_server, with_tools_server_keeping_certificate, world,
    world_with_vault, world_with_vault_at,
};
use cofferdam_tests::vault_fault_proxy::VaultFaultProxy;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const NEWER: &str = "ghp-CANARY-of-the-next-version";
const NEWEST: &str = "ghp-CANARY-of-the-version-after-that";

/// Whether the sidecar has read this value: then it scrubs it from a server's output.
fn is_known(harness: &mut Harness, value: &str) -> bool {
    let answer = harness.call("echo", json!({"text": value})).to_string();
    assert!(answer.contains("result"), "{answer}");
    !answer.contains(value)
}

fn accessors(bao: &OpenBao) -> BTreeSet<String> {
    let accessor = |token: Value| token["accessor"].as_str().map(str::to_owned);
    session_tokens(bao).into_iter().filter_map(accessor).collect()
}

/// The audit's entry for the secret of the last call, which has the id of the read.
fn last_request(world: &World) -> String {
    let decision = world.decisions().pop().expect("a call was made");
    decision["secrets"][0].to_string()
}

#[test]
fn another_version_of_a_key_value_secret_is_noticed() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let server = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let world = world(&bao)
        .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
        .server("tools", server)
        .start();
    let mut harness = world.connected("tools");
    let first = accessors(&bao);
    assert!(!is_known(&mut harness, NEWER));
    bao.write_secret("github", json!({"token": NEWER}));
    wait_until("the newer version is read", || is_known(&mut harness, NEWER));
    // Repeated reads need no further token.
    assert_eq!(accessors(&bao), first);
    // A token that the operator revoked is replaced.
    let accessor = first.first().unwrap();
    bao.revoke_accessor(accessor);
    bao.write_secret("github", json!({"token": NEWEST}));
    wait_until("the newest version is read", || is_known(&mut harness, NEWEST));
    let others = accessors(&bao);
    assert_eq!(others.len(), 1);
    assert!(!others.contains(accessor));
}

#[test]
fn a_key_value_secret_with_a_ttl_is_read_that_often() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.mount_kv("plain", KvEngine::V1);
    bao.policy("agent", &[("plain/github", &["read"])]);
    bao.write_plain_secret("plain", "github", json!({"token": "plain-CANARY-1", "ttl": "1s"}));
    let server = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let world = world(&bao)
        .secret("github", "kv = \"plain/github\"\nrefresh = \"7d\"\npublic = [\"ttl\"]")
        .server("tools", server)
        .start();
    let mut harness = world.connected("tools");
    assert!(is_known(&mut harness, "plain-CANARY-1"));
    bao.write_plain_secret("plain", "github", json!({"token": "plain-CANARY-2", "ttl": "1s"}));
    wait_until("the newer value is read", || is_known(&mut harness, "plain-CANARY-2"));
}

#[test]
fn a_lease_is_replaced_before_its_end_and_ends_with_its_last_user() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    set_certificate_ttl(&bao, "30s");
    // The process of `tools` keeps its certificate; that of `taker` is replaced.
    let taker = Server::fixture().file("key.pem", "{cert.private_key}").allow(&["*"]);
    let sandbox =
        SharedSession::start(with_tools_server_keeping_certificate(world(&bao)).server("taker", taker));
    let mut harness = sandbox.connected("tools");
    let taker = sandbox.connected("taker");
    let world = &sandbox.world;
    let first = accessors(&bao);
    assert_eq!((leases(&bao), first.len()), (1, 1));
    wait_until("there is another lease", || leases(&bao) == 2);
    // One process still uses the first lease; each lease belongs to its own token.
    assert!(accessors(&bao).is_superset(&first) && accessors(&bao).len() == 2);
    let directory = world.layout().state.join("vault");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
    send(world.fixture_processes("tools")[0], Signal::SIGKILL);
    wait_until("the first token is revoked", || accessors(&bao).is_disjoint(&first));
    wait_until("and its lease is gone", || leases(&bao) == 1);
    wait_until("nothing of it is left on disk", || fs::read_dir(&directory).unwrap().count() == 1);
    wait_until("the next process runs", || harness.call("env", json!({})).get("result").is_some());
    assert_eq!(leases(&bao), 1);
    leave(harness);
    leave(taker);
    let _world = sandbox.leave();
    wait_until("nothing is left", || leases(&bao) == 0 && accessors(&bao).is_empty());
    wait_until("nothing is left on disk", || fs::read_dir(&directory).unwrap().count() == 0);
}

/// One lease is revoked with its token, the other alone. Neither is renewable, and neither is due for replacement yet.
#[test]
fn a_lease_that_the_operator_revoked_is_noticed_before_its_renewal_is_due() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    set_certificate_ttl(&bao, "60s");
    let certificate = "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }";
    let server = Server::fixture().file("a.pem", "{a.private_key}").file("b.pem", "{b.private_key}");
    let world = world(&bao).secret("a", certificate).secret("b", certificate).server("tools", server).start();
    let mut harness = world.connected("tools");
    let first = accessors(&bao);
    assert_eq!((leases(&bao), first.len()), (2, 2));
    bao.revoke_accessor(first.first().unwrap());
    wait_until("its lease is gone", || leases(&bao) == 1);
    let lease = format!("pki/issue/agent/{}", lease_id(&bao));
    bao.api("POST", "sys/leases/revoke", json!({"lease_id": lease, "sync": true}));
    assert_eq!(leases(&bao), 0);
    wait_until("both are read again", || leases(&bao) == 2);
    assert_eq!(world.log().matches("a lease is gone").count(), 2);
    wait_until("a process has both", || accessors(&bao).is_disjoint(&first));
    assert!(harness.call("env", json!({})).get("result").is_some());
    assert!(world.fixture_processes("tools").len() > 1);
}

#[test]
fn a_session_ends_all_its_leases_at_once() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let mut builder = world(&bao);
    let mut server = Server::fixture().allow(&["*"]);
    for number in 0..12 {
        let name = format!("cert{number}");
        builder = builder
            .secret(&name, "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }");
        server = server.file(&format!("{name}.pem"), &format!("{{{name}.private_key}}"));
    }
    let world = builder.server("tools", server).start();
    let _harness = world.connected("tools");
    assert_eq!((leases(&bao), accessors(&bao).len()), (12, 12));
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let printed = world.cofferdam_text(&["kill", &session]);
    assert_eq!(printed.matches(": revoked after ").count(), 13, "{printed}");
    assert_eq!((leases(&bao), accessors(&bao).len()), (0, 0), "{printed}");
}

#[test]
fn leases_that_depend_on_a_login_are_replaced_before_the_login_ends() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, &mut token_role(&["agent"]));
    bao.app_role("sidecar", app_role_with(&["minter"], "12s").token_max_ttl("12s"));
    let world = with_tools_server(world_with_vault(&bao, &auth)).start();
    let mut harness = world.connected("tools");
    let first = accessors(&bao);
    let logins = || tokens(&bao, |token| token["display_name"] == "approle");
    let login = logins()[0]["accessor"].clone();
    assert_eq!((leases(&bao), first.len()), (1, 1));
    wait_until("the first login has ended", || {
        assert!(leases(&bao) > 0, "there was no lease for a while");
        logins().iter().all(|token| token["accessor"] != login)
    });
    assert!(accessors(&bao).is_disjoint(&first), "a token outlived its login");
    assert!(leases(&bao) > 0);
    assert!(harness.call("env", json!({})).get("result").is_some());
}

#[test]
fn a_credential_without_a_lease_is_replaced_before_it_expires() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, &mut token_role(&["agent"]));
    bao.api("POST", "identity/oidc/key/agents", json!({"allowed_client_ids": ["*"]}));
    bao.api("POST", "identity/oidc/role/agent", json!({"key": "agents", "ttl": "9s"}));
    bao.policy("agent", &[("identity/oidc/token/agent", &["read"])]);
    let server = Server::fixture().env("SECRET", "{bearer.token}").allow(&["*"]);
    let secret = "vault = \"identity/oidc/token/agent\"\npublic = [\"client_id\", \"ttl\"]";
    let world = world_with_vault(&bao, &auth).secret("bearer", secret).server("tools", server).start();
    let mut harness = world.connected("tools");
    let first = accessors(&bao);
    assert_eq!(first.len(), 1);
    harness.call("env", json!({}));
    let mut seen = BTreeSet::from([last_request(&world)]);
    wait_until("it is read twice more", || {
        let left = world.sessions()[0]["credentials"][0]["expires-in-seconds"].as_u64();
        assert!(left > Some(0), "it expired: {left:?}");
        harness.call("env", json!({}));
        seen.insert(last_request(&world));
        seen.len() > 2
    });
    // There is no lease, so one token is enough for all reads.
    assert_eq!(accessors(&bao), first);
}

#[test]
fn a_denied_path_creates_no_tokens() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.policy("agent", &[("pki/issue/another", &["update"])]);
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = with_tools_server(world_with_vault_at(&proxy.address(), &token_file_auth(&bao))).start();
    let mut harness = world.shim("tools");
    let mut seen = BTreeSet::new();
    // A read is tried every five seconds at most: twelve seconds are enough for two more attempts.
    holds_within(Duration::from_secs(12), || {
        let refused = harness.initialize().to_string();
        assert!(refused.contains("credential_unavailable"), "{refused}");
        seen.extend(accessors(&bao));
        seen.len() > 1
    });
    assert_eq!(seen.len(), 1, "not exactly one token was created");
    assert_eq!(accessors(&bao), seen);
    assert!((2..=4).contains(&proxy.count("pki/issue")), "{:?}", proxy.seen());
}
