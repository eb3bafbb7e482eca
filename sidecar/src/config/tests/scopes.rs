//! Tests of scopes (tools with other credentials), `replace` and `reload`.

use cofferdam_servers::spec::{Reload, Replace, ServerSpec};

use super::*;

const SECRETS: &str = "[secrets.read]\nenv = 'R'\n[secrets.write]\nenv = 'W'\n";

fn server(config: &Config, name: &str) -> std::sync::Arc<ServerSpec> {
    std::sync::Arc::clone(&config.servers[&name.parse().unwrap()])
}

fn names(secrets: std::collections::BTreeSet<&relay_proto::name::Name>) -> Vec<String> {
    secrets.into_iter().map(ToString::to_string).collect()
}

#[test]
fn a_scope_inherits_the_entries_that_it_does_not_replace() {
    let config = valid_as_etc_file(&format!(
        "{SECRETS}[servers.a]\ncommand = ['a']\nenv = {{ TOKEN = '{{read.value}}', KEPT = '{{file:k}}' }}\nfiles = {{ k = 'kept', c = '{{read.value}}' }}\n\
         [[servers.a.scopes]]\ntools = ['write_*', 'set']\nenv = {{ TOKEN = '{{write.value}}', MORE = '{{file:c}}' }}\nfiles = {{ c = '{{write.value}}', d = '' }}\n\
         [servers.b]\nurl = 'https://b'\nheaders = {{ Authorization = '{{read.value}}', X-Kept = 'kept' }}\n\
         [[servers.b.scopes]]\ntools = ['write_*']\nheaders = {{ authorization = '{{write.value}}' }}\n"
    ));
    let stdio = server(&config, "a");
    let scope = stdio.scope("set").unwrap();
    assert_eq!(scope.env.keys().collect::<Vec<_>>(), ["KEPT", "MORE", "TOKEN"]);
    assert_eq!(scope.files.keys().collect::<Vec<_>>(), ["c", "d", "k"]);
    assert!(scope.headers.is_empty());
    assert_eq!(names(scope.secrets()), ["write"]);
    assert_eq!(names(stdio.secrets()), ["read"]);
    assert_eq!(names(stdio.every_secret()), ["read", "write"]);
    let http = server(&config, "b");
    let scope = http.scope("write_all").unwrap();
    let mut headers: Vec<&str> = scope.headers.iter().map(|(name, _)| name.as_str()).collect();
    headers.sort_unstable();
    assert_eq!(headers, ["authorization", "x-kept"]);
    assert_eq!(names(scope.secrets()), ["write"]);
    assert_eq!(names(http.secrets()), ["read"]);
    assert!(scope.env.is_empty() && scope.files.is_empty());
}

#[test]
fn the_first_scope_that_matches_a_tool_applies() {
    let config = valid_as_etc_file(&format!(
        "{SECRETS}[servers.a]\ncommand = ['a']\n\
         [[servers.a.scopes]]\ntools = ['get_*']\nenv.T = '{{read.value}}'\n\
         [[servers.a.scopes]]\ntools = ['*_one']\nenv.T = '{{write.value}}'\n"
    ));
    let server = server(&config, "a");
    let secrets_of = |tool: &str| server.scope(tool).map(|scope| names(scope.secrets()).join(" "));
    assert_eq!(secrets_of("get_one").as_deref(), Some("read"));
    assert_eq!(secrets_of("set_one").as_deref(), Some("write"));
    assert_eq!(secrets_of("set_two"), None);
}

#[test]
fn a_scope_must_name_tools() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\n[[servers.a.scopes]]\nenv.T = 'x'\n[[servers.a.scopes]]\ntools = []\nenv.T = 'x'\n\
         [[servers.a.scopes]]\ntools = ['', 'ok']\nenv.T = 'x'\n[servers.b]\n[[servers.b.scopes]]\ntools = ['']\nenv.T = 'x'\n",
        "cofferdam.toml:3: `servers.a.scopes` does not say which tools it is for\n  \
         hint: name them by patterns, as in `tools = [\"write_*\"]`\n\
         cofferdam.toml:5: `servers.a.scopes` does not say which tools it is for\n  \
         hint: name them by patterns, as in `tools = [\"write_*\"]`\n\
         cofferdam.toml:9: `servers.a.scopes.tools`: a pattern cannot be empty\n  \
         hint: write a name, with `*` for any run of characters and `?` for one\n\
         cofferdam.toml:11: `servers.b` has none of `command`, `package` and `url`\n  \
         hint: set `command` to a program and its arguments, `package` to a package, or `url` to an address\n\
         cofferdam.toml:13: `servers.b.scopes.tools`: a pattern cannot be empty\n  \
         hint: write a name, with `*` for any run of characters and `?` for one",
    );
}

