//! Servers that do not start, end, say nothing or something else; rules that match none of their tools.

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

use super::examined::{CANARY, examine, prepared, processes_left, sound};

/// The PATH of `doctor` leads to a directory of the test, which the server does not see.
fn script(text: &str) -> Server {
    Server::command(["sh", "-c", &format!("PATH=/usr/bin:/bin\n{text}")])
}

#[test]
fn a_server_that_ends_at_once_is_named_with_its_exit_and_its_last_words_without_secrets() {
    let dying = script("echo \"cannot log in with $SECRET\" >&2; exit 3").env("SECRET", "{local.value}");
    let examined = examine(&prepared(sound().server("dying", dying)));
    examined.assert_error(
        "server-ended",
        "server dying",
        "(it exited with code 3)",
        "run its command by hand",
    );
    let what = "its last line on stderr: `cannot log in with [redacted:local.value]`";
    examined.assert_error("server-ended", "server dying", what, "`servers.dying.env`");
    assert_eq!(examined.code, 69);
    examined.assert_good("server-ok", "server tools", "");
}

#[test]
fn a_server_that_prints_something_else_than_mcp_is_told_so() {
    let builder = sound().limit("server-start-timeout = \"1s\"");
    let chatty =
        script("echo \"Listening on port 80 with $SECRET\"; exec sleep 300").env("SECRET", "{local.value}");
    let examined = examine(&prepared(builder.server("chatty", chatty)));
    let what = "it printed `Listening on port 80 with [redacted:local.value]` to stdout";
    examined.assert_error("server-not-mcp", "server chatty", what, "stdio as its transport");
}

#[test]
fn a_server_that_never_answers_is_given_up_and_ended() {
    let builder = sound().limit("server-start-timeout = \"1s\"");
    let world = prepared(builder.server("silent", Server::fixture_that("never-answers")));
    let examined = examine(&world);
    let what = "it did not answer initialize within 1 s";
    examined.assert_error("server-no-answer", "server silent", what, "`limits.server-start-timeout`");
    assert!(!world.fixture_processes("silent").is_empty());
    assert_eq!(processes_left(&world, "silent"), Vec::<u32>::new());
}

#[test]
fn a_server_that_refuses_the_handshake_says_why() {
    let examined = examine_script(refusing_with("no licence for '\"$SECRET\"'"));
    let what = "it answered initialize with an error: no licence for [redacted:local.value] (-32000)";
    examined.assert_error("server-refused", "server speaking", what, "documentation");
}

/// A script that answers every request with an error with this message, in which the shell has single quotes open.
fn refusing_with(message: &str) -> Server {
    script(&format!(
        r#"while read -r line; do
             id=$(printf '%s' "$line" | sed 's/.*"id":\("[^"]*"\).*/\1/')
             printf '{{"jsonrpc":"2.0","id":%s,"error":{{"code":-32000,"message":"{message}"}}}}\n' "$id"
           done"#
    ))
}

/// A script that answers `initialize` with `handshake` and `tools/list` with a tool that is named after its secret.
fn speaking(handshake: &str) -> Server {
    script(&format!(
        r#"while read -r line; do
             id=$(printf '%s' "$line" | sed 's/.*"id":\("[^"]*"\).*/\1/')
             case "$line" in
               *'"initialize"'*) printf '{{"jsonrpc":"2.0","id":%s,{handshake}}}\n' "$id" ;;
               *'"tools/list"'*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{"tools":[{{"name":"x'"$SECRET"'","inputSchema":{{}}}}]}}}}\n' "$id" ;;
             esac
           done"#
    ))
}

#[track_caller]
fn examine_script(server: Server) -> super::examined::Examined {
    let world = prepared(sound().server("speaking", server.env("SECRET", "{local.value}")));
    let mut command = super::examined::doctor(&world);
    command.env("PATH", super::examined::search_path(&world, &["sh", "sleep", "true", "sed"]));
    super::examined::examine_with(&world, command)
}

#[test]
fn an_error_is_scrubbed_before_it_is_cut() {
    for before in [270, 280, 290, 299] {
        let words = "x".repeat(before);
        let examined = examine_script(refusing_with(&format!("{words}'\"$SECRET\"' is no licence")));
        examined.assert_error("server-refused", "server speaking", "xxx", "documentation");
        let printed = examined.report.to_string();
        assert!(!printed.contains(&CANARY[..6]), "{before}: {printed}");
    }
}

