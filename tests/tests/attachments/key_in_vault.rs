//! Attachments whose platform has its API key in Vault, as a static secret.

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::vault::{new_token, prepared, session_tokens, token_file_auth};
use serde_json::json;

use super::*;

/// A setup whose API key is in Vault, with this value at first. A policy of the platform allows reading the key.
#[track_caller]
fn setup_with_key(key: &str) -> Option<(OpenBao, E2bSetup)> {
    let bao = prepared(OpenBao::configured())?;
    bao.write_secret("e2b", json!({"value": key}));
    bao.policy("platform-keys", &[("secret/data/e2b", &["read"])]);
    let login = bao.create_token(new_token(&["sidecar", "platform-keys"]).ttl("1h").no_parent(true));
    std::fs::write(bao.directory.path().join("token"), login).expect("a temporary directory is writable");
    let vault = format!("vault.address = '{}'\nvault.{}", bao.address(), token_file_auth(&bao));
    let setup = E2bSetup::with(|builder, _| {
        builder
            .secret("e2b-key", "kv = 'secret/e2b'")
            .line(&vault)
            .line("platforms.e2b.vault-policies = ['platform-keys']")
    })?;
    Some((bao, setup))
}

#[test]
fn a_key_in_vault_is_read_with_the_platforms_policies_and_its_token_is_revoked() {
    let Some((bao, mut setup)) = setup_with_key(API_KEY) else { return };
    let attach = setup.attach(&[]);
    assert_eq!(setup.shim().call_text("echo", json!({"text": "one"})), "one");
    let [token] = session_tokens(&bao).try_into().expect("one token reads the key");
    assert_eq!(token["meta"]["session"], "platform-e2b");
    assert_eq!(token["policies"], json!(["default", "platform-keys"]));
    // A reload revokes the token.
    setup.world.cofferdam_text(&["reload"]);
    wait_until("the token is revoked", || session_tokens(&bao).is_empty());
    attach.stop();
    setup.attach(&[]).stop();
    assert_eq!(session_tokens(&bao).len(), 1);
    setup.world.stop_sidecar();
    assert_eq!(session_tokens(&bao), Vec::<Value>::new());
    setup.world.assert_secret_not_leaked(API_KEY);
}

#[test]
fn a_key_that_is_replaced_in_vault_is_used_at_the_next_attach() {
    let Some((bao, setup)) = setup_with_key("e2b_of_another_account") else { return };
    let mut refused = setup.start_attach(&[]);
    assert_eq!(refused.wait().code(), Some(77), "{}", refused.printed());
    setup.assert_nothing_left();
    bao.write_secret("e2b", json!({"value": API_KEY}));
    // A refused key is read again at most every few seconds.
    wait_until("the replaced key is used", || setup.start_attach(&["--detach"]).wait().success());
}

#[test]
fn the_check_finds_a_policy_that_does_not_allow_to_read_the_key() {
    let Some((bao, setup)) = setup_with_key(API_KEY) else { return };
    let allowed = setup.world.cofferdam_text(&["check", "--online"]);
    assert!(
        allowed.contains("platform e2b: the token that reads its API key has `platform-keys`"),
        "{allowed}"
    );
    bao.policy("platform-keys", &[("secret/data/other", &["read"])]);
    let checked = setup.world.cofferdam(&["check", "--online"]);
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success(), "{printed}");
    assert!(printed.contains("secret `e2b-key` of the platform's `api-key`"), "{printed}");
}

#[test]
fn a_sealed_vault_is_waited_for() {
    let Some((bao, setup)) = setup_with_key(API_KEY) else { return };
    bao.seal();
    let attach = setup.start_attach(&[]);
    attach.wait_until_output_has("read the API key of the platform `e2b`");
    attach.wait_until_output_has("retrying in");
    bao.unseal();
    attach.wait_until_attached(1);
    attach.stop();
}
