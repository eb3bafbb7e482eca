//! Tests of secrets that come from Vault, of the policies of grants, and of the formats of `exec`.

use cofferdam_secrets::{ExecFormat, Origin};

use super::vault::VAULT;
use super::{assert_problems, valid, valid_in_etc};

#[test]
fn vault_paths_are_checked() {
    let secret = |path: &str| format!("{VAULT}[secrets.a]\nkv = \"{path}\"\n");
    for path in ["secret/github", "a", "a/b c/d.e/..f/ü", "kv/*"] {
        valid_in_etc(&secret(path));
    }
    valid_in_etc(&secret(&"x".repeat(512)));
    let plain = "write a path such as `secret/github`";
    let detours = "write the path without empty, `.` or `..` parts, as `secret/github`";
    let slash = "leave the slash out, as in `secret/github`";
    let query =
        "leave out the `?` or `#` and what follows; `write` gives parameters to a path that takes them";
    let encoded = "write the path as Vault shows it; it is encoded when it is sent";
    for (path, message, hint) in [
        ("", "is empty", plain),
        ("/secret/a", "begins or ends with a slash", slash),
        ("secret/a/", "begins or ends with a slash", slash),
        ("secret//a", "has two slashes with nothing between them", detours),
        ("secret/../sys", "has a part that is `.` or `..`", detours),
        ("secret/./a", "has a part that is `.` or `..`", detours),
        ("secret/a?version=1", "holds `?` or `#`", query),
        ("secret/a#b", "holds `?` or `#`", query),
        ("secret/%2e%2e/sys", "holds `%` or `\\`", encoded),
        ("secret/..\\\\sys", "holds `%` or `\\`", encoded),
        ("secret/a\\nb", "holds a control character", plain),
        ("secret/{a.b}", "holds a brace, but templates are not supported there", plain),
        (&"x".repeat(513), "is longer than 512 bytes", plain),
    ] {
        assert_problems(
            &secret(path),
            &format!("cofferdam.toml:5: `secrets.a.kv` {message}\n  hint: {hint}"),
        );
    }
    assert_problems(
        &format!("{VAULT}namespace = 'team/'\n[secrets.a]\nvault = '/a'\n"),
        "cofferdam.toml:4: `vault.namespace` begins or ends with a slash\n  \
         hint: leave the slash out, as in `secret/github`\n\
         cofferdam.toml:6: `secrets.a.vault` begins or ends with a slash\n  \
         hint: leave the slash out, as in `secret/github`",
    );
    assert_problems(
        &format!("{VAULT}namespace = 'tëam'\n"),
        "cofferdam.toml:4: `vault.namespace` cannot be sent in a header\n  \
         hint: use ASCII only",
    );
}

#[test]
fn vault_secrets_need_a_vault_table() {
    assert_problems(
        "[secrets.a]\nkv = 'a/b'\n[secrets.b]\nvault = 'a/b'\n[grants.g]\nservers = []\nvault-policies = ['p']\n",
        "cofferdam.toml:2: `secrets.a.kv` needs Vault, and there is no table `[vault]`\n  \
         hint: add a table `[vault]` with its `address` and how to log in (`auth`)\n\
         cofferdam.toml:4: `secrets.b.vault` needs Vault, and there is no table `[vault]`\n  \
         hint: add a table `[vault]` with its `address` and how to log in (`auth`)\n\
         cofferdam.toml:7: `grants.g.vault-policies` needs Vault, and there is no table `[vault]`\n  \
         hint: add a table `[vault]` with its `address` and how to log in (`auth`)",
    );
    assert_problems(
        "vault = 3\n[secrets.a]\nkv = 'a/b'\n",
        "cofferdam.toml:1: `vault` cannot be a number\n  hint: write a table",
    );
}

#[test]
fn keys_of_another_source_are_refused() {
    assert_problems(
        &format!(
            "{VAULT}[secrets.a]\nkv = 'a/b'\nvault = 'c/d'\n[secrets.b]\nkv = 'a/b'\nwrite = {{ ttl = '1m' }}\n\
             [secrets.c]\nvault = 'a/b'\nrefresh = '5m'\n[secrets.d]\nenv = 'D'\nwrite = {{}}\nrefresh = '5m'\n"
        ),
        "cofferdam.toml:4: `secrets.a` has 2 sources: `kv`, `vault`\n  hint: keep one of them\n\
         cofferdam.toml:9: `secrets.b.write` is for secrets with `vault`\n  hint: leave it out\n\
         cofferdam.toml:12: `secrets.c.refresh` is for secrets with `kv`\n  hint: leave it out\n\
         cofferdam.toml:15: `secrets.d.write` is for secrets with `vault`\n  hint: leave it out\n\
         cofferdam.toml:16: `secrets.d.refresh` is for secrets with `kv`\n  hint: leave it out",
    );
    assert_problems(
        &format!(
            "{VAULT}[secrets.a]\nkv = 'a/b'\nrefresh = '999ms'\n[secrets.b]\nkv = 'a/b'\nrefresh = '8d'\n"
        ),
        "cofferdam.toml:6: `secrets.a.refresh` is too small\n  hint: use a value from 1s to 7d\n\
         cofferdam.toml:9: `secrets.b.refresh` is too large\n  hint: use a value from 1s to 7d",
    );
}

