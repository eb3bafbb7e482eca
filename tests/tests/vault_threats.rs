//! What an attacker can and cannot do with a stolen accessor, token or lease id: the lines of THREAT-MODEL.md about
//! Vault.

use std::fs;
use std::path::Path;

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    lease_id, leases, login_token, minter, prepared, session_tokens, token_role, world_with_tools_server,
    world_with_vault, world_with_vault_at,
};
use cofferdam_tests::vault_fault_proxy::VaultFaultProxy;
use serde_json::{Value, json};

#[test]
fn an_accessor_from_the_disk_is_no_token_and_no_token_is_on_the_disk() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = world_with_tools_server(&bao).start();
    let _harness = world.connected("tools");
    let session_tokens_before = session_tokens(&bao);
    let state_files = all_below(&world.layout().state);
    for token in &session_tokens_before {
        let accessor = token["accessor"].as_str().unwrap();
        assert!(state_files.contains(accessor), "the accessor is not in the state directory");
        for (method, path) in [("GET", "auth/token/lookup-self"), ("GET", "secret/data/github")] {
            assert_eq!(bao.call(method, path, Some(accessor), &Value::Null).status, 403, "{path}");
        }
        // Nor does a look-up of the accessor give the token.
        let facts = bao.token_facts(accessor).expect("the token is live");
        assert_eq!(facts["id"], "", "{facts}");
        // Without a token an accessor cannot even be revoked.
        let body = json!({"accessor": accessor});
        assert_eq!(bao.call("POST", "auth/token/revoke-accessor", None, &body).status, 403);
    }
    assert!(!session_tokens_before.is_empty());
    assert!(!state_files.contains(&login_token(&bao)), "the login's token is on the disk");
    assert!(has_token(&login_token(&bao)) && !has_token(&state_files), "a token is on the disk");
}

#[test]
fn a_sessions_token_is_limited_to_its_grants_policies_and_creates_no_other() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    // With this role, a token for which no policies are requested gets all of these.
    let auth = minter(&bao, &mut token_role(&["agent", "minter"]));
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = world_with_vault_at(&proxy.address(), &auth)
        .secret("github", "kv = \"secret/github\"")
        .server("tools", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
        .start();
    let _harness = world.connected("tools");
    // The token is in the sidecar's memory only; the proxy recorded it in transit.
    let read = proxy.seen().into_iter().find(|seen| seen.path == "secret/data/github");
    let token = read.and_then(|seen| seen.token).expect("the secret was read with a token");
    let status_of =
        |method: &str, path: &str, body: Value| bao.call(method, path, Some(&token), &body).status;
    assert_eq!(status_of("GET", "secret/data/github", Value::Null), 200);
    for (method, path, body) in [
        ("GET", "secret/data/other", Value::Null),
        ("POST", "auth/token/create", json!({"policies": ["agent"]})),
        ("POST", "auth/token/create/cofferdam", json!({"policies": ["agent"]})),
        ("LIST", "auth/token/accessors", Value::Null),
        ("POST", "sys/leases/revoke", json!({"lease_id": "pki/issue/agent/x"})),
        ("GET", "sys/policies/acl/agent", Value::Null),
    ] {
        assert_eq!(status_of(method, path, body), 403, "{method} {path}");
    }
}

#[test]
fn a_lease_can_be_neither_renewed_nor_looked_up_without_a_token() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let auth = minter(&bao, &mut token_role(&["agent"]));
    let server = Server::fixture().file("key.pem", "{cert.private_key}").env("KEY", "{file:key.pem}");
    let world = world_with_vault(&bao, &auth)
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("tools", server.allow(&["*"]))
        .start();
    let _harness = world.connected("tools");
    assert_eq!(leases(&bao), 1);
    let lease = json!({"lease_id": format!("pki/issue/agent/{}", lease_id(&bao))});
    for path in ["sys/leases/renew", "sys/leases/lookup", "sys/leases/revoke"] {
        assert_eq!(bao.call("POST", path, None, &lease).status, 403, "{path}");
    }
    // The server has no token, neither in its environment variables nor in its files.
    let process = world.fixture_processes("tools")[0];
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("PID_FILE=") && !has_token(&environment), "{environment}");
    let key = environment.split('\0').find_map(|variable| variable.strip_prefix("KEY=")).unwrap();
    let files = all_below(Path::new(key).parent().unwrap());
    assert!(files.contains("PRIVATE KEY") && !has_token(&files), "a token is in a server's file");
}

/// Whether there is anything like a token of OpenBao's: `s.` and letters.
fn has_token(text: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric();
    text.match_indices("s.").any(|(at, _)| {
        let before = at.checked_sub(1).map(|at| text.as_bytes()[at]);
        let tail = text.as_bytes()[at + 2..].iter().take_while(|byte| is_word(byte)).count();
        tail >= 24 && before.is_none_or(|byte| !is_word(&byte))
    })
}

/// Every file below a folder, as text.
fn all_below(folder: &Path) -> String {
    let mut text = String::new();
    for path in
        fs::read_dir(folder).expect("the state directory is readable").flatten().map(|entry| entry.path())
    {
        match path.is_dir() {
            true => text.push_str(&all_below(&path)),
            false => text.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap_or_default())),
        }
    }
    text
}
