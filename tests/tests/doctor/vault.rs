//! A real OpenBao that is unreachable, sealed, refuses the login or lacks something in its policies; and its clock.

use std::fs;

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    self, leases, tokens, with_tools_server, world_with_tools_server, world_with_vault_at,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::vault_logins::{unwrap, wrap};
use serde_json::json;

use super::examined::{Examined, examine, prepared, protect, set_mode};

/// An OpenBao with what the worlds here need, and the token of the login in a file that others cannot read.
#[track_caller]
fn configured() -> Option<OpenBao> {
    let bao = vault::prepared(OpenBao::configured())?;
    set_mode(&bao.directory.path().join("token"), 0o600);
    Some(bao)
}

#[test]
fn a_sound_vault_is_good_and_no_token_lease_or_session_is_left() {
    let Some(bao) = configured() else { return };
    let before = tokens(&bao, |_| true).len();
    let examined = examine(&prepared(world_with_tools_server(&bao)));
    examined.assert_no_error();
    examined.assert_good("vault-ok", "vault http://", "no policy lacks anything");
    examined.assert_good("server-ok", "server tools", "");
    assert!(examined.with_code("clock-skew").is_empty(), "{:#}", examined.report);
    assert_eq!((tokens(&bao, |_| true).len(), leases(&bao)), (before, 0), "a token or lease is left");
}

#[test]
fn a_running_sidecar_and_its_sessions_are_not_disturbed() {
    let Some(bao) = configured() else { return };
    let world = world_with_tools_server(&bao).start();
    protect(&world);
    let mut harness = world.connected("tools");
    let (tokens_before, leases_before) = (tokens(&bao, |_| true).len(), leases(&bao));
    let examined = examine(&world);
    examined.assert_no_error();
    examined.assert_good("serve-running", "sidecar at", "with 1 open links");
    examined.assert_good("relay-ok", "relay unix:", "accepts connections");
    assert_eq!((tokens(&bao, |_| true).len(), leases(&bao)), (tokens_before, leases_before));
    assert!(
        harness.call("echo", serde_json::json!({"text": "still here"})).to_string().contains("still here")
    );
    vault::leave(harness);
}

#[test]
fn a_token_that_vault_does_not_know_is_a_refused_login() {
    let Some(bao) = configured() else { return };
    let world = prepared(world_with_tools_server(&bao));
    fs::write(bao.directory.path().join("token"), "s.unknown-token").unwrap();
    let examined = examine(&world);
    examined.assert_error("vault-login", "vault http://", "permission denied", "");
    assert_eq!(examined.code, 77);
    examined.assert_warning(
        "server-not-tried",
        "server tools",
        "the secret `cert` from Vault",
        "correct what is reported about Vault",
    );
}

#[test]
fn a_vault_that_is_down_or_sealed_is_told_apart() {
    let Some(bao) = configured() else { return };
    let unused = cofferdam_tests::port::free_address();
    let auth = vault::token_file_auth(&bao);
    let down = with_tools_server(world_with_vault_at(&format!("http://{unused}"), &auth));
    let examined = examine(&prepared(down));
    examined.assert_error("vault-unreachable", &format!("vault http://{unused}"), "", "");
    assert_eq!(examined.code, 69);
    bao.seal();
    let examined = examine(&prepared(world_with_tools_server(&bao)));
    examined.assert_error("vault-sealed", "vault http://", "does not serve requests", "unseal Vault");
}

#[test]
fn what_a_policy_lacks_is_printed_as_the_lines_to_add() {
    let Some(bao) = configured() else { return };
    bao.policy("agent", &[("nothing", &["read"])]);
    let examined = examine(&prepared(world_with_tools_server(&bao)));
    let next = "add this to the policy `agent` of grant `dev`";
    examined.assert_error("vault-policy", "vault http://", "lacks `update pki/issue/agent`", next);
    let line = "path \"pki/issue/agent\" {\n  capabilities = [\"update\"]\n}";
    examined.assert_error("vault-policy", "vault http://", "lacks `update pki/issue/agent`", line);
    assert_eq!(examined.code, 77);
}

/// The real OpenBao behind a proxy that changes its `Date`.
#[test]
fn a_clock_that_differs_from_vaults_is_found() {
    let Some(bao) = configured() else { return };
    let skewed = |date: &'static str| -> Examined {
        let proxy =
            VaultFaultProxy::in_front_of(bao.address().trim_start_matches("http://").parse().unwrap());
        proxy.rule("sys/health", Action::Dated(date));
        let world = world_with_vault_at(&proxy.address(), &vault::token_file_auth(&bao));
        examine(&prepared(with_tools_server(world)))
    };
    let next = "timedatectl";
    let past = skewed("Tue, 15 Nov 1994 08:12:31 GMT");
    past.assert_error("clock-skew", "vault http://", "ahead of Vault's", next);
    let future = skewed("Fri, 31 Dec 2100 23:59:59 GMT");
    future.assert_error("clock-skew", "vault http://", "behind Vault's", next);
}

#[test]
fn a_secret_without_an_engine_is_found_although_the_policy_allows_it() {
    let Some(bao) = configured() else { return };
    bao.policy("agent", &[("*", &["read", "update"])]);
    let world = vault::world(&bao).secret("gone", "vault = \"databse/creds/readonly\"");
    let world = world.server("tools", Server::fixture().env("A", "{gone.password}"));
    let examined = examine(&prepared(world));
    let what = "nothing is mounted at `databse/creds/readonly`";
    examined.assert_error("vault-setup", "vault http://", what, "");
    assert_eq!(examined.code, 77);
}

#[test]
fn a_wrapped_login_is_not_used_up_and_what_it_leaves_open_is_said() {
    let Some(bao) = configured() else { return };
    let auth = vault::minter(&bao, &mut vault::token_role(&["agent"]));
    let wrapped = wrap(&bao, "auth/approle/role/sidecar/secret-id", &json!({}));
    vault::write_file(&bao, "secret-id", &wrapped);
    let auth = auth.replacen(" }", ", secret-id-wrapped = true, role = \"sidecar\" }", 1);
    let examined = examine(&prepared(with_tools_server(vault::world_with_vault(&bao, &auth))));
    examined.assert_warning("vault-not-checked", "vault http://", "not checked: ", "");
    let next = "a wrapped secret-id works only once";
    examined.assert_warning("server-not-tried", "server tools", "the secret `cert` from Vault", next);
    assert!(unwrap(&bao, &wrapped)["secret_id"].is_string(), "doctor has unwrapped it");
}
