//! Tests of `[platforms.*]` and `[attach.*]`.

use cofferdam_platforms::{KeepAwake, PlatformKind, WhenSuspended};

use super::*;

const SECRETS_AND_GRANT: &str = "[secrets.key]\nenv = 'KEY'\n[grants.dev]\nservers = []\n";

fn problems_with(text: &str) -> String {
    problems_of(&format!("{SECRETS_AND_GRANT}{text}"))
}

#[test]
fn platforms_and_attachments_are_read_as_written() {
    let config = valid(&format!(
        "{SECRETS_AND_GRANT}[platforms.e2b]\napi-key = '{{key.value}}'\n\
         [platforms.cube]\nkind = 'e2b'\napi-key = '{{key.value}}'\napi-url = 'https://cube.example/api'\n\
         sandbox-url = 'http://127.0.0.1:49983'\nshim = '/opt/cofferdam-shim'\n\
         [platforms.daytona]\napi-key = '{{key.value}}'\n\
         [attach.box1]\nplatform = 'cube'\nsandbox = 'i4x9k2'\ngrant = 'dev'\n\
         [attach.box2]\nplatform = 'daytona'\nsandbox = 'i4x9k2'\ngrant = 'dev'\nresume = true\nkeep-awake = true\n"
    ));
    let platform = |name: &str| &config.platforms[&name.parse().unwrap()];
    assert_eq!(platform("e2b").settings.kind, PlatformKind::E2b);
    assert_eq!(platform("e2b").settings.api_url, None);
    assert_eq!(platform("daytona").settings.kind, PlatformKind::Daytona);
    let cube = &platform("cube").settings;
    assert_eq!(cube.kind, PlatformKind::E2b);
    assert_eq!(cube.api_url.as_ref().unwrap(), "https://cube.example/api");
    assert_eq!(cube.sandbox_url.as_ref().unwrap(), "http://127.0.0.1:49983");
    assert_eq!(platform("cube").shim.as_deref(), Some(Path::new("/opt/cofferdam-shim")));
    let attachment = |name: &str| &config.attachments[&name.parse().unwrap()];
    let one = attachment("box1");
    assert_eq!((one.platform.as_str(), one.sandbox.as_str(), one.grant.as_str()), ("cube", "i4x9k2", "dev"));
    assert_eq!((one.when_suspended, one.keep_awake), (WhenSuspended::Refuse, KeepAwake::No));
    let two = attachment("box2");
    assert_eq!((two.when_suspended, two.keep_awake), (WhenSuspended::Resume, KeepAwake::Yes));
}

#[test]
fn a_platform_needs_a_kind_and_a_key() {
    assert_eq!(
        problems_with("[platforms.cube]\n[platforms.e2b]\napi-url = 'https://a'\n"),
        "cofferdam.toml:5: `platforms.cube` does not say which platform it is\n  \
         hint: set `kind = \"e2b\"` or `kind = \"daytona\"`\n\
         cofferdam.toml:5: `platforms.cube` has no `api-key`\n  \
         hint: name a field of a secret, as in `api-key = \"{e2b.value}\"`\n\
         cofferdam.toml:6: `platforms.e2b` has no `api-key`\n  \
         hint: name a field of a secret, as in `api-key = \"{e2b.value}\"`"
    );
}

#[test]
fn a_key_cannot_be_written_in_the_file() {
    for key in ["e2b_0123456789abcdef", "{key.value}x", "{key.value:url}", "{key.value}{key.value}", ""] {
        let problems = problems_with(&format!("[platforms.e2b]\napi-key = '{key}'\n"));
        assert_eq!(
            problems,
            "cofferdam.toml:6: `platforms.e2b.api-key` is not exactly one field of a secret\n  \
             hint: name a field of a secret, as in `api-key = \"{e2b.value}\"`",
            "{key}"
        );
    }
    assert_eq!(
        problems_with("[platforms.e2b]\napi-key = '{keys.value}'\n"),
        "cofferdam.toml:6: `platforms.e2b.api-key` names the secret `keys`, which is not defined\n  \
         hint: did you mean `key`?"
    );
}

