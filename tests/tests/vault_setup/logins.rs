//! The logins other than an AppRole with a plain secret-id.

use std::fs;

use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::vault::{leave, write_file};
use cofferdam_tests::vault_logins::{service_account, signed_web_token};
use cofferdam_tests::world::World;
use serde_json::{Value, json};

use super::support::{CANARY, file, set_up, state_of, world_with_login, write_value};

/// Starts the sidecar and makes a tool call whose secret is from Vault.
#[track_caller]
pub(crate) fn assert_session_works(world: &mut World, bao: &OpenBao) {
    if !bao.is_mounted("team") {
        bao.mount_kv("team", KvEngine::V2);
    }
    write_value(bao);
    world.start_sidecar();
    let mut harness = world.connected("tools");
    let shown = harness.call("env", json!({})).to_string();
    assert!(shown.contains("TOKEN=[redacted:github.token]") && !shown.contains(CANARY), "{shown}");
    leave(harness);
    world.stop_sidecar();
}

#[test]
fn a_wrapped_secret_id_is_for_one_start_and_renewed_by_the_next_run() {
    let Some(bao) = OpenBao::configured() else { return };
    let auth = "auth = { method = \"approle\", role-id-file = \"role-id\", secret-id-file = \"secret-id\", secret-id-wrapped = true, role = \"wrapped\" }\ntoken-role = \"sessions\"";
    let mut world = world_with_login(&bao.address(), auth).prepare();
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(0)
        .assert_prints("the secret-id is wrapped, and was created by `auth/approle/role/wrapped/secret-id`");
    let first = fs::read_to_string(file(&world, "secret-id")).unwrap();
    let info = bao.api("POST", "sys/wrapping/lookup", json!({"token": first}));
    assert_eq!(info["data"]["creation_path"], "auth/approle/role/wrapped/secret-id");
    assert_eq!(info["data"]["creation_ttl"], 600);
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    assert_session_works(&mut world, &bao);
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(0)
        .assert_prints("(the sidecar has used its wrapping token, which is for one start)");
    assert_ne!(fs::read_to_string(file(&world, "secret-id")).unwrap(), first);
    assert_session_works(&mut world, &bao);
    // A wrap that another party put there is not replaced, and not used.
    bao.app_role("evil", &mut cofferdam_tests::vault::app_role_with(&["default"], "1h"));
    let evil = cofferdam_tests::vault_logins::wrap(&bao, "auth/approle/role/evil/secret-id", &json!({}));
    fs::write(file(&world, "secret-id"), &evil).unwrap();
    let run = set_up(&world, &bao.root_token, &["--yes"])
        .assert_prints("KEPT as it is: ALERT: its wrapping token was not made by the AppRole");
    assert_ne!(run.code, 0);
    bao.api("DELETE", "auth/approle/role/evil", Value::Null);
    let run = set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(65);
    assert!(run.stderr.contains("secret-id: another party has changed it since"), "{}", run.stderr);
    assert!(!state_of(&bao).contains_key("auth/approle/role/wrapped"));
}

#[test]
fn a_role_for_web_tokens_is_bound_to_the_sidecars_token() {
    let Some(bao) = OpenBao::dev() else { return };
    let claims = json!({"iss": "https://ci.internal", "sub": "sidecar-1", "aud": ["vault"], "iat": 1_700_000_000_u64, "nbf": 1_700_000_000_u64, "exp": 4_000_000_000_u64});
    let jwt = signed_web_token(&bao, &claims);
    let jwt_file = write_file(&bao, "jwt", &jwt);
    let auth = format!(
        "auth = {{ method = \"jwt\", role = \"sidecar\", jwt-file = {jwt_file:?} }}\ntoken-role = \"sessions\""
    );
    let mut world = world_with_login(&bao.address(), &auth).prepare();
    let run = set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(0)
        .assert_prints("JWT role `sidecar` of `auth/jwt/`: new\n  + bound_audiences = vault\n  + bound_subject = sidecar-1\n");
    assert!(!run.printed.contains(jwt.rsplit('.').next().unwrap()), "the token is printed");
    assert_session_works(&mut world, &bao);
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    // A token of another subject cannot log in with this role.
    let other = signed_web_token(
        &bao,
        &json!({"sub": "other", "aud": ["vault"], "iat": 1_700_000_000_u64, "nbf": 1_700_000_000_u64, "exp": 4_000_000_000_u64}),
    );
    let answer = bao.call("POST", "auth/jwt/login", None, &json!({"role": "sidecar", "jwt": other}));
    assert_eq!(answer.status, 400, "{answer:?}");
    bao.api("DELETE", "team/metadata/github", Value::Null);
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
    let state = state_of(&bao);
    assert!(!state.contains_key("auth/jwt/role/sidecar") && state.contains_key("auth/jwt/role/agent"));
}

