//! What another party made or changed stays; what the command made follows the configuration, and can be removed.

use std::fs;

use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::app_role_with;
use serde_json::{Value, json};

use super::support::{file, set_up, state_of, world, write_value};

#[test]
fn remove_undoes_what_was_made_and_nothing_else() {
    let Some(bao) = OpenBao::configured() else { return };
    // An administrator's own objects, beside those that the command makes.
    bao.enable_login("approle", "approle");
    bao.app_role("other", &mut app_role_with(&["default"], "1h"));
    bao.policy("other", &[("x", &["read"])]);
    bao.mount_kv("mine", KvEngine::V1);
    let before = state_of(&bao);
    let world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    assert_ne!(state_of(&bao), before);
    set_up(&world, &bao.root_token, &["--remove", "--dry-run"])
        .assert_code(0)
        .assert_prints("policy `agent-dev`: will be removed\n");
    let run = set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
    assert!(!run.printed.contains("login method"), "the login method was there before: {}", run.printed);
    assert_eq!(state_of(&bao), before);
    assert!(!file(&world, "role-id").exists() && !file(&world, "secret-id").exists());
    assert!(!world.layout().state.join("vault-setup.json").exists());
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0).assert_prints("nothing to remove");
}

#[test]
fn an_engine_with_secrets_and_a_login_method_with_other_roles_stay() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    write_value(&bao);
    bao.app_role("other", &mut app_role_with(&["default"], "1h"));
    set_up(&world, &bao.root_token, &["--remove", "--yes"])
        .assert_code(65)
        .assert_prints("key-value engine `team/`: KEPT: it has secrets, which would be deleted with it\n")
        .assert_fails_with("login method `auth/approle/`: it has other roles");
    assert!(bao.is_mounted("team"));
    let state = state_of(&bao);
    assert!(
        state.contains_key("auth/approle/role/other") && !state.contains_key("auth/approle/role/cofferdam")
    );
    // When they are empty, the next run removes them.
    bao.api("DELETE", "auth/approle/role/other", Value::Null);
    bao.api("DELETE", "team/metadata/github", Value::Null);
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
    assert!(!bao.is_mounted("team"));
}

#[test]
fn what_another_party_changed_is_neither_overwritten_nor_removed() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    bao.policy("agent-dev", &[("elsewhere", &["read"])]);
    bao.api("POST", "auth/token/roles/sessions", json!({"allowed_policies": ["agent-dev", "more"]}));
    let state = state_of(&bao);
    // The check at the end says what the changed policy lacks.
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(77)
        .assert_prints("policy `agent-dev`: KEPT as it is: another party has changed it since")
        .assert_prints("\n  - path \"elsewhere\" { capabilities = [\"read\"] }\n")
        .assert_prints("token role `sessions`: KEPT as it is: another party has changed it since");
    assert_eq!(state_of(&bao), state);
    set_up(&world, &bao.root_token, &["--remove", "--yes"])
        .assert_code(65)
        .assert_fails_with("policy `agent-dev`: another party has changed it since");
    let after = state_of(&bao);
    assert_eq!(after["sys/policies/acl/agent-dev"], state["sys/policies/acl/agent-dev"]);
    assert!(
        after.contains_key("auth/token/roles/sessions") && !after.contains_key("sys/policies/acl/cofferdam")
    );
}

#[test]
fn what_existed_before_is_used_and_not_changed() {
    let Some(bao) = OpenBao::configured() else { return };
    bao.mount_kv("team", KvEngine::V1);
    bao.policy("agent-dev", &[("team/github", &["read"]), ("more", &["read"])]);
    bao.enable_login("approle", "approle");
    let policy = state_of(&bao)["sys/policies/acl/agent-dev"].clone();
    let world = world(&bao).prepare();
    // The foreign policy lacks what a token without the default policy needs: the check prints those lines.
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(77)
        .assert_prints("policy `agent-dev`: KEPT as it is: this command did not make it.")
        .assert_prints("\n  + path \"team/github\" {\n");
    assert_eq!(state_of(&bao)["sys/policies/acl/agent-dev"], policy);
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
    assert_eq!(state_of(&bao)["sys/policies/acl/agent-dev"], policy);
    assert!(bao.is_mounted("team"));
}

#[test]
fn policies_follow_the_configuration() {
    let Some(bao) = OpenBao::configured() else { return };
    let mut world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    let server = Server::fixture().env("KEY", "{linear.key}").allow(&["*"]);
    world.rewrite(|builder| builder.secret("linear", "kv = \"team/linear\"").server("linear", server));
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(0)
        .assert_prints("policy `agent-dev`: changed\n")
        .assert_prints("\n  + path \"team/data/linear\" {\n")
        .assert_prints("\n    path \"team/data/github\" {\n")
        .assert_prints("\nmade: policy `agent-dev`\n");
    set_up(&world, &bao.root_token, &["--dry-run"]).assert_prints("\nnothing to do\n");
}

#[test]
fn a_credential_file_of_another_party_is_not_replaced() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    fs::write(file(&world, "secret-id"), "of-another-party").unwrap();
    let run = set_up(&world, &bao.root_token, &["--yes"])
        .assert_prints("KEPT as it is: it belongs to no role, and this command did not write it");
    assert_ne!(run.code, 0);
    assert_eq!(fs::read_to_string(file(&world, "secret-id")).unwrap(), "of-another-party");
    fs::remove_file(file(&world, "secret-id")).unwrap();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    // A secret-id of the command's own that is no longer valid is replaced.
    let first = fs::read_to_string(file(&world, "secret-id")).unwrap();
    bao.api("POST", "auth/approle/role/cofferdam/secret-id/destroy", json!({"secret_id": first}));
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(0)
        .assert_prints("will be written, with mode 0600 (the role does not know its secret-id)");
    assert_ne!(fs::read_to_string(file(&world, "secret-id")).unwrap(), first);
}

#[test]
fn a_vault_that_was_emptied_is_set_up_again() {
    let (Some(first), Some(second)) = (OpenBao::configured(), OpenBao::configured()) else { return };
    let proxy = cofferdam_tests::vault_fault_proxy::VaultFaultProxy::in_front_of(first.listens_at);
    let world = super::support::world_at(&proxy.address()).prepare();
    set_up(&world, &first.root_token, &["--yes"]).assert_code(0);
    // Another server at the same address, as after the restart of a development server.
    let config = fs::read_to_string(&world.layout().config).unwrap();
    fs::write(&world.layout().config, config.replace(&proxy.address(), &second.address())).unwrap();
    let record = world.layout().state.join("vault-setup.json");
    set_up(&world, &second.root_token, &["--yes"])
        .assert_code(78)
        .assert_fails_with("is of another Vault: ")
        .assert_fails_with("hint: undo that set-up with the configuration that it was made with");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace(&proxy.address(), &second.address())).unwrap();
    set_up(&world, &second.root_token, &["--yes"]).assert_code(0).assert_prints("(it belongs to no role)");
    set_up(&world, &second.root_token, &["--dry-run"]).assert_prints("\nnothing to do\n");
}
