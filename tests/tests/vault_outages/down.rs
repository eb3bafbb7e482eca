//! Vault is sealed, is down, or does not respond.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::paced_lines::lines_and_left_out;
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::assert_logged_only;
use cofferdam_tests::vault::{
    app_role_with, leases, leave, list, prepared, session_tokens, token_file_auth, world,
    world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::vault_logins::{create_app_role, secret_id};
use serde_json::{Value, json};

use crate::support::{
    Refusal, behind_proxy, refused, survives, survives_behind_proxy, three_servers, three_servers_at,
};

#[test]
fn a_vault_that_is_sealed_and_unsealed() {
    survives_behind_proxy(
        OpenBao::configured(),
        |bao, _| bao.seal(),
        Refusal { shown: &["sealed", "unseal Vault"], logged: &["auth/token/create"] },
        |bao, _| bao.unseal(),
    );
}

#[test]
fn a_vault_that_is_killed_and_started_again() {
    let Some(mut bao) = prepared(OpenBao::persistent()) else { return };
    let world = three_servers_at(&bao, &bao.address()).start();
    survives(
        &world,
        &mut bao,
        None,
        OpenBao::kill9,
        Refusal {
            shown: &["cannot be reached", "check that Vault is up"],
            logged: &["auth/token/create", "refused"],
        },
        OpenBao::start_again,
    );
}

#[test]
fn a_vault_that_is_stopped_and_continued() {
    survives_behind_proxy(
        OpenBao::dev(),
        |bao, _| bao.freeze(),
        Refusal { shown: &["did not answer", "check that Vault is up"], logged: &["auth/token/create"] },
        |bao, _| bao.thaw(),
    );
}

#[test]
fn a_network_that_drops_everything() {
    survives_behind_proxy(
        OpenBao::dev(),
        |_, proxy| proxy.rule("", Action::NeverRespond),
        Refusal { shown: &["did not answer"], logged: &["auth/token/create"] },
        |_, proxy| proxy.clear_rules(),
    );
}

/// While a secret cannot be read, each request is refused at once, so that a harness can cause thousands of refusals.
#[test]
fn a_flood_of_refused_requests_is_counted_and_not_logged() {
    const REQUESTS: usize = 2000;
    let Some(mut bao) = prepared(OpenBao::dev()) else { return };
    let web = HttpFixture::start(Behaviour::Json).url();
    let world = world(&bao)
        .secret("github", "kv = \"secret/github\"")
        .server("tools", Server::fixture().env("SECRET", "{github.token}"))
        .server("web", Server::http(&web).header("authorization", "Bearer {github.token}"))
        .start();
    bao.kill9();
    for (requests, server) in [(REQUESTS, "tools"), (2 * REQUESTS, "web")] {
        let mut harness = world.shim(server);
        for _ in 0..REQUESTS {
            let answer = harness.request("ping", json!({}));
            assert_eq!(refusal_of(&answer), "credential_unavailable", "{answer}");
        }
        // The flood has stopped: no further line tells how many were left out of it.
        wait_until("every refusal is in a line or in a count", || {
            let (lines, left_out) = lines_and_left_out(&world.log(), "the server did not start");
            lines + left_out == requests
        });
    }
    let (lines, _) = lines_and_left_out(&world.log(), "the server did not start");
    // 30 a minute for each link: a machine so slow that this takes eight minutes would still pass.
    assert!((2..=REQUESTS / 4).contains(&lines), "{lines} lines");
}

#[test]
fn a_response_that_is_cut_leaves_no_lease_behind() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let (proxy, world) = behind_proxy(&bao);
    for bytes in [30, 700] {
        let issued = certificates(&bao);
        proxy.rule("pki/issue", Action::CutAfter(bytes));
        let mut late = world.shim("late");
        let text = refused(&mut late, &["did not answer and may have executed the request"]);
        assert_logged_only(&world, &text, &["POST `pki/issue/agent`"]);
        assert!(certificates(&bao) > issued, "Vault did not issue the certificate");
        proxy.clear_rules();
        wait_until("the server `late` starts", || late.initialize().get("result").is_some());
        leave(late);
        // Also the lease whose response was lost: it ends with a token of the session.
        wait_until("no lease is left", || leases(&bao) == 0);
    }
}

/// How many certificates were ever issued.
fn certificates(bao: &OpenBao) -> usize {
    list(bao, "pki/certs").len()
}

/// The response with the token was lost, so that it cannot be revoked: it lives no longer than the grant allows.
#[test]
fn a_token_whose_response_was_lost_expires_with_its_grant() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    proxy.rule("auth/token/create", Action::CutAfter(40));
    let mut world = three_servers(world_with_vault_at(&proxy.address(), &token_file_auth(&bao)))
        .grant("ttl = \"15s\"")
        .start();
    let mut late = world.shim("late");
    let text = refused(&mut late, &["did not answer"]);
    assert_logged_only(&world, &text, &["auth/token/create"]);
    let lost = session_tokens(&bao);
    assert!(!lost.is_empty(), "Vault did not create the token");
    for token in &lost {
        assert!(token["explicit_max_ttl"].as_u64().is_some_and(|life| (1..=15).contains(&life)), "{token}");
        assert_eq!(token["policies"], json!(["agent", "default"]), "{token}");
    }
    leave(late);
    world.stop_sidecar();
    let is_there =
        |lost: &Value| session_tokens(&bao).iter().any(|token| token["accessor"] == lost["accessor"]);
    wait_until("the tokens have expired", || !lost.iter().any(is_there));
}

#[test]
fn requests_with_cut_responses_are_retried_after_a_delay() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let role_id = create_app_role(&bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let secret_id = write_file(&bao, "secret-id", &secret_id(&bao));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret_id:?} }}"
    );
    proxy.rule("auth/", Action::CutAfter(40));
    let world = three_servers(world_with_vault_at(&proxy.address(), &auth)).start();
    let mut late = world.shim("late");
    let text = refused(&mut late, &["did not answer"]);
    assert_logged_only(&world, &text, &["auth/approle/login"]);
    proxy.clear_rules();
    proxy.rule("auth/token/create", Action::CutAfter(40));
    wait_until("the login works", || {
        refused(&mut late, &["did not answer"]);
        proxy.count("auth/token/create") > 0
    });
    let before = proxy.count("auth/token/create");
    for _ in 0..20 {
        refused(&mut late, &["did not answer"]);
    }
    let asked = proxy.count("auth/token/create") - before;
    assert!(asked <= 10, "twenty refusals caused {asked} requests");
    proxy.clear_rules();
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
}
