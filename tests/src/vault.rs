//! A sidecar at a real OpenBao: what has to be there first, worlds that log in to it, and what it knows afterwards.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::deadline::wait_until;
use crate::harness::Harness;
use crate::openbao::OpenBao;
use crate::server::Server;
use crate::world::{Builder, World};

/// The value of `secret/github`, field `token`, in a prepared server.
pub const CANARY: &str = "ghp-CANARY-of-the-vault-4711";

/// A login of the sidecar's own that can do nothing but make tokens through a role.
#[track_caller]
pub fn minter(bao: &OpenBao, role: Value) -> String {
    bao.api("POST", "sys/auth/approle", json!({"type": "approle"}));
    bao.policy(
        "minter",
        &[("auth/token/create/cofferdam", &["update"]), ("auth/token/revoke-accessor", &["update"])],
    );
    bao.api("POST", "auth/approle/role/sidecar", json!({"token_policies": ["minter"], "token_ttl": "1m"}));
    bao.api("POST", "auth/token/roles/cofferdam", role);
    let id = bao.api("GET", "auth/approle/role/sidecar/role-id", Value::Null);
    let secret = bao.api("POST", "auth/approle/role/sidecar/secret-id", json!({}));
    let write = |name: &str, value: &Value| {
        let path = bao.directory.path().join(name);
        fs::write(&path, value.as_str().expect("an id is text")).expect("a temporary directory is writable");
        path
    };
    let role_id = write("role-id", &id["data"]["role_id"]);
    let secret_id = write("secret-id", &secret["data"]["secret_id"]);
    format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret_id:?} }}\n\
         token-role = \"cofferdam\""
    )
}

/// A harness that goes in an orderly way.
#[track_caller]
pub fn leave(mut harness: Harness) {
    harness.close_stdin();
    harness.wait_for_exit();
}

/// A server with a key-value secret, a role for certificates that are leased, a policy for agents and a login.
#[track_caller]
pub fn prepared(bao: Option<OpenBao>) -> Option<OpenBao> {
    let bao = bao?;
    if bao.call("GET", "sys/mounts/secret", Some(&bao.root_token), &Value::Null).status != 200 {
        bao.api("POST", "sys/mounts/secret", json!({"type": "kv", "options": {"version": "2"}}));
    }
    bao.api("POST", "sys/mounts/pki", json!({"type": "pki"}));
    bao.api(
        "POST",
        "pki/root/generate/internal",
        json!({"common_name": "test", "ttl": "24h", "key_type": "ec"}),
    );
    certificates_live(&bao, "10m");
    let data = json!({"token": CANARY, "nested": {"a": "b"}, "empty": ""});
    wait_until("the engine takes secrets", || {
        let body = json!({"data": data});
        bao.call("POST", "secret/data/github", Some(&bao.root_token), &body).status == 200
    });
    bao.api("POST", "secret/data/other", json!({"data": {"token": CANARY}}));
    bao.policy("agent", &[("secret/data/github", &["read"]), ("pki/issue/agent", &["update"])]);
    bao.policy("sidecar", &[("auth/token/create", &["update"]), ("auth/token/revoke-accessor", &["update"])]);
    let login = bao.api(
        "POST",
        "auth/token/create",
        json!({"policies": ["sidecar", "agent"], "ttl": "1h", "no_parent": true}),
    );
    let token = login["auth"]["client_token"].as_str().expect("a new token is text");
    fs::write(bao.directory.path().join("token"), token).expect("a temporary directory is writable");
    Some(bao)
}

/// So long is a certificate lent from now on.
#[track_caller]
pub fn certificates_live(bao: &OpenBao, ttl: &str) {
    let role = json!({"allow_any_name": true, "enforce_hostnames": false, "generate_lease": true, "ttl": ttl, "key_type": "ec"});
    bao.api("POST", "pki/roles/agent", role);
}

/// A world that logs in with the token of a file.
pub fn world(bao: &OpenBao) -> Builder {
    connected(bao, &token_file(bao))
}

/// The login of [`world`].
pub fn token_file(bao: &OpenBao) -> String {
    let token = bao.directory.path().join("token");
    format!("auth = {{ method = \"token-file\", path = {token:?} }}")
}

/// A world that logs in as `auth` says.
pub fn connected(bao: &OpenBao, auth: &str) -> Builder {
    connected_at(&bao.address(), auth)
}

/// The same by another way to the server.
pub fn connected_at(address: &str, auth: &str) -> Builder {
    World::new()
        .line(&format!("[vault]\naddress = \"{address}\"\n{auth}"))
        .grant("vault-policies = [\"agent\"]")
}

/// A file of its owner's beside the server's own.
#[track_caller]
pub fn file(bao: &OpenBao, name: &str, text: &str) -> PathBuf {
    let path = bao.directory.path().join(name);
    let mut options = fs::File::options();
    let file = options.create(true).write(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.expect("a temporary directory is writable");
    path
}

/// One server with a certificate that Vault leases.
pub fn with_certificate(bao: &OpenBao) -> Builder {
    with_certificate_in(world(bao))
}

/// The same in another world.
pub fn with_certificate_in(builder: Builder) -> Builder {
    certified(builder, Server::fixture())
}

/// The same, with a process that keeps the certificate it was started with.
pub fn with_kept_certificate_in(builder: Builder) -> Builder {
    certified(builder, Server::fixture().line("replace = \"never\""))
}

fn certified(builder: Builder, server: Server) -> Builder {
    builder
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("tools", server.file("key.pem", "{cert.private_key}").allow(&["*"]))
}

/// What the sidecar logs in with, in [`world`].
pub fn login_token(bao: &OpenBao) -> String {
    fs::read_to_string(bao.directory.path().join("token")).expect("the token was written")
}

/// Leases of certificates.
#[track_caller]
pub fn leases(bao: &OpenBao) -> usize {
    list(bao, "sys/leases/lookup/pki/issue/agent").len()
}

/// The last part of one of them.
#[track_caller]
pub fn lease_id(bao: &OpenBao) -> String {
    list(bao, "sys/leases/lookup/pki/issue/agent").pop().expect("there is a lease")
}

/// What Vault knows of the tokens of our sessions.
#[track_caller]
pub fn session_tokens(bao: &OpenBao) -> Vec<Value> {
    tokens(bao, |token| token["meta"]["session"].is_string())
}

/// Those that the choice falls on.
#[track_caller]
pub fn tokens(bao: &OpenBao, choice: impl Fn(&Value) -> bool) -> Vec<Value> {
    let look = |accessor: String| {
        let body = json!({"accessor": accessor});
        bao.call("POST", "auth/token/lookup-accessor", Some(&bao.root_token), &body).body["data"].clone()
    };
    list(bao, "auth/token/accessors").into_iter().map(look).filter(|token| choice(token)).collect()
}

/// What Vault lists at a path; nothing where nothing is there.
#[track_caller]
pub fn list(bao: &OpenBao, path: &str) -> Vec<String> {
    let answer = bao.call("LIST", path, Some(&bao.root_token), &Value::Null);
    let keys = answer.body["data"]["keys"].as_array().cloned().unwrap_or_default();
    keys.iter().filter_map(|key| key.as_str().map(str::to_owned)).collect()
}