#[test]
fn the_servers_name_version_and_tools_are_scrubbed() {
    let info = r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"n'"$SECRET"'","version":"v'"$SECRET"'"}}"#;
    // The rule is close to the name of the tool, so that it is suggested.
    let almost = format!("x{}z", &CANARY[..CANARY.len() - 1]);
    let examined = examine_script(speaking(info).allow(&[&almost]));
    examined.assert_good("server-ok", "server speaking", "n[redacted:local.value] v[redacted:local.value]");
    examined.assert_warning(
        "rule-matches-nothing",
        "server speaking",
        "matches none",
        "did you mean `x[redacted:local.value]`?",
    );
    let printed = examined.report.to_string();
    assert!(!printed.contains(CANARY), "{printed}");
}

#[test]
fn lines_beside_mcp_are_a_warning_and_the_tools_are_listed() {
    let examined = examine(&prepared(sound().server("noisy", Server::fixture_that("starts-with-garbage"))));
    examined.assert_good("server-ok", "server noisy", "tools; handshake after ");
    examined.assert_warning("server-stray-output", "server noisy", "that is not MCP", "to stderr");
    examined.assert_no_error();
}

#[test]
fn pages_of_tools_and_servers_without_a_handshake_are_understood() {
    let builder = sound()
        .server("paged", Server::fixture_that("lists-in-pages").deny(&["no-such-tool"]))
        .server("stateless", Server::fixture_that("stateless"));
    let examined = examine(&prepared(builder));
    examined.assert_good("server-ok", "server paged", "tools");
    examined.assert_good("server-ok", "server stateless", "tools");
    examined.assert_warning(
        "rule-matches-nothing",
        "server paged",
        "`tools.deny no-such-tool`",
        "remove the rule",
    );
}

#[test]
fn a_rule_that_matches_none_of_the_tools_gets_the_likely_name() {
    let server = Server::fixture().allow(&["ehco", "add", "zzz_*"]).deny(&["leak"]);
    let examined = examine(&prepared(World::new().server("tools", server)));
    examined.assert_warning(
        "rule-matches-nothing",
        "server tools",
        "the rule `tools.allow ehco` matches none",
        "did you mean `echo`?",
    );
    examined.assert_warning(
        "rule-matches-nothing",
        "server tools",
        "`tools.allow zzz_*`",
        "cofferdam-shim tools tools",
    );
    assert_eq!(examined.with_code("rule-matches-nothing").len(), 2, "{:#}", examined.report);
    examined.assert_no_error();
}

#[test]
fn a_program_that_gives_no_secret_a_url_without_server_and_a_server_without_grant_are_found() {
    let builder = sound()
        .secret_exec("broken", &["sh", "-c", "exit 7"])
        .server("needy", Server::fixture().env("KEY", "{broken.value}"))
        .server("web", Server::http("http://127.0.0.1:9/mcp"))
        .server("unused", Server::fixture())
        .granting(&["tools", "needy", "web"]);
    let examined = examine(&prepared(builder));
    examined.assert_error("server-no-credential", "server needy", "`broken`", "correct the secret");
    examined.assert_error("server-unreachable", "server web", "", "`servers.web.url`");
    examined.assert_warning(
        "server-not-granted",
        "server unused",
        "no grant names it",
        "add `unused` to `servers` of a grant",
    );
    examined.assert_good("server-ok", "server unused", "");
}

#[test]
fn descendants_of_a_server_are_gone_afterwards() {
    let world = prepared(sound().server("forking", Server::fixture_that("double-fork")));
    let _ = examine(&world);
    assert!(!world.fixture_processes("forking").is_empty());
    assert_eq!(processes_left(&world, "forking"), Vec::<u32>::new());
}

#[test]
fn servers_are_not_started_if_that_is_not_wanted() {
    let world = prepared(sound());
    let mut command = super::examined::doctor(&world);
    command.arg("--no-servers");
    let examined = super::examined::examine_with(&world, command);
    examined.assert_no_error();
    assert!(world.fixture_processes("tools").is_empty() && examined.with_code("server-ok").is_empty());
    assert!(!examined.report.to_string().contains(CANARY));
}

#[test]
fn a_server_without_tools_is_a_warning() {
    let answering = script(
        r#"while read -r line; do
             id=$(printf '%s' "$line" | sed 's/.*"id":\("[^"]*"\).*/\1/')
             printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"bare","version":"1"}}}\n' "$id"
           done"#,
    );
    let world = prepared(sound().server("bare", answering));
    let mut command = super::examined::doctor(&world);
    command.env("PATH", super::examined::search_path(&world, &["sh", "sleep", "true", "sed"]));
    let examined = super::examined::examine_with(&world, command);
    examined.assert_good("server-ok", "server bare", "bare 1; no tools");
    examined.assert_warning("server-no-tools", "server bare", "it offers no tools", "documentation");
    examined.assert_no_error();
}
