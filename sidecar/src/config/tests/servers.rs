//! Tests of servers, their templates and headers; of secrets and their sources; of rules and grants.

use cofferdam_net::RESERVED_HEADERS;
use cofferdam_servers::spec::Retry;

use super::*;

#[test]
fn a_server_has_a_command_or_a_url() {
    assert_problems(
        "[servers.a]\nretry = false\n[servers.b]\ncommand = ['b']\nurl = 'https://b'\n",
        "cofferdam.toml:1: `servers.a` has none of `command`, `package` and `url`\n  \
         hint: set `command` to a program and its arguments, `package` to a package, or `url` to an address\n\
         cofferdam.toml:4: `servers.b` has both `command` and `url`\n  \
         hint: keep `command` for a program, or `url` for a server that already runs",
    );
    assert_problems(
        "[servers.a]\nurl = 'https://a'\nenv = {}\n[servers.b]\ncommand = ['b']\nprivate = true\n",
        "cofferdam.toml:3: `servers.a.env` is for servers with `command`\n  hint: leave it out\n\
         cofferdam.toml:6: `servers.b.private` is for servers with `url`\n  hint: leave it out",
    );
}

#[test]
fn names_of_tables_are_checked() {
    assert_problems(
        "[servers.GitHub]\ncommand = ['a']\n[grants.\"my grant\"]\nservers = ['GitHub']\n[secrets.-s]\nenv = 'S'\n",
        "cofferdam.toml:1: a server cannot be named `GitHub`\n  \
         hint: use 1 to 64 of a-z, 0-9, `-` and `_`, beginning with a letter or digit\n\
         cofferdam.toml:3: a grant cannot be named `my grant`\n  \
         hint: use 1 to 64 of a-z, 0-9, `-` and `_`, beginning with a letter or digit\n\
         cofferdam.toml:5: a secret cannot be named `-s`\n  \
         hint: use 1 to 64 of a-z, 0-9, `-` and `_`, beginning with a letter or digit",
    );
}

#[test]
fn names_of_variables_and_files_are_checked() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\nenv = { '' = 'x', 'A=B' = 'y' }\nfiles = { '../x' = '', '.y' = '', ok = '' }\n",
        "cofferdam.toml:3: `servers.a.env.\"\"` is not the name of an environment variable\n  \
         hint: it has at least one character, and no `=`\n\
         cofferdam.toml:3: `servers.a.env.\"A=B\"` is not the name of an environment variable\n  \
         hint: it has at least one character, and no `=`\n\
         cofferdam.toml:4: `servers.a.files.\"../x\"` is not a plain file name\n  \
         hint: use 1 to 64 of letters, digits, `.`, `-` and `_`, not beginning with a dot\n\
         cofferdam.toml:4: `servers.a.files.\".y\"` is not a plain file name\n  \
         hint: use 1 to 64 of letters, digits, `.`, `-` and `_`, not beginning with a dot",
    );
}

#[test]
fn placeholders_must_refer_to_defined_secrets_and_files() {
    assert_problems(
        "[secrets.s]\nenv = 'S'\n[servers.a]\ncommand = ['a', '--token={s.value}']\n\
         env = { A = '{file:missing.pem}', B = '{s}', C = '{s.value:hex}', D = \"\\u0000\" }\n",
        "cofferdam.toml:4: `servers.a.command` uses the secret `s`, but every process of the host can read arguments\n  \
         hint: pass it in `env` or in `files`; if the server takes it in no other way, set `argv-secrets = \"allow\"`\n\
         cofferdam.toml:5: `servers.a.env.A` names the file `missing.pem`, which the server does not have\n  \
         hint: add `missing.pem` to the server's `files`\n\
         cofferdam.toml:5: `servers.a.env.B`: `s` in braces is neither a secret's field nor a file\n  \
         hint: write `{secret.field}`, `{secret.field:url}` or `{file:NAME}`\n\
         cofferdam.toml:5: `servers.a.env.C`: the encoding `hex` is not known\n  \
         hint: the only encoding is `url`, as in `{secret.field:url}`\n\
         cofferdam.toml:5: `servers.a.env.D` holds a NUL character\n  hint: a variable cannot contain one: leave it out",
    );
}