#[test]
fn a_scope_must_change_an_entry() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\n[[servers.a.scopes]]\ntools = ['x']\n\
         [servers.b]\nurl = 'https://b'\n[[servers.b.scopes]]\ntools = ['x']\nheaders = {}\n",
        "cofferdam.toml:3: `servers.a.scopes` changes nothing for its tools\n  \
         hint: give its tools other `env` or `files`, or leave the scope out\n\
         cofferdam.toml:7: `servers.b.scopes` changes nothing for its tools\n  \
         hint: give its tools other `headers`, or leave the scope out",
    );
}

#[test]
fn a_scope_has_the_keys_of_its_kind_of_server() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\n[[servers.a.scopes]]\ntools = ['x']\nheaders = { X = 'x' }\n\
         [servers.b]\nurl = 'https://b'\n[[servers.b.scopes]]\ntools = ['x']\nenv = { X = 'x' }\nfiles = { x = 'x' }\n",
        "cofferdam.toml:5: `servers.a.scopes.headers` is for servers with `url`\n  hint: leave it out\n\
         cofferdam.toml:10: `servers.b.scopes.env` is for servers with `command`\n  hint: leave it out\n\
         cofferdam.toml:11: `servers.b.scopes.files` is for servers with `command`\n  hint: leave it out",
    );
}

#[test]
fn templates_in_scopes_are_checked() {
    assert_problems(
        "[secrets.s]\nenv = 'S'\n[servers.a]\ncommand = ['a']\n[[servers.a.scopes]]\ntools = ['x']\n\
         env = { A = '{other.value}', B = '{file:no}', 'C=' = 'x' }\nfiles = { '../x' = '' }\n\
         [servers.b]\nurl = 'http://b.example'\n[[servers.b.scopes]]\ntools = ['x']\nheaders = { Host = '{s.value}' }\n",
        "cofferdam.toml:7: `servers.a.scopes.env.A` names the secret `other`, which is not defined\n  \
         hint: define it in a table `[secrets.other]`\n\
         cofferdam.toml:7: `servers.a.scopes.env.B` names the file `no`, which the server does not have\n  \
         hint: add `no` to the server's `files`\n\
         cofferdam.toml:7: `servers.a.scopes.env.\"C=\"` is not the name of an environment variable\n  \
         hint: it has at least one character, and no `=`\n\
         cofferdam.toml:8: `servers.a.scopes.files.\"../x\"` is not a plain file name\n  \
         hint: use 1 to 64 of letters, digits, `.`, `-` and `_`, not beginning with a dot\n\
         cofferdam.toml:13: `servers.b.scopes.headers` would cross the network unencrypted\n  \
         hint: use an `https://` URL; `http://` carries headers to loopback only\n\
         cofferdam.toml:13: `servers.b.scopes.headers.Host` is set by the sidecar itself\n  \
         hint: leave it out: it is part of the HTTP or MCP protocol",
    );
}

#[test]
fn a_misfit_in_one_scope_does_not_hide_problems_of_others() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\n[[servers.a.scopes]]\ntools = 'x'\nenv = { A = 'a' }\n\
         [[servers.a.scopes]]\ntool = ['x']\n[[servers.a.scopes]]\ntools = ['x']\nenv = { A = 1 }\n\
         [[servers.a.scopes]]\ntools = ['x']\nenv = { A = '{' }\n",
        "cofferdam.toml:4: `servers.a.scopes.tools` cannot be a string\n  hint: write an array\n\
         cofferdam.toml:7: unknown key `servers.a.scopes.tool`\n  hint: did you mean `tools`?\n\
         cofferdam.toml:10: `servers.a.scopes.env.A` cannot be a number\n  hint: write a string\n\
         cofferdam.toml:13: `servers.a.scopes.env.A`: the `{` at character 1 is never closed\n  \
         hint: close it with `}`, or write `{{` for a brace",
    );
    assert_problems(
        "[servers.a]\ncommand = ['a']\nscopes = [3]\n",
        "cofferdam.toml:3: `servers.a.scopes` cannot hold a number\n  hint: write a table",
    );
}