#[test]
fn an_issuer_that_vault_does_not_know_is_left_to_the_operator() {
    let Some(bao) = OpenBao::configured() else { return };
    let token = "e30.eyJpc3MiOiJodHRwczovL2NpIiwic3ViIjoiam9iIn0.c2ln";
    let jwt_file = write_file(&bao, "jwt", token);
    let auth = format!("auth = {{ method = \"jwt\", role = \"sidecar\", jwt-file = {jwt_file:?} }}");
    let world = world_with_login(&bao.address(), &auth).prepare();
    let run = set_up(&world, &bao.root_token, &["--yes"])
        .assert_prints("login method `auth/jwt/`: new\n")
        .assert_prints("`auth/jwt/` has to know who issues the sidecar's token\n    next: bao write auth/jwt/config oidc_discovery_url=https://ci");
    assert_ne!(run.code, 0, "the sidecar cannot log in yet");
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
    assert!(state_of(&bao)["sys/auth"].get("jwt/").is_none());
    // A login method that the operator has configured stays.
    set_up(&world, &bao.root_token, &["--yes"]).assert_prints("made: login method `auth/jwt/`\n");
    bao.api("POST", "auth/jwt/config", json!({"jwt_validation_pubkeys": [public_key(&bao)]}));
    set_up(&world, &bao.root_token, &["--remove", "--yes"])
        .assert_code(65)
        .assert_fails_with("login method `auth/jwt/`: another party has configured it since");
    // Without the file the claims are not known.
    fs::remove_file(&jwt_file).unwrap();
    set_up(&world, &bao.root_token, &["--dry-run"])
        .assert_prints("the role `sidecar` has to be bound to the sidecar's token, which is not known here:")
        .assert_prints("next: unless the role exists already: bao write auth/jwt/role/sidecar role_type=jwt");
}

#[test]
fn a_kubernetes_role_is_bound_to_the_sidecars_service_account() {
    let Some(bao) = OpenBao::dev() else { return };
    let jwt_file = write_file(&bao, "jwt", &service_account(&bao, &["default"]));
    let auth = format!(
        "auth = {{ method = \"kubernetes\", role = \"sidecar\", jwt-file = {jwt_file:?} }}\ntoken-role = \"sessions\""
    );
    let mut world = world_with_login(&bao.address(), &auth).prepare();
    set_up(&world, &bao.root_token, &["--yes"])
        .assert_code(0)
        .assert_prints("Kubernetes role `sidecar` of `auth/kubernetes/`: new\n  + audience = vault\n  + bound_service_account_names = cofferdam\n  + bound_service_account_namespaces = agents\n");
    assert_session_works(&mut world, &bao);
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
}

#[test]
fn sessions_without_a_token_role_are_children_of_the_login() {
    let Some(bao) = OpenBao::configured() else { return };
    let auth = "auth = { method = \"approle\", role-id-file = \"role-id\", secret-id-file = \"secret-id\" }";
    let mut world = world_with_login(&bao.address(), auth).prepare();
    set_up(&world, &bao.root_token, &["--yes", "--name", "box1"])
        .assert_code(0)
        .assert_prints("AppRole `box1` of `auth/approle/`: new\n")
        .assert_prints("  + token_policies = agent-dev, box1\n");
    assert_session_works(&mut world, &bao);
    // The name is remembered.
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    set_up(&world, &bao.root_token, &["--yes", "--name", "box2"])
        .assert_code(64)
        .assert_fails_with("this configuration was set up with the name `box1`");
}

#[test]
fn a_token_file_and_a_user_are_left_to_the_operator() {
    let Some(bao) = OpenBao::configured() else { return };
    let token_file = "auth = { method = \"token-file\", path = \"token\" }\ntoken-role = \"sessions\"";
    let mut world = world_with_login(&bao.address(), token_file).prepare();
    let run = set_up(&world, &bao.root_token, &["--yes"]).assert_code(66);
    let next = run.printed.lines().find(|line| line.contains("bao token create")).expect("the next step");
    assert!(next.contains("-orphan -no-default-policy -period=24h -policy=cofferdam -field=token"), "{next}");
    // The policy suffices for such a token.
    let token = bao.api(
        "POST",
        "auth/token/create-orphan",
        json!({"policies": ["cofferdam"], "no_default_policy": true, "period": "24h"}),
    );
    fs::write(file(&world, "token"), token["auth"]["client_token"].as_str().unwrap()).unwrap();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    assert_session_works(&mut world, &bao);
    let user = "auth = { method = \"userpass\", username = \"box\", password-file = \"password\" }";
    let world = world_with_login(&bao.address(), user).prepare();
    set_up(&world, &bao.root_token, &["--dry-run"]).assert_prints(
        "next: bao write auth/userpass/users/box password=- token_policies=cofferdam,agent-dev\n",
    );
}

#[test]
fn everything_is_made_in_the_configured_namespace() {
    let Some(bao) = OpenBao::configured() else { return };
    let lines = "namespace = \"team-a\"\nauth = { method = \"approle\", role-id-file = \"role-id\", secret-id-file = \"secret-id\" }\ntoken-role = \"sessions\"";
    let world = world_with_login(&bao.address(), lines).prepare();
    let run = set_up(&world, &bao.root_token, &["--yes"]);
    assert!(run.code != 0 && run.stderr.contains("hint: "), "the namespace does not exist: {}", run.stderr);
    bao.api("POST", "sys/namespaces/team-a", json!({}));
    let outside = state_of(&bao);
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("made: policy `agent-dev`\n");
    assert_eq!(state_of(&bao), outside);
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0).assert_prints("\nnothing to do\n");
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
}

/// A public key in PEM.
#[track_caller]
fn public_key(bao: &OpenBao) -> String {
    bao.mount("transit", "transit");
    bao.api("POST", "transit/keys/issuer", json!({"type": "ecdsa-p256"}));
    let key = bao.api("GET", "transit/keys/issuer", Value::Null);
    key["data"]["keys"]["1"]["public_key"].as_str().expect("the key is text").to_owned()
}