#[test]
fn arguments_may_contain_secrets_only_where_that_is_allowed() {
    let allowed = "argv-secrets = 'allow'";
    let server = |arguments: &str, line: &str| {
        format!("[secrets.s]\nenv = 'S'\n[servers.a]\ncommand = ['a', {arguments}]\n{line}\n")
    };
    super::valid(&server("'--token={s.value}', '{{}}'", allowed));
    super::valid(&server("'{}'", ""));
    assert_problems(
        &server("'{t.value}', '{'", allowed),
        "cofferdam.toml:4: `servers.a.command` names the secret `t`, which is not defined\n  \
         hint: define it in a table `[secrets.t]`\n\
         cofferdam.toml:4: `servers.a.command`: the `{` at character 1 is never closed\n  \
         hint: close it with `}`, or write `{{` for a brace",
    );
    assert_problems(
        "[servers.a]\nurl = 'https://a/mcp'\nargv-secrets = 'allow'\n",
        "cofferdam.toml:3: `servers.a.argv-secrets` is for servers with `command`\n  hint: leave it out",
    );
}

#[test]
fn urls_of_servers_are_checked() {
    for (url, message) in [
        ("ftp://a/b", "is neither `https://` nor `http://`"),
        ("a/b", "is not a URL"),
        ("/mcp", "is neither `https://` nor `http://`"),
        ("https://user:pass@a/mcp", "holds a user or a password"),
        ("https://a/mcp#part", "has a fragment, which is never sent"),
        ("https://a/{s.token}", "holds a brace, but templates are not supported there"),
        ("https://a b/", "is not a URL"),
    ] {
        let problems = check(&format!("[servers.a]\nurl = '{url}'\n")).unwrap_err();
        assert_eq!(problems.list[0].message, format!("`servers.a.url` {message}"), "{url}");
        assert_eq!(problems.list.len(), 1, "{url}");
    }
}

#[test]
fn headers_are_refused_for_unencrypted_urls_that_are_not_loopback() {
    let with = |url: &str, headers: &str| {
        format!("[secrets.s]\nenv = 'S'\n[servers.a]\nurl = '{url}'\nheaders = {{ {headers} }}\n")
    };
    let bearer = "Authorization = 'Bearer {s.value}'";
    for url in [
        "https://a.example",
        "http://127.0.0.1:80/mcp",
        "http://localhost/",
        "http://[::1]:1/",
        "http://127.9.9.9",
    ] {
        valid(&with(url, bearer));
    }
    valid(&with("http://a.example", ""));
    for url in
        ["http://a.example", "http://10.0.0.1/", "http://localhost.example/", "http://127.0.0.1.example/"]
    {
        assert_problems(
            &with(url, bearer),
            "cofferdam.toml:5: `servers.a.headers` would cross the network unencrypted\n  \
             hint: use an `https://` URL; `http://` carries headers to loopback only",
        );
    }
}

#[test]
fn headers_that_the_sidecar_sets_itself_are_refused() {
    let some =
        ["Accept-Encoding", "Expect", "Via", "Mcp-Session-Id", "MCP-Protocol-Version", "Proxy-Authorization"];
    for header in RESERVED_HEADERS.into_iter().chain(some).chain(["Upgrade", "TE", "Host"]) {
        assert_problems(
            &format!("[servers.a]\nurl = 'https://a'\nheaders = {{ {header} = 'x' }}\n"),
            &format!(
                "cofferdam.toml:3: `servers.a.headers.{header}` is set by the sidecar itself\n  \
                 hint: leave it out: it is part of the HTTP or MCP protocol"
            ),
        );
    }
    assert_problems(
        "[servers.a]\nurl = 'https://a'\n[servers.a.headers]\n'X Y' = 'a'\nX-A = 'a'\nx-a = 'b'\nX-B = \"a\\r\\nb\"\n",
        "cofferdam.toml:4: `servers.a.headers.\"X Y\"` is not the name of a header\n  hint: use letters, digits and `-`\n\
         cofferdam.toml:6: `servers.a.headers.x-a` is set twice\n  \
         hint: case makes no difference in a header's name: keep one of them\n\
         cofferdam.toml:7: `servers.a.headers.X-B` cannot be sent in a header\n  \
         hint: a header holds visible ASCII and spaces, no line breaks",
    );
}

#[test]
fn a_secret_has_exactly_one_source() {
    assert_problems(
        "[secrets.none]\n[secrets.two]\nenv = 'A'\nfile = '/a'\n[secrets.later]\nvault = 'a/b'\nenv = 'A'\n",
        "cofferdam.toml:1: `secrets.none` has no source\n  hint: set one of `file`, `env`, `exec`, `kv` and `vault`\n\
         cofferdam.toml:2: `secrets.two` has 2 sources: `env`, `file`\n  hint: keep one of them\n\
         cofferdam.toml:5: `secrets.later` has 2 sources: `env`, `vault`\n  hint: keep one of them\n\
         cofferdam.toml:6: `secrets.later.vault` needs Vault, and there is no table `[vault]`\n  \
         hint: add a table `[vault]` with its `address` and how to log in (`auth`)",
    );
}

