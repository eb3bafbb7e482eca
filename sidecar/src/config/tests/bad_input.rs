//! Tests of the exact error messages for each kind of invalid configuration.

use super::*;

#[test]
fn an_unknown_key_gets_a_suggestion() {
    assert_problems(
        "[servers.github]\ncomand = ['github-mcp-server']\n",
        "cofferdam.toml:2: unknown key `servers.github.comand`\n  hint: did you mean `command`?",
    );
    assert_problems(
        "stat-dir = '/s'\nnonsense = 1\n",
        "cofferdam.toml:1: unknown key `stat-dir`\n  hint: did you mean `state-dir`?\n\
         cofferdam.toml:2: unknown key `nonsense`\n  hint: the keys here are `state-dir`, `audit-sync`, `relay`, \
         `admin`, `vault`, `secrets`, `servers`, `grants`, `platforms`, `attach`, `limits`",
    );
}

#[test]
fn a_missing_file_is_reported() {
    let problems = load(Path::new("/nonexistent/cofferdam.toml")).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/nonexistent/cofferdam.toml: cannot read the configuration: No such file or directory (os error 2)\n  \
         hint: check the path, or name another file with `-c FILE`"
    );
}

#[test]
fn an_endless_file_is_refused() {
    let problems = load(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/dev/zero: the file is larger than 1 MiB\n  hint: is this the configuration?"
    );
}

#[test]
fn a_name_or_key_that_is_defined_twice_is_refused() {
    assert_problems(
        "[servers.github]\ncommand = ['a']\n\n[servers.github] # again\ncommand = ['b']\n\n[grants.g]\nservers = ['githib']\n",
        "cofferdam.toml:4: `[servers.github]` is defined twice, first on line 1\n  \
         hint: give one of the two another name, or make one table of them\n\
         cofferdam.toml:8: `grants.g.servers` names the server `githib`, which is not defined\n  \
         hint: did you mean `github`?",
    );
    assert_problems(
        "[servers.github]\ncommand = ['a']\ncommand = ['b']\n",
        "cofferdam.toml:3: `command` is set twice in one table\n  hint: keep one of the two",
    );
}

#[test]
fn an_unknown_secret_in_a_template_is_refused() {
    assert_problems(
        "[secrets.github]\nenv = 'T'\n[servers.github]\ncommand = ['a']\nenv = { TOKEN = 'Bearer {gihub.token}' }\n",
        "cofferdam.toml:5: `servers.github.env.TOKEN` names the secret `gihub`, which is not defined\n  \
         hint: did you mean `github`?",
    );
    assert_problems(
        "[servers.github]\nurl = 'https://example.com'\nheaders = { Authorization = '{other.token}' }\n",
        "cofferdam.toml:3: `servers.github.headers.Authorization` names the secret `other`, which is not defined\n  \
         hint: define it in a table `[secrets.other]`",
    );
}

#[test]
fn an_unbalanced_brace_is_refused() {
    assert_problems(
        "[servers.a]\ncommand = ['a']\nenv.ONE = 'Bearer {a.token'\nenv.TWO = 'json}'\n",
        "cofferdam.toml:3: `servers.a.env.ONE`: the `{` at character 8 is never closed\n  \
         hint: close it with `}`, or write `{{` for a brace\n\
         cofferdam.toml:4: `servers.a.env.TWO`: the `}` at character 5 closes nothing\n  \
         hint: open it with `{`, or write `}}` for a brace",
    );
}

#[test]
fn a_socket_without_a_grant_is_refused() {
    assert_problems(
        "[relay]\nunix = '/run/cofferdam/relay/relay.sock'\n",
        "cofferdam.toml:2: `relay.unix` has no grant: its clients could use no server\n  \
         hint: set `relay.unix-grant` to the name of a grant",
    );
    assert_problems(
        "[relay]\nunix = '/run/cofferdam/relay/relay.sock'\nunix-grant = 'dev'\n",
        "cofferdam.toml:3: `relay.unix-grant` names the grant `dev`, which is not defined\n  \
         hint: define it in a table `[grants.dev]`",
    );
}

