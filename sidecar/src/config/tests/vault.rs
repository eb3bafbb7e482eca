//! Tests of `[vault]`, and of a configuration that uses every key of Vault.

use super::*;

pub(super) const VAULT: &str =
    "[vault]\naddress = 'https://v'\nauth = { method = 'token-file', path = '/t' }\n";

/// A configuration with every key that concerns Vault.
const EVERY_KEY: &str = r#"
[relay]
unix = "/run/cofferdam/relay/relay.sock"
unix-grant = "dev"

[vault]
address = "https://vault.example.com:8200"
namespace = "team-a"
ca-file = "/etc/cofferdam/vault-ca.pem"
auth = { method = "approle", role-id-file = "/etc/cofferdam/role-id", secret-id-file = "/etc/cofferdam/secret-id" }
token-role = "cofferdam"

[secrets.github]
kv = "secret/github"
refresh = "1m"
[secrets.linear]
kv = "secret/linear"
[secrets.warehouse]
vault = "database/creds/readonly"
public = ["username"]
[secrets.warehouse-rw]
vault = "database/creds/readwrite"
public = ["username"]
[secrets.client-cert]
vault = "pki/issue/agent"
write = { common_name = "agent.internal", ttl = "10m", key_bits = 2048, alt_names = ["a", "b"], exclude_cn_from_sans = true }

[servers.github]
command = ["github-mcp-server", "stdio"]
env = { GITHUB_TOKEN = "{github.token}" }
tools = { allow = ["get_*", "search_*"], ask = ["create_*"], deny = ["delete_*"] }
replace = "hitless"
[servers.warehouse]
command = ["postgres-mcp"]
env = { DATABASE_URI = "postgresql://{warehouse.username}:{warehouse.password:url}@db.internal/wh?sslcert={file:client.pem}" }
files = { "client.pem" = "{client-cert.certificate}\n{client-cert.private_key}" }
reload = "file"
[[servers.warehouse.scopes]]
tools = ["write_*"]
env = { DATABASE_URI = "postgresql://{warehouse-rw.username}:{warehouse-rw.password:url}@db.internal/wh?sslcert={file:client.pem}" }
[servers.linear]
url = "https://mcp.linear.app/mcp"
headers = { Authorization = "Bearer {linear.api_key}" }

[grants.dev]
servers = ["github", "warehouse", "linear"]
vault-policies = ["agent-dev"]
ttl = "8h"
"#;

#[test]
fn every_key_of_vault_is_read_as_written() {
    let config = valid_in_etc(EVERY_KEY);
    let vault = config.vault.as_ref().unwrap();
    assert_eq!(vault.address, "https://vault.example.com:8200/");
    assert_eq!(vault.namespace.as_ref().unwrap().as_str(), "team-a");
    assert_eq!(vault.ca_file.as_deref(), Some(Path::new("/etc/cofferdam/vault-ca.pem")));
    assert_eq!(vault.token_role.as_deref(), Some("cofferdam"));
    let origin = |name: &str| config.secrets[&name.parse().unwrap()].origin.vault().unwrap();
    let refreshed = |name: &str| match origin(name) {
        VaultOrigin::Kv { path, refresh } => (path.as_str().to_owned(), refresh.as_secs()),
        other => panic!("{other:?}"),
    };
    assert_eq!(refreshed("github"), ("secret/github".to_owned(), 60));
    assert_eq!(refreshed("linear"), ("secret/linear".to_owned(), 300));
    let VaultOrigin::Generated { path, write: None } = origin("warehouse") else { panic!("a path to read") };
    assert_eq!(path.as_str(), "database/creds/readonly");
    let VaultOrigin::Generated { write: Some(write), .. } = origin("client-cert") else {
        panic!("a path to write")
    };
    assert_eq!(
        serde_json::to_value(write).unwrap(),
        serde_json::json!({
            "common_name": "agent.internal", "ttl": "10m", "key_bits": 2048, "alt_names": ["a", "b"],
            "exclude_cn_from_sans": true
        })
    );
    assert_eq!(config.grants[&"dev".parse().unwrap()].vault_policies, ["agent-dev"]);
    let warehouse = &config.servers[&"warehouse".parse().unwrap()];
    assert_eq!(warehouse.every_secret().len(), 3);
    assert_eq!(warehouse.secrets().len(), 2);
    assert_eq!(warehouse.scope("write_rows").unwrap().secrets().len(), 2);
}

#[test]
fn vault_needs_an_address_and_a_login() {
    assert_problems(
        "[vault]\nnamespace = 'a'\n",
        "cofferdam.toml:1: `vault` has no `address`\n  hint: write one such as `https://vault.example.com:8200`\n\
         cofferdam.toml:1: `vault` does not say how to log in\n  \
         hint: set `auth`, as in `auth = { method = \"token-file\", path = \"/run/vault-token\" }`",
    );
    assert_problems(
        "[vault]\nadress = 'https://v'\nauth = 3\n[secrets.a]\nkv = 'a/b'\n",
        "cofferdam.toml:2: unknown key `vault.adress`\n  hint: did you mean `address`?\n\
         cofferdam.toml:3: `vault.auth` cannot be a number\n  hint: write a table",
    );
}