const VAULT: &str =
    "[vault]\naddress = 'https://vault:8200'\nauth = { method = 'token-file', path = '/run/token' }\n";

#[test]
fn a_static_key_in_vault_needs_policies() {
    let platform = "[secrets.key]\nkv = 'secret/e2b'\n[platforms.e2b]\napi-key = '{key.value}'\n";
    let config = valid(&format!("{VAULT}{platform}vault-policies = ['platform-keys']\n"));
    assert_eq!(config.platforms[&"e2b".parse().unwrap()].vault_policies, ["platform-keys"]);
    assert_problems(
        &format!("{VAULT}{platform}"),
        "cofferdam.toml:7: `platforms.e2b` has no `vault-policies`, and its `api-key` is in Vault\n  \
         hint: name the policies that allow to read it, as in `vault-policies = [\"platform-keys\"]`",
    );
    assert_eq!(
        problems_with("[platforms.e2b]\napi-key = '{key.value}'\nvault-policies = ['platform-keys']\n"),
        "cofferdam.toml:7: `platforms.e2b.vault-policies` has no effect: the `api-key` is not in Vault\n  \
         hint: leave it out, or take the key from a secret with `kv`"
    );
}

#[test]
fn a_key_that_vault_creates_is_refused_with_the_next_step() {
    let platform = "[secrets.key]\nvault = 'engine/creds/e2b'\n[platforms.e2b]\napi-key = '{key.value}'\nvault-policies = ['p']\n";
    assert_problems(
        &format!("{VAULT}{platform}"),
        "cofferdam.toml:7: `platforms.e2b.api-key` uses the secret `key`, which Vault creates anew at each read and \
         revokes with its reader\n  \
         hint: an API key outlives what reads it: store it in a KV engine and name it with `kv`, or take it from \
         `file`, `env` or `exec`",
    );
}

#[test]
fn a_platform_is_for_the_grants_that_it_names() {
    let platform = "[platforms.e2b]\napi-key = '{key.value}'\n";
    let attach = "[attach.a]\nplatform = 'e2b'\nsandbox = 'x'\ngrant = 'dev'\n";
    let read = |grants: &str| {
        let config = valid(&format!("{SECRETS_AND_GRANT}{platform}{grants}"));
        let platform = &config.platforms[&"e2b".parse().unwrap()];
        let dev = "dev".parse().unwrap();
        (platform.permits(&dev), platform.permits_for_api_tokens(&dev))
    };
    assert_eq!(read(""), (true, false), "without the key: every grant, and no tokens");
    assert_eq!(read("grants = ['dev']\n"), (true, true));
    assert_eq!(read("grants = []\n"), (false, false));
    assert_eq!(
        problems_with(&format!("{platform}grants = ['dev', 'prod', 'dev']\n")),
        "cofferdam.toml:7: `platforms.e2b.grants` names the grant `prod`, which is not defined\n  \
         hint: define it in a table `[grants.prod]`\n\
         cofferdam.toml:7: `platforms.e2b.grants` names `dev` twice\n  hint: keep one of them"
    );
    assert_eq!(
        problems_with(&format!("{platform}grants = []\n{attach}")),
        "cofferdam.toml:8: `attach.a.grant` is `dev`, which `platforms.e2b.grants` does not name\n  \
         hint: name the grant there, or use another grant"
    );
}

#[test]
fn addresses_are_encrypted_except_on_this_host() {
    for (url, message) in [
        ("http://api.example.com", "would send tokens across the network unencrypted"),
        ("ftp://api.example.com", "is neither `https://` nor `http://`"),
        ("api", "is neither `https://` nor `http://`"),
        ("https://user:pass@api", "holds a user or a password"),
        ("https://api/v1?key=x", "has a query or a fragment"),
        ("https://api/v1#x", "has a query or a fragment"),
        ("https://api:0", "is not a URL"),
        ("https://a b", "is not a URL"),
    ] {
        for key in ["api-url", "sandbox-url"] {
            let problems =
                problems_with(&format!("[platforms.e2b]\napi-key = '{{key.value}}'\n{key} = '{url}'\n"));
            let expected = format!("cofferdam.toml:7: `platforms.e2b.{key}` {message}\n");
            assert!(problems.starts_with(&expected), "{url}: {problems}");
            assert!(!problems.contains("pass@"), "{problems}");
        }
    }
    for url in ["http://127.0.0.1:3000", "http://[::1]:3000", "http://localhost:3000", "https://api/v1"] {
        valid(&format!("{SECRETS_AND_GRANT}[platforms.e2b]\napi-key = '{{key.value}}'\napi-url = '{url}'\n"));
    }
}