#[test]
fn replace_and_reload_have_their_values_and_defaults() {
    for (line, replace) in [
        ("", Replace::Hitless),
        ("replace = 'hitless'", Replace::Hitless),
        ("replace = 'idle'", Replace::Idle),
        ("replace = 'never'", Replace::Never),
    ] {
        let config = valid_as_etc_file(&format!("[servers.a]\ncommand = ['a']\n{line}\n"));
        assert_eq!(server(&config, "a").replace, replace, "{line}");
    }
    for (line, reload) in
        [("", None), ("reload = 'file'", Some(Reload::File)), ("reload = 'sighup'", Some(Reload::Sighup))]
    {
        let config =
            valid_as_etc_file(&format!("[servers.a]\ncommand = ['a']\nfiles = {{ f = '' }}\n{line}\n"));
        assert_eq!(server(&config, "a").reload, reload, "{line}");
    }
    assert_problems(
        "[servers.a]\ncommand = ['a']\nreplace = 'now'\nreload = 'later'\n",
        "cofferdam.toml:3: `servers.a.replace` has a value that is not known\n  \
         hint: use one of `hitless`, `idle`, `never`\n\
         cofferdam.toml:4: `servers.a.reload` has a value that is not known\n  hint: use `file` or `sighup`",
    );
}

#[test]
fn replace_needs_a_command_and_reload_needs_files() {
    assert_problems(
        "[servers.a]\nurl = 'https://a'\nreplace = 'idle'\nreload = 'file'\n\
         [servers.b]\ncommand = ['b']\nreload = 'sighup'\n[servers.c]\ncommand = ['c']\nfiles = {}\nreload = 'file'\n",
        "cofferdam.toml:3: `servers.a.replace` is for servers with `command`\n  hint: leave it out\n\
         cofferdam.toml:4: `servers.a.reload` is for servers with `command`\n  hint: leave it out\n\
         cofferdam.toml:7: `servers.b.reload` is set, but the server has no `files` to read again\n  \
         hint: pass the credential in `files`, or leave it out\n\
         cofferdam.toml:11: `servers.c.reload` is set, but the server has no `files` to read again\n  \
         hint: pass the credential in `files`, or leave it out",
    );
}

#[test]
fn the_digest_changes_with_scopes() {
    let base = format!(
        "{SECRETS}[servers.a]\ncommand = ['a']\nenv.T = '{{read.value}}'\n\
         [[servers.a.scopes]]\ntools = ['x', 'y']\nenv.T = '{{write.value}}'\n\
         [[servers.a.scopes]]\ntools = ['z']\nenv.T = 'none'\n\
         [grants.g]\nservers = ['a']\n"
    );
    let digest = |text: &str| valid_as_etc_file(text).policy_digest;
    let changed = |from: &str, to: &str| {
        assert!(base.contains(from), "{from}");
        digest(&base.replace(from, to)) != digest(&base)
    };
    assert!(changed("['x', 'y']", "['x']"));
    assert!(!changed("['x', 'y']", "['y', 'x', 'y']"));
    assert!(changed("['x', 'y']", "['x y']"), "one pattern with a space differs from two patterns");
    assert!(changed("'{write.value}'", "'{read.value}'"));
    assert!(changed("'{write.value}'", "'{write.other}'"));
    assert!(
        changed("env.T = '{read.value}'", "env.T = '{write.value}'"),
        "the credentials of all other tools are part of the digest"
    );
    assert!(!changed("'none'", "'nothing'"));
    let swapped = base
        .replace("['x', 'y']\nenv.T = '{write.value}'", "first")
        .replace("['z']\nenv.T = 'none'", "['x', 'y']\nenv.T = '{write.value}'")
        .replace("first", "['z']\nenv.T = 'none'");
    assert_ne!(
        digest(&swapped),
        digest(&base),
        "the first scope that matches applies, so the order is part of the digest"
    );
    let no_scopes = &base[..base.find("[[servers").unwrap()];
    assert_ne!(digest(no_scopes), digest(&base));
    assert_eq!(
        digest(no_scopes),
        digest(&no_scopes.replace("{read.value}", "{write.value}")),
        "without scopes, credentials are not part of the digest"
    );
}
