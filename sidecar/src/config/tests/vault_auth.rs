//! Tests of `vault.auth`: how the sidecar logs in to Vault.

use cofferdam_secrets::VaultPath;
use cofferdam_vault::{AuthSettings, SecretIdForm};

use super::*;

fn vault(auth: &str) -> String {
    format!("[vault]\naddress = 'https://v'\nauth = {{ {auth} }}\n")
}

fn auth(text: &str) -> AuthSettings {
    valid_in_etc(&vault(text)).vault.unwrap().auth
}

fn path(text: &str) -> VaultPath {
    text.parse().unwrap()
}

#[test]
fn each_method_has_its_keys_and_its_mount() {
    let role = || "agent".to_owned();
    assert_eq!(
        auth("method = 'approle', role-id-file = 'r', secret-id-file = '/s'"),
        AuthSettings::AppRole {
            mount: path("approle"),
            role_id_file: "/etc/r".into(),
            secret_id_file: "/s".into(),
            secret_id: SecretIdForm::Plain
        }
    );
    assert_eq!(
        auth(
            "method = 'approle', role-id-file = '/r', secret-id-file = '/s', secret-id-wrapped = true, role = 'agent', mount = 'a/b'"
        ),
        AuthSettings::AppRole {
            mount: path("a/b"),
            role_id_file: "/r".into(),
            secret_id_file: "/s".into(),
            secret_id: SecretIdForm::Wrapped { role: role() }
        }
    );
    assert_eq!(
        auth("method = 'cert', cert-file = '/c', key-file = '/k', role = 'agent'"),
        AuthSettings::Cert {
            mount: path("cert"),
            cert_file: "/c".into(),
            key_file: "/k".into(),
            role: role()
        }
    );
    assert_eq!(
        auth("method = 'jwt', role = 'agent', jwt-file = '/j'"),
        AuthSettings::Jwt { mount: path("jwt"), role: role(), jwt_file: "/j".into() }
    );
    assert_eq!(
        auth("method = 'kubernetes', role = 'agent', jwt-file = '/j', mount = 'k8s'"),
        AuthSettings::Kubernetes { mount: path("k8s"), role: role(), jwt_file: "/j".into() }
    );
    assert_eq!(auth("method = 'token-file', path = '/t'"), AuthSettings::TokenFile { path: "/t".into() });
    assert_eq!(
        auth("method = 'userpass', username = 'agent', password-file = '/p'"),
        AuthSettings::Userpass { mount: path("userpass"), username: role(), password_file: "/p".into() }
    );
}

#[test]
fn an_unknown_or_missing_login_method_is_refused() {
    assert_problems(
        &vault("path = '/t'"),
        "cofferdam.toml:3: `vault.auth` has no `method`\n  \
         hint: set `method` to one of `approle`, `cert`, `jwt`, `kubernetes`, `token-file` and `userpass`",
    );
    assert_problems(
        &vault("method = 'token', path = '/t'"),
        "cofferdam.toml:3: `vault.auth.method` has a value that is not known\n  \
         hint: use one of `approle`, `cert`, `jwt`, `kubernetes`, `token-file`, `userpass`",
    );
}

#[test]
fn missing_keys_of_a_login_method_are_reported() {
    for (method, needed) in [
        ("approle", &["role-id-file", "secret-id-file"][..]),
        ("cert", &["cert-file", "key-file", "role"]),
        ("jwt", &["role", "jwt-file"]),
        ("kubernetes", &["role", "jwt-file"]),
        ("token-file", &["path"]),
        ("userpass", &["username", "password-file"]),
    ] {
        let listed: Vec<String> = needed.iter().map(|key| format!("`{key}`")).collect();
        let missing = needed.iter().map(|key| {
            format!(
                "cofferdam.toml:3: `vault.auth` has no `{key}`\n  hint: the method `{method}` needs {}",
                listed.join(", ")
            )
        });
        assert_problems(&vault(&format!("method = '{method}'")), &missing.collect::<Vec<_>>().join("\n"));
    }
    assert_problems(
        &vault("method = 'jwt', rol = 'agent'"),
        "cofferdam.toml:3: unknown key `vault.auth.rol`\n  hint: did you mean `role`?",
    );
}

#[test]
fn keys_that_a_login_method_does_not_use_are_refused() {
    assert_problems(
        &vault("method = 'token-file', path = '/t', mount = 'token', role = 'r'"),
        "cofferdam.toml:3: `vault.auth.mount` is not for the method `token-file`\n  \
         hint: leave it out: the method takes `path`\n\
         cofferdam.toml:3: `vault.auth.role` is not for the method `token-file`\n  \
         hint: leave it out: the method takes `path`",
    );
    assert_problems(
        &vault("method = 'userpass', username = 'u', password-file = '/p', secret-id-wrapped = false"),
        "cofferdam.toml:3: `vault.auth.secret-id-wrapped` is not for the method `userpass`\n  \
         hint: leave it out: the method takes `username`, `password-file`, `mount`",
    );
    for (method, foreign) in [
        ("approle', role-id-file = '/r', secret-id-file = '/s", "path"),
        ("cert', cert-file = '/c', key-file = '/k', role = 'r", "jwt-file"),
        ("jwt', role = 'r', jwt-file = '/j", "cert-file"),
        ("kubernetes', role = 'r', jwt-file = '/j", "username"),
    ] {
        let problems = check(&vault(&format!("method = '{method}', {foreign} = '/x'"))).unwrap_err();
        let name = method.split('\'').next().unwrap();
        let expected = format!("`vault.auth.{foreign}` is not for the method `{name}`");
        assert!(problems.list.iter().any(|problem| problem.message == expected), "{problems}");
    }
}