#[test]
fn attachments_name_a_platform_a_sandbox_and_a_grant() {
    assert_eq!(
        problems_with(
            "[platforms.e2b]\napi-key = '{key.value}'\n[attach.a]\n[attach.b]\nplatform = 'e2c'\nsandbox = '../x'\n\
             grant = 'prod'\n[attach.C]\nplatform = 'e2b'\nsandbox = 'x'\ngrant = 'dev'\nkeep-awake = true\n"
        ),
        "cofferdam.toml:7: `attach.a` has no `platform`\n  \
         hint: name a table `[platforms.NAME]`, as in `platform = \"e2b\"`\n\
         cofferdam.toml:7: `attach.a` has no `sandbox`\n  hint: set the sandbox's id on its platform\n\
         cofferdam.toml:7: `attach.a` has no `grant`\n  \
         hint: say what the sandbox may use, as in `grant = \"dev\"`\n\
         cofferdam.toml:9: `attach.b.platform` names the platform `e2c`, which is not defined\n  \
         hint: did you mean `e2b`?\n\
         cofferdam.toml:10: `attach.b.sandbox` is not the id of a sandbox\n  \
         hint: copy the id from the platform: letters, digits, `-` and `_`\n\
         cofferdam.toml:11: `attach.b.grant` names the grant `prod`, which is not defined\n  \
         hint: define it in a table `[grants.prod]`\n\
         cofferdam.toml:12: an attached sandbox cannot be named `C`\n  \
         hint: use 1 to 64 of a-z, 0-9, `-` and `_`, beginning with a letter or digit\n\
         cofferdam.toml:16: `attach.C.keep-awake` has no effect on E2B\n  \
         hint: leave it out: E2B suspends a sandbox at its own timeout, whatever is attached"
    );
}

#[test]
fn one_sandbox_is_attached_once() {
    assert_eq!(
        problems_with(
            "[platforms.e2b]\napi-key = '{key.value}'\n[attach.a]\nplatform = 'e2b'\nsandbox = 'x'\ngrant = 'dev'\n\
             [attach.b]\nplatform = 'e2b'\nsandbox = 'x'\ngrant = 'dev'\n"
        ),
        "cofferdam.toml:11: `attach.b` attaches the same sandbox as `attach.a`\n  hint: keep one of them"
    );
    // Through two tables of one platform.
    let through = |api_url: &str| {
        problems_with(&format!(
            "[platforms.e2b]\napi-key = '{{key.value}}'\n\
             [platforms.other]\nkind = 'e2b'\napi-key = '{{key.value}}'\napi-url = '{api_url}'\n\
             [attach.a]\nplatform = 'e2b'\nsandbox = 'x'\ngrant = 'dev'\n\
             [attach.b]\nplatform = 'other'\nsandbox = 'x'\ngrant = 'dev'\n"
        ))
    };
    assert_eq!(
        through("https://api.e2b.app/"),
        "cofferdam.toml:15: `attach.b` attaches the same sandbox as `attach.a`\n  hint: keep one of them"
    );
    valid(&format!(
        "{SECRETS_AND_GRANT}[platforms.e2b]\napi-key = '{{key.value}}'\n\
         [platforms.other]\nkind = 'e2b'\napi-key = '{{key.value}}'\napi-url = 'https://api.example'\n\
         [attach.a]\nplatform = 'e2b'\nsandbox = 'x'\ngrant = 'dev'\n\
         [attach.b]\nplatform = 'other'\nsandbox = 'x'\ngrant = 'dev'\n"
    ));
}
