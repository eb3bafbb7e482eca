//! Helpers for tests of a sidecar with a real OpenBao: they prepare OpenBao, configure worlds (sidecars with their
//! servers) that log in to it, and query its tokens and leases.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};
use vaultrs::api::exec_with_result;
use vaultrs::api::pki::requests::{GenerateRootRequestBuilder, SetRoleRequestBuilder};
use vaultrs::api::token::requests::ListAccessorRequest;
use vaultrs::{kv2, pki};

use crate::deadline::wait_until;
use crate::harness::Harness;
use crate::openbao::{AppRole, KvEngine, NewToken, OpenBao, TokenRole};
use crate::server::Server;
use crate::world::{Builder, World};

/// The value of `secret/github`, field `token`, in a prepared OpenBao.
pub const CANARY: &str = "ghp-CANARY-of-the-vault-4711";

/// Sets up a login for the sidecar that can only create tokens through a role, and revoke them; returns its
/// configuration lines.
#[track_caller]
pub fn minter(bao: &OpenBao, role: &mut TokenRole) -> String {
    bao.enable_login("approle", "approle");
    bao.policy(
        "minter",
        &[("auth/token/create/cofferdam", &["update"]), ("auth/token/revoke-accessor", &["update"])],
    );
    bao.app_role("sidecar", &mut app_role_with(&["minter"], "1m"));
    bao.token_role("cofferdam", role);
    let role_id = write_file(bao, "role-id", &bao.role_id("sidecar"));
    let secret_id = write_file(bao, "secret-id", &bao.secret_id("sidecar"));
    format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret_id:?} }}\n\
         token-role = \"cofferdam\""
    )
}

/// A role whose tokens may have these policies.
pub fn token_role(policies: &[&str]) -> TokenRole {
    let mut role = TokenRole::default();
    role.allowed_policies(owned(policies));
    role
}

/// An AppRole whose tokens have these policies and this lifetime.
pub fn app_role_with(policies: &[&str], ttl: &str) -> AppRole {
    let mut role = AppRole::default();
    role.token_policies(owned(policies)).token_ttl(ttl);
    role
}

