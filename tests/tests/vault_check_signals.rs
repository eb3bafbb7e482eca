//! `cofferdam check --online` that is interrupted: whatever it was doing, it leaves no token behind.

use std::fs;
use std::time::Duration;

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{Running, into_file};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    leases, login_token, minter, prepared, token_file_auth, token_role, tokens, world_with_vault_at,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Longer than a signal needs to arrive, shorter than the check waits for a response.
const REQUEST_DELAY: Duration = Duration::from_millis(1500);

/// Interrupts a check while Vault processes a request to `path`, which Vault completes even if the client disconnects.
#[track_caller]
fn assert_interrupted_check_cleans_up(bao: &OpenBao, auth: &str, path: &str, signal: Signal) {
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = world_with_vault_at(&proxy.address(), auth)
        .secret("github", "kv = \"secret/github\"")
        .server("tools", Server::fixture().env("TOKEN", "{github.token}"))
        .prepare();
    let before = accessors(bao);
    let responses_before = responses(bao, path);
    proxy.rule(path, Action::Delay(REQUEST_DELAY));
    let mut check = world.cofferdam_command();
    let log = world.layout().root().join("check.log");
    check.args(["check", "--online", "-c"]).arg(&world.layout().config);
    check.stdout(into_file(&log)).stderr(into_file(&log));
    let mut check = Running::spawn(check, "cofferdam check --online");
    wait_until("the request is sent", || proxy.count(path) > 0);
    check.signal(signal);
    let status = check.wait(PATIENCE);
    let printed = fs::read_to_string(&log).expect("the log exists");
    assert_eq!(status.code(), Some(69), "{path}: {status}: {printed}");
    assert!(printed.contains("error: interrupted before every check was done"), "{path}: {printed}");
    assert!(!printed.contains("was not revoked"), "{path}: {printed}");
    wait_until("Vault has completed the request", || responses(bao, path) > responses_before);
    assert_eq!(accessors(bao), before, "{path}: {printed}");
    assert_eq!(leases(bao), 0, "{path}");
}

fn accessors(bao: &OpenBao) -> Vec<String> {
    let accessor = |token: Value| token["accessor"].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<String> = tokens(bao, |_| true).into_iter().map(accessor).collect();
    all.sort();
    all
}

/// How many responses Vault has sent for this path.
fn responses(bao: &OpenBao, path: &str) -> usize {
    let is_response = |line: &&Value| line["type"] == "response" && line["request"]["path"] == path;
    bao.audit().iter().filter(is_response).count()
}

#[test]
fn an_interrupted_check_revokes_all_tokens_except_the_users_own() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    for (path, signal) in [
        ("auth/token/lookup-self", Signal::SIGINT),
        ("auth/token/create", Signal::SIGINT),
        ("auth/token/create", Signal::SIGTERM),
        ("sys/internal/ui/mounts/secret/github", Signal::SIGTERM),
    ] {
        assert_interrupted_check_cleans_up(&bao, &token_file_auth(&bao), path, signal);
    }
    let login = login_token(&bao);
    assert!(bao.is_live(&login));
}

#[test]
fn an_interrupted_check_revokes_its_own_login_too() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    // Orphans do not end with the login.
    let auth = minter(&bao, token_role(&["agent"]).orphan(true));
    for (path, signal) in [
        ("auth/approle/login", Signal::SIGINT),
        ("auth/approle/login", Signal::SIGTERM),
        ("auth/token/create/cofferdam", Signal::SIGINT),
        ("auth/token/create/cofferdam", Signal::SIGTERM),
    ] {
        assert_interrupted_check_cleans_up(&bao, &auth, path, signal);
    }
}