#[test]
fn a_value_in_place_of_a_source_is_refused() {
    assert_problems(
        "[secrets.github]\ntoken = 'x'\n[secrets.a]\nexec = []\n[secrets.b]\nenv = 'A=B'\npublic = ['user name']\n",
        "cofferdam.toml:2: unknown key `secrets.github.token`\n  \
         hint: a secret names its source, `file`, `env`, `exec`, `kv` or `vault`; its value is never written here\n\
         cofferdam.toml:4: `secrets.a.exec` is empty\n  hint: write the program, then its arguments\n\
         cofferdam.toml:6: `secrets.b.env` is not the name of an environment variable\n  \
         hint: it has at least one character, and no `=`\n\
         cofferdam.toml:7: `secrets.b.public` holds an invalid field name\n  \
         hint: use letters, digits, `-`, `_` and `.`",
    );
}

#[test]
fn patterns_and_grants_are_checked() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\ntools = { allow = [''] }\nmethods = [\"a\\nb\"]\n\
         [grants.g]\nttl = '0s'\n[grants.h]\nservers = ['a', 'a']\n",
        "cofferdam.toml:3: `servers.a.tools.allow`: a pattern cannot be empty\n  \
         hint: write a name, with `*` for any run of characters and `?` for one\n\
         cofferdam.toml:4: `servers.a.methods`: a pattern cannot contain the control character '\\n'\n  \
         hint: write a name, with `*` for any run of characters and `?` for one\n\
         cofferdam.toml:5: `grants.g` does not say which servers it grants\n  \
         hint: name the servers, as in `servers = [\"github\"]`; an empty list grants nothing\n\
         cofferdam.toml:6: `grants.g.ttl` is too small\n  hint: use a value from 100ms to 366d\n\
         cofferdam.toml:8: `grants.h.servers` names `a` twice\n  hint: keep one of them",
    );
}

#[test]
fn retry_is_off_by_default() {
    for (line, retry) in
        [("", Retry::Never), ("retry = false\n", Retry::Never), ("retry = true\n", Retry::WhereSafe)]
    {
        let config = valid(&format!("[servers.a]\ncommand = ['a']\n{line}"));
        assert_eq!(config.servers[&"a".parse().unwrap()].retry, retry, "{line}");
    }
}

#[test]
fn a_package_is_pinned_and_has_its_own_keys() {
    let config = valid_as_etc_file(
        "[servers.a]\npackage = \"npm:@scope/server@1.2.3\"\nargs = [\"--root\", \"/data\"]\nprogram = \"server\"\n\
         install-scripts = \"allow\"\n[servers.b]\npackage = \"pypi:server==1.0\"\n",
    );
    let source = |name: &str| config.servers[name].kind.package().unwrap().clone();
    assert_eq!(source("a").spec.to_string(), "npm:@scope/server@1.2.3");
    assert_eq!(source("a").program.as_deref(), Some("server"));
    assert_eq!(source("a").install_scripts, cofferdam_packages::InstallScripts::Allow);
    assert_eq!(source("b").lock, std::path::Path::new("/etc/cofferdam.lock"));
    assert_eq!(source("b").install_scripts, cofferdam_packages::InstallScripts::Deny);
}

#[test]
fn a_package_is_refused_without_its_value() {
    assert_problems(
        "[servers.a]\npackage = \"npm:secret@latest\"\n[servers.b]\npackage = \"oci:secret\"\n\
         [servers.c]\npackage = \"pypi:x==1\"\ncommand = [\"x\"]\n[servers.d]\ncommand = [\"x\"]\nargs = [\"y\"]\n\
         [servers.e]\npackage = \"pypi:x==1\"\ninstall-scripts = \"allow\"\n[servers.f]\npackage = \"pypi:x==1\"\nheaders = {}\n",
        "cofferdam.toml:2: `servers.a.package`: its version is a range or a tag, not one exact version\n  \
         hint: write one version of one package: `npm:@scope/server@1.2.3` or `pypi:mcp-server-git==2026.1.14`\n\
         cofferdam.toml:4: `servers.b.package`: images are not supported\n  \
         hint: run the image with `command`, such as `[\"podman\", \"run\", \"--rm\", \"-i\", \"IMAGE@sha256:DIGEST\"]`\n\
         cofferdam.toml:6: `servers.c` has both `package` and `command`\n  \
         hint: keep `package` for a package that `cofferdam install` downloads, or leave it out\n\
         cofferdam.toml:10: `servers.d.args` is for servers with `package`\n  hint: leave it out\n\
         cofferdam.toml:13: `servers.e.install-scripts` has no effect for Python packages, which run nothing when installed\n  \
         hint: leave it out; what needs a compiler cannot be installed\n\
         cofferdam.toml:16: `servers.f.headers` is for servers with `url`\n  hint: leave it out",
    );
}
