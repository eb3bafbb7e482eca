//! A run that is interrupted at any change is completed by the next one, and can be removed.

use std::fs;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{Running, into_file};
use cofferdam_tests::vault_fault_proxy::{Action, FixedResponse, VaultFaultProxy};

use super::support::{set_up, state_of, world_at};

/// Every request that changes Vault, in the order of a run.
const CHANGES: [&str; 7] = [
    "POST sys/mounts/team",
    "PUT sys/policy/agent-dev",
    "PUT sys/policy/cofferdam",
    "POST auth/token/roles/sessions",
    "POST sys/auth/approle",
    "POST auth/approle/role/cofferdam",
    "POST auth/approle/role/cofferdam/secret-id",
];
const REFUSAL: FixedResponse =
    FixedResponse { status: 500, headers: "", body: "{\"errors\":[\"refused by the test\"]}" };

#[test]
fn a_lost_response_or_a_failure_at_any_change_is_completed_by_the_next_run() {
    let Some(bao) = OpenBao::configured() else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = world_at(&proxy.address()).prepare();
    let before = state_of(&bao);
    for change in CHANGES {
        // The change is made and its response lost; then it is not made at all.
        for action in [Action::CutAfter(0), Action::Respond(REFUSAL)] {
            proxy.rule(change, action);
            set_up(&world, &bao.root_token, &["--yes"])
                .assert_code(69)
                .assert_fails_with("run this again: it continues where it stopped");
            proxy.clear_rules();
            set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
            set_up(&world, &bao.root_token, &["--dry-run"]).assert_prints("\nnothing to do\n");
            let secret_ids = &state_of(&bao)["auth/approle/role/cofferdam secret-ids"];
            assert_eq!(secret_ids.as_array().map(Vec::len), Some(1), "{change}: {secret_ids}");
            set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
            assert_eq!(state_of(&bao), before, "{change}");
        }
    }
}

#[test]
fn what_a_killed_run_has_made_is_removed() {
    let Some(bao) = OpenBao::configured() else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = world_at(&proxy.address()).prepare();
    let before = state_of(&bao);
    for change in CHANGES {
        proxy.rule(change, Action::NeverRespond);
        let seen = || {
            let lines = proxy.seen().into_iter().map(|seen| format!("{} {}", seen.method, seen.path));
            lines.filter(|line| line == change).count()
        };
        let earlier = seen();
        let mut command = world.cofferdam_command();
        command.env("VAULT_TOKEN", &bao.root_token).args(["vault", "setup", "--yes", "-c"]);
        let log = world.layout().root().join("killed.log");
        command.arg(&world.layout().config).stdout(into_file(&log)).stderr(into_file(&log));
        let mut run = Running::spawn(command, "cofferdam vault setup");
        wait_until("the request arrives", || {
            assert!(run.is_running(), "{}", fs::read_to_string(&log).unwrap_or_default());
            seen() > earlier
        });
        run.kill9();
        proxy.clear_rules();
        set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
        assert_eq!(state_of(&bao), before, "{change}");
    }
}

/// Vault has no operation that would be refused halfway through a removal, so its responses are lost instead.
#[test]
fn an_interrupted_removal_is_completed_by_the_next_one() {
    let Some(bao) = OpenBao::configured() else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = world_at(&proxy.address()).prepare();
    let before = state_of(&bao);
    assert!(before["sys/mounts"].is_object(), "there is nothing to compare: {before:?}");
    for removal in ["DELETE sys/auth/approle", "DELETE sys/policy/cofferdam", "DELETE sys/mounts/team"] {
        set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
        proxy.rule(removal, Action::CutAfter(0));
        set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(69);
        proxy.clear_rules();
        set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
        assert_eq!(state_of(&bao), before, "{removal}");
    }
}