#[test]
fn only_the_first_syntax_error_is_reported() {
    assert_problems(
        "[servers.a]\ncommand = ['x\n[relay]\nunix = 3\n",
        "cofferdam.toml:2: this is not TOML: invalid literal string, expected `'`\n  \
         hint: correct this first: the rest cannot be read without it",
    );
    assert_problems(
        "\n[servers.a\n",
        "cofferdam.toml:2: this is not TOML: unclosed table, expected `]`\n  \
         hint: correct this first: the rest cannot be read without it",
    );
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_file() {
    assert_problems(
        "audit-sync = 'never'\n\
         [relay]\n\
         unix-uids = ['root']\n\
         tls = '7443'\n\
         [servers.a]\n\
         comand = ['x']\n\
         env = 3\n\
         tools = { alow = ['x'], ask = [7] }\n\
         retry = 'no'\n\
         [servers.b]\n\
         command = []\n\
         [grants.g]\n\
         servers = ['c', 'a']\n\
         ttl = '5 minutes'\n",
        "cofferdam.toml:1: `audit-sync` has a value that is not known\n  hint: use `call` or `write`\n\
         cofferdam.toml:3: `relay.unix-uids` cannot hold a string\n  hint: write a whole number\n\
         cofferdam.toml:4: `relay.tls` is not HOST:PORT\n  hint: write HOST:PORT, such as \"0.0.0.0:7443\" or \"[::]:7443\"\n\
         cofferdam.toml:6: unknown key `servers.a.comand`\n  hint: did you mean `command`?\n\
         cofferdam.toml:7: `servers.a.env` cannot be a number\n  hint: write a table\n\
         cofferdam.toml:8: unknown key `servers.a.tools.alow`\n  hint: did you mean `allow`?\n\
         cofferdam.toml:8: `servers.a.tools.ask` cannot hold a number\n  hint: write a string\n\
         cofferdam.toml:9: `servers.a.retry` cannot be a string\n  hint: write `true` or `false`\n\
         cofferdam.toml:11: `servers.b.command` is empty\n  hint: write the program, then its arguments\n\
         cofferdam.toml:13: `grants.g.servers` names the server `c`, which is not defined\n  \
         hint: define it in a table `[servers.c]`\n\
         cofferdam.toml:14: `grants.g.ttl` cannot be read\n  \
         hint: write a duration such as \"500ms\", \"20s\" or \"2h30m\"",
    );
}

#[test]
fn columns_count_characters() {
    let problems = check("[servers.a]\ncommand = ['a']\nenv = { 'É' = 'x', B = '{' }\n").unwrap_err();
    assert_eq!(problems.list[0].position, Some(Position { line: 3, column: 24 }));
}

#[test]
fn errors_quote_no_value_of_the_file() {
    let text = "state-dir = ['hunter2-a']\naudit-sync = 'hunter2-b'\n\
         [secrets.s]\ntoken = 'hunter2-c'\nshort = 'hunter2-d'\npublic = ['hunter2 e']\n\
         [secrets.t]\nenv = 'hunter2=f'\n\
         [servers.a]\nurl = 'https://ada:hunter2-g@example.com'\nheaders = { Authorization = \"hunter2\\n\" }\n\
         [servers.b]\ncommand = 'hunter2-h'\nenv = { A = \"hunter2 {\" }\n\
         [limits]\nlinks = 'hunter2-i'\nstop-grace = 'hunter2-j'\n";
    let problems = problems_of(text);
    assert_eq!(problems.matches("hint: ").count(), 11, "{problems}");
    assert!(!problems.contains("hunter2"), "{problems}");
}

#[test]
fn control_characters_in_keys_are_escaped() {
    assert!(problems_of("[servers.\"\\u001b[2J\"]\ncommand = ['a']\n").contains("\\u{1b}[2J"));
}

#[test]
fn at_most_a_hundred_problems_are_listed() {
    let text: String = (0..500).map(|number| format!("nonsense-{number} = 1\n")).collect();
    let problems = check(&text).unwrap_err();
    assert_eq!(problems.list.len(), 101);
    assert_eq!(problems.list[0].message, "there are more problems than are shown here");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 128, ..Default::default() })]

    /// A file that was edited at random is accepted, or refused with at least one problem; the check never panics.
    #[test]
    fn a_damaged_file_is_checked_without_panic(start in 0_usize..4500, length in 0_usize..40, insert in "[\\[\\]{}\"'=#.\\na1]{0,3}") {
        let mut text = include_str!("../../../../packaging/examples/full.toml").to_owned();
        let start = text.floor_char_boundary(start);
        let end = text.floor_char_boundary(start + length);
        text.replace_range(start..end, &insert);
        if let Err(problems) = check(&text) {
            proptest::prop_assert!(!problems.list.is_empty());
            proptest::prop_assert!(!problems.to_string().is_empty());
        }
    }
}