#[test]
fn only_a_wrapped_secret_id_takes_a_role() {
    let approle = "method = 'approle', role-id-file = '/r', secret-id-file = '/s'";
    assert_problems(
        &vault(&format!("{approle}, secret-id-wrapped = true")),
        "cofferdam.toml:3: `vault.auth` has no `role`\n  \
         hint: the method `approle` needs `role-id-file`, `secret-id-file`, `role`",
    );
    for plain in [approle.to_owned(), format!("{approle}, secret-id-wrapped = false")] {
        assert_problems(
            &vault(&format!("{plain}, role = 'agent'")),
            "cofferdam.toml:3: `vault.auth.role` is for a wrapped secret-id only\n  \
             hint: leave it out, or set `secret-id-wrapped = true`: the role's name is needed to verify which role created the wrapping token",
        );
    }
    assert_problems(
        &vault(&format!("{approle}, secret-id-wrapped = true, role = 'a/b'")),
        "cofferdam.toml:3: `vault.auth.role` is not a name that Vault allows\n  \
         hint: use 1 to 128 letters, digits, `-`, `_` and `.`, with a letter, digit or `_` at both ends",
    );
}

#[test]
fn mounts_roles_and_user_names_must_be_valid_in_a_vault_path() {
    let plain = "use 1 to 128 letters, digits, `-`, `_` and `.`, with a letter, digit or `_` at both ends";
    for role in ["", "a/b", "../x", "a b", "-a", "a.", "ü", &"x".repeat(129)] {
        assert_problems(
            &vault(&format!("method = 'jwt', role = '{role}', jwt-file = '/j'")),
            &format!("cofferdam.toml:3: `vault.auth.role` is not a name that Vault allows\n  hint: {plain}"),
        );
    }
    auth(&format!("method = 'jwt', role = '{}', jwt-file = '/j'", "x".repeat(128)));
    assert_problems(
        &format!(
            "{}token-role = 'a/b'\n",
            vault("method = 'userpass', username = 'a/b', password-file = '/p'")
        ),
        &format!(
            "cofferdam.toml:3: `vault.auth.username` is not a name that Vault allows\n  hint: {plain}\n\
             cofferdam.toml:4: `vault.token-role` is not a name that Vault allows\n  hint: {plain}"
        ),
    );
    assert_problems(
        &vault("method = 'jwt', role = 'r', jwt-file = '/j', mount = 'auth/jwt'"),
        "cofferdam.toml:3: `vault.auth.mount` begins with `auth/`\n  \
         hint: leave `auth/` out: every method is below it",
    );
    assert_problems(
        &vault("method = 'jwt', role = 'r', jwt-file = '~/j', mount = '../jwt'"),
        "cofferdam.toml:3: `vault.auth.jwt-file` begins with `~`, which is not expanded\n  \
         hint: `~` is for shells: write the whole path\n\
         cofferdam.toml:3: `vault.auth.mount` has a part that is `.` or `..`\n  \
         hint: write the path without empty, `.` or `..` parts, as `secret/github`",
    );
}

#[test]
fn login_files_in_the_relay_directory_are_refused() {
    let relay = "[relay]\nunix = '/r/s'\nunix-grant = 'g'\n[grants.g]\nservers = []\n";
    let lies_in_relay_directory = |key: &str| {
        format!(
            "cofferdam.toml:5: `{key}` lies in `/r`, the relay's directory, which sandboxes can open\n  \
             hint: give `relay.unix` a directory of its own, one that holds nothing else"
        )
    };
    for (method, keys) in [
        ("approle', role-id-file = '/r/a', secret-id-file = '/r/b", &["role-id-file", "secret-id-file"][..]),
        ("cert', cert-file = '/r/a', key-file = '/r/b', role = 'r", &["cert-file", "key-file"]),
        ("jwt', role = 'r', jwt-file = '/r/a", &["jwt-file"]),
        ("kubernetes', role = 'r', jwt-file = '/r/a", &["jwt-file"]),
        ("token-file', path = '/r/a", &["path"]),
        ("userpass', username = 'u', password-file = '/r/a", &["password-file"]),
    ] {
        let expected: Vec<String> =
            keys.iter().map(|key| lies_in_relay_directory(&format!("vault.auth.{key}"))).collect();
        assert_problems(&format!("{}{relay}", vault(&format!("method = '{method}'"))), &expected.join("\n"));
    }
    let relay = relay.replace("/r/", "/etc/cofferdam/");
    let text = vault("method = 'token-file', path = '/t'");
    assert_problems(
        &format!("{text}ca-file = '/etc/cofferdam/vault-ca.pem'\n{relay}"),
        "cofferdam.toml:6: `vault.ca-file` lies in `/etc/cofferdam`, the relay's directory, which sandboxes can open\n  \
         hint: give `relay.unix` a directory of its own, one that holds nothing else",
    );
}