#[test]
fn write_parameters_must_be_json_values() {
    assert_problems(
        &format!(
            "{VAULT}[secrets.a]\nvault = 'a/b'\n[secrets.a.write]\nday = 2026-01-01\nlong = inf\nlist = [{{ x = nan }}]\n\
             'a b' = 12:00:00\ngood = [1.5, {{ x = 'y' }}]\n"
        ),
        "cofferdam.toml:7: `secrets.a.write.day` holds a value that JSON does not have\n  \
         hint: write a date, or a number that is not finite, as a string\n\
         cofferdam.toml:8: `secrets.a.write.long` holds a value that JSON does not have\n  \
         hint: write a date, or a number that is not finite, as a string\n\
         cofferdam.toml:9: `secrets.a.write.list` holds a value that JSON does not have\n  \
         hint: write a date, or a number that is not finite, as a string\n\
         cofferdam.toml:10: `secrets.a.write.\"a b\"` holds a value that JSON does not have\n  \
         hint: write a date, or a number that is not finite, as a string",
    );
}

#[test]
fn a_grant_whose_server_uses_vault_needs_policies() {
    let text = |grant: &str| {
        format!(
            "{VAULT}[secrets.v]\nvault = 'a/b'\n[secrets.e]\nenv = 'E'\n\
             [servers.plain]\ncommand = ['a']\nenv.T = '{{e.value}}'\n\
             [servers.own]\ncommand = ['a']\nenv.T = '{{v.value}}'\n\
             [servers.scoped]\ncommand = ['a']\n[[servers.scoped.scopes]]\ntools = ['x']\nenv.T = '{{v.value}}'\n\
             [grants.g]\n{grant}\n"
        )
    };
    let missing_policies = |line: u8, server: &str| {
        format!(
            "cofferdam.toml:{line}: `grants.g` has no `vault-policies`, and its server `{server}` uses the Vault secret `v`\n  \
             hint: name the policies that allow it, as in `vault-policies = [\"agent-dev\"]`"
        )
    };
    valid_in_etc(&text("servers = ['plain']"));
    valid_in_etc(&text("servers = ['plain']\nvault-policies = []"));
    valid_in_etc(&text("servers = ['plain', 'own', 'scoped']\nvault-policies = ['p']"));
    assert_problems(&text("servers = ['plain', 'own']"), &missing_policies(19, "own"));
    assert_problems(&text("servers = ['scoped']"), &missing_policies(19, "scoped"));
    assert_problems(&text("servers = ['own']\nvault-policies = []"), &missing_policies(21, "own"));
    assert_problems(
        &text("servers = ['own']\nvault-policies = 'p'"),
        "cofferdam.toml:21: `grants.g.vault-policies` cannot be a string\n  hint: write an array",
    );
}

#[test]
fn invalid_policy_names_and_root_are_refused() {
    let text = |policies: &str| format!("{VAULT}[grants.g]\nservers = []\nvault-policies = [{policies}]\n");
    valid_in_etc(&text(&format!("'agent-dev', 'team/a_b.c', '0', '{}'", "p".repeat(128))));
    assert_problems(
        &text("'root', 'p', 'p'"),
        "cofferdam.toml:6: `grants.g.vault-policies` holds `root`, which allows everything\n  \
         hint: name a policy that allows what the grant's secrets need, and no more\n\
         cofferdam.toml:6: `grants.g.vault-policies` names `p` twice\n  hint: keep one of them",
    );
    for name in ["''", "'Root'", "' root'", "'a b'", "'*'", "'ü'", &format!("'{}'", "p".repeat(129))] {
        assert_problems(
            &text(name),
            "cofferdam.toml:6: `grants.g.vault-policies` holds an invalid policy name\n  \
             hint: use 1 to 128 of a-z, 0-9, `-`, `_`, `.` and `/`",
        );
    }
}

#[test]
fn the_digest_changes_with_policies() {
    let digest = |policies: &str| {
        valid_in_etc(&format!("{VAULT}[grants.g]\nservers = []\nvault-policies = [{policies}]\n"))
            .policy_digest
    };
    assert_ne!(digest("'a'"), digest("'b'"));
    assert_ne!(digest("'a'"), digest(""));
    assert_eq!(digest("'a', 'b'"), digest("'b', 'a'"));
    assert_eq!(digest(""), valid_in_etc("[grants.g]\nservers = []\n").policy_digest);
}

#[test]
fn exec_output_has_a_format() {
    let format = |lines: &str| {
        let config = valid(&format!("[secrets.a]\nexec = ['a']\n{lines}"));
        let Origin::Exec { format, .. } = config.secrets[&"a".parse().unwrap()].origin else {
            panic!("not a command")
        };
        format
    };
    assert_eq!(format(""), ExecFormat::Plain);
    assert_eq!(format("format = 'plain'\n"), ExecFormat::Plain);
    assert_eq!(format("format = 'expiring'\n"), ExecFormat::Expiring);
    assert_problems(
        "[secrets.a]\nenv = 'A'\nformat = 'expiring'\n[secrets.b]\nexec = ['b']\nformat = 'expires'\n",
        "cofferdam.toml:3: `secrets.a.format` is for secrets with `exec`\n  hint: leave it out\n\
         cofferdam.toml:6: `secrets.b.format` has a value that is not known\n  \
         hint: use `expiring` or `plain`",
    );
}