/// A token with these policies.
pub fn new_token(policies: &[&str]) -> NewToken {
    let mut wanted = NewToken::default();
    wanted.policies(owned(policies));
    wanted
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Ends a harness in an orderly way.
#[track_caller]
pub fn leave(mut harness: Harness) {
    harness.close_stdin();
    harness.wait_for_exit();
}

/// Prepares a server: a key-value secret, a role for certificates that are leased, policies, and a token for the
/// sidecar's login.
#[track_caller]
pub fn prepared(bao: Option<OpenBao>) -> Option<OpenBao> {
    let bao = bao?;
    if !bao.is_mounted("secret") {
        bao.mount_kv("secret", KvEngine::V2);
    }
    certificate_authority(&bao, "24h");
    set_certificate_ttl(&bao, "10m");
    let data = json!({"token": CANARY, "nested": {"a": "b"}, "empty": ""});
    wait_until("the engine accepts secrets", || {
        let write = async |client: &_| kv2::set(client, "secret", "github", &data).await;
        bao.as_token(&bao.root_token, write).is_ok()
    });
    bao.write_secret("other", json!({"token": CANARY}));
    bao.policy("agent", &[("secret/data/github", &["read"]), ("pki/issue/agent", &["update"])]);
    bao.policy("sidecar", &[("auth/token/create", &["update"]), ("auth/token/revoke-accessor", &["update"])]);
    let token = bao.create_token(new_token(&["sidecar", "agent"]).ttl("1h").no_parent(true));
    fs::write(bao.directory.path().join("token"), token).expect("a temporary directory is writable");
    Some(bao)
}

/// Mounts a certificate engine whose authority is valid for this long.
#[track_caller]
pub fn certificate_authority(bao: &OpenBao, ttl: &str) {
    bao.mount("pki", "pki");
    root_certificate(bao, ttl);
}

/// Generates a root certificate of that engine.
#[track_caller]
pub fn root_certificate(bao: &OpenBao, ttl: &str) {
    let mut root = GenerateRootRequestBuilder::default();
    root.common_name("test").ttl(ttl).key_type("ec").key_bits(256_u64);
    let generate =
        async |client: &_| pki::cert::ca::generate(client, "pki", "internal", Some(&mut root)).await;
    bao.operator("generate a root certificate", generate);
}

/// Sets how long certificates are leased from now on.
#[track_caller]
pub fn set_certificate_ttl(bao: &OpenBao, ttl: &str) {
    let mut role = SetRoleRequestBuilder::default();
    role.allow_any_name(true).enforce_hostnames(false).generate_lease(true);
    // `max_ttl` too: the mount's default would shorten a longer lifetime.
    role.ttl(ttl).max_ttl(ttl).key_type("ec").key_bits(256_u64);
    let set = async |client: &_| pki::role::set(client, "pki", "agent", Some(&mut role)).await;
    bao.operator("write a role for certificates", set);
}

/// A world whose sidecar logs in with the token of a file.
pub fn world(bao: &OpenBao) -> Builder {
    world_with_vault(bao, &token_file_auth(bao))
}

/// The `auth` setting of [`world`]: a login with the token of a file.
pub fn token_file_auth(bao: &OpenBao) -> String {
    let token = bao.directory.path().join("token");
    format!("auth = {{ method = \"token-file\", path = {token:?} }}")
}

/// A world whose sidecar logs in to OpenBao as the setting `auth` says.
pub fn world_with_vault(bao: &OpenBao, auth: &str) -> Builder {
    world_with_vault_at(&bao.address(), auth)
}

/// Like [`world_with_vault`], with another address of OpenBao, such as a proxy's.
pub fn world_with_vault_at(address: &str, auth: &str) -> Builder {
    World::new()
        .line(&format!("[vault]\naddress = \"{address}\"\n{auth}"))
        .grant("vault-policies = [\"agent\"]")
}

/// Writes a file, readable by its owner only, to OpenBao's directory; replaces an existing file.
#[track_caller]
pub fn write_file(bao: &OpenBao, name: &str, text: &str) -> PathBuf {
    let path = bao.directory.path().join(name);
    let mut options = fs::File::options();
    let file = options.create(true).write(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.expect("a temporary directory is writable");
    path
}

/// Like [`with_tools_server`], in [`world`].
pub fn world_with_tools_server(bao: &OpenBao) -> Builder {
    with_tools_server(world(bao))
}

/// Adds the server `tools`, which needs the secret `cert`: a certificate leased by Vault.
pub fn with_tools_server(builder: Builder) -> Builder {
    add_tools_server(builder, Server::fixture())
}

/// Like [`with_tools_server`], with a process that is never replaced for a new certificate.
pub fn with_tools_server_keeping_certificate(builder: Builder) -> Builder {
    add_tools_server(builder, Server::fixture().line("replace = \"never\""))
}

fn add_tools_server(builder: Builder, server: Server) -> Builder {
    builder
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("tools", server.file("key.pem", "{cert.private_key}").allow(&["*"]))
}

/// The token that the sidecar of [`world`] logs in with.
pub fn login_token(bao: &OpenBao) -> String {
    fs::read_to_string(bao.directory.path().join("token")).expect("the token was written")
}

/// The number of certificate leases.
#[track_caller]
pub fn leases(bao: &OpenBao) -> usize {
    list(bao, "sys/leases/lookup/pki/issue/agent").len()
}

/// The last path segment of one certificate lease.
#[track_caller]
pub fn lease_id(bao: &OpenBao) -> String {
    list(bao, "sys/leases/lookup/pki/issue/agent").pop().expect("there is a lease")
}

/// Vault's data about the tokens of sessions.
#[track_caller]
pub fn session_tokens(bao: &OpenBao) -> Vec<Value> {
    tokens(bao, |token| token["meta"]["session"].is_string())
}

/// Vault's data about the tokens that `choice` selects.
#[track_caller]
pub fn tokens(bao: &OpenBao, choice: impl Fn(&Value) -> bool) -> Vec<Value> {
    let accessors = bao
        .operator("list the tokens", async |client| exec_with_result(client, ListAccessorRequest {}).await);
    // A token may expire in between.
    let known = accessors.keys.iter().filter_map(|accessor| bao.token_facts(accessor));
    known.filter(|token| choice(token)).collect()
}

/// The keys that Vault lists at a path; empty where there is nothing.
#[track_caller]
pub fn list(bao: &OpenBao, path: &str) -> Vec<String> {
    let answer = bao.call("LIST", path, Some(&bao.root_token), &Value::Null);
    let keys = answer.body["data"]["keys"].as_array().cloned().unwrap_or_default();
    keys.iter().filter_map(|key| key.as_str().map(str::to_owned)).collect()
}