#[test]
fn an_address_is_a_host_with_an_optional_port() {
    let vault = |address: &str| VAULT.replace("https://v'", &format!("{address}'"));
    for address in [
        "https://vault.example.com",
        "https://vault.example.com/",
        "https://10.0.0.1:8200",
        "https://[2001:db8::1]:8200",
        "http://127.0.0.1:8200",
        "http://[::1]:8200",
        "http://localhost:8200",
    ] {
        valid_in_etc(&vault(address));
    }
    let url = "write one such as `https://vault.example.com:8200`";
    let bare = "leave out what follows the host and the port; `vault.namespace` names a namespace";
    for (address, message, hint) in [
        ("", "is not a URL", url),
        ("https://", "is not a URL", url),
        ("https://a b", "is not a URL", url),
        ("https://v:0", "is not a URL", url),
        ("https://v:99999", "is not a URL", url),
        ("https://v:", "is not a URL", url),
        ("vault.example.com:8200", "is neither `https://` nor `http://`", url),
        ("/v", "is neither `https://` nor `http://`", url),
        ("unix://v", "is neither `https://` nor `http://`", url),
        ("https://v/v1", "has a path, a query or a fragment", bare),
        ("https://v?a=b", "has a path, a query or a fragment", bare),
        ("https://v#a", "has a path, a query or a fragment", bare),
        (
            "https://user:pass@v",
            "holds a user or a password",
            "leave it out: `vault.auth` says how to log in",
        ),
        (
            "http://v",
            "would send tokens across the network unencrypted",
            "use an `https://` URL; `http://` is for loopback only",
        ),
        (
            "http://127.0.0.1.example",
            "would send tokens across the network unencrypted",
            "use an `https://` URL; `http://` is for loopback only",
        ),
    ] {
        assert_problems(
            &vault(address),
            &format!("cofferdam.toml:2: `vault.address` {message}\n  hint: {hint}"),
        );
    }
}

#[test]
fn keys_that_need_tls_are_refused_with_http() {
    assert_problems(
        "[vault]\naddress = 'http://localhost'\nca-file = '/etc/cofferdam/vault-ca.pem'\n\
         auth = { method = 'cert', cert-file = '/c', key-file = '/k', role = 'r' }\n",
        "cofferdam.toml:3: `vault.ca-file` needs TLS, and `vault.address` is `http://`\n  \
         hint: use `https://`, or leave it out\n\
         cofferdam.toml:4: `vault.auth.method` needs TLS, and `vault.address` is `http://`\n  \
         hint: use `https://`, or leave it out",
    );
}

#[test]
fn the_ca_file_is_read_and_checked() {
    let hint = "write the CA's certificate there, which begins with `-----BEGIN CERTIFICATE-----`";
    for (file, message, hint) in [
        (
            "missing.pem",
            "cannot be read: entity not found",
            "name a file that the user who runs the sidecar can read",
        ),
        ("empty.pem", "holds no certificate in PEM", hint),
        ("key.pem", "holds no certificate in PEM", hint),
        ("truncated.pem", "is not PEM", hint),
        ("invalid.pem", "holds a certificate that cannot be read", hint),
    ] {
        assert_problems(
            &format!("{VAULT}ca-file = '/etc/cofferdam/{file}'\n"),
            &format!("cofferdam.toml:4: `vault.ca-file` {message}\n  hint: {hint}"),
        );
    }
}

#[test]
fn errors_about_vault_quote_no_value() {
    let text = "[vault]\naddress = 'hunter2 a'\nnamespace = 'hunter2/'\nca-file = '~/hunter2'\ntoken = 'hunter2'\n\
         token-role = 'hunter2 b'\nauth = { method = 'jwt', role = 'hunter2 c', secret-id = 'hunter2', jwt-file = '', mount = '/hunter2' }\n\
         [secrets.a]\nvault = '/hunter2'\nwrite = { a = [2026-01-01, 'hunter2'] }\n\
         [grants.g]\nservers = []\nvault-policies = ['hunter2 d']\n\
         [servers.a]\ncommand = ['a']\nreplace = 'hunter2'\n[[servers.a.scopes]]\ntools = [\"hunter2\\n\"]\nenv = { T = 'hunter2 {' }\n";
    let problems = check(text).unwrap_err();
    assert_eq!(problems.list.len(), 15, "{problems}");
    assert!(!problems.to_string().contains("hunter2"), "{problems}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 128, ..Default::default() })]

    /// A file that was edited at random is accepted or refused with a problem; the check never panics.
    #[test]
    fn a_damaged_vault_configuration_is_checked_without_panic(start in 0_usize..2600, length in 0_usize..40, insert in "[\\[\\]{}\"'=#.\\na1]{0,3}") {
        let mut text = EVERY_KEY.to_owned();
        let (start, end) = (text.floor_char_boundary(start), text.floor_char_boundary(start + length));
        text.replace_range(start..end, &insert);
        if let Err(problems) = check(&text) {
            proptest::prop_assert!(!problems.list.is_empty());
        }
    }
}
