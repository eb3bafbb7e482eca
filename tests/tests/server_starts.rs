//! Servers that fail at their start, print what is not MCP, or write escape sequences: what the harness and the log say.

use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

/// A server that is a shell script.
fn script(text: &str) -> Server {
    Server::command(["sh", "-c", text])
}

#[test]
fn a_line_on_stdout_does_not_end_the_start_timeout_and_is_named() {
    let world = World::new()
        .server("listening", script("echo 'Server listening on port 3000'; exec sleep 60"))
        .limit("server-start-timeout = \"1s\"")
        .start();
    let mut shim = world.shim("listening");
    let answer = shim.initialize();
    assert_eq!(refusal_of(&answer), "server_unavailable", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("limits.server-start-timeout"), "{message}");
    let printed = "it printed `Server listening on port 3000` to stdout, which is for MCP messages";
    assert!(message.contains(printed), "{message}");
    let log = world.log();
    assert!(log.contains("stdout=Server listening on port 3000"), "{log}");
}

#[test]
fn a_server_that_prints_a_line_before_its_answers_is_not_ended_by_the_start_timeout() {
    // Both lines come in one write, so that the sidecar reads the answer from its buffer.
    let answers = r#"read line; printf 'ready\n{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}\n'; exec sleep 60"#;
    let world = World::new().server("tools", script(answers)).limit("server-start-timeout = \"1s\"").start();
    let mut shim = world.shim("tools");
    let answer = shim.initialize();
    assert_eq!(answer["result"]["serverInfo"]["name"], "s", "{answer}");
    let pid = || world.sessions()[0]["pid"].clone();
    let first = pid();
    assert!(first.is_u64(), "{}", world.sessions());
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(!world.log().contains("server-start-timeout"), "{}", world.log());
    assert_eq!(pid(), first, "{}", world.sessions());
}

#[test]
fn a_server_that_ends_at_its_start_is_reported_with_its_exit_code_and_a_reference() {
    for text in ["echo 'no such database' >&2; exit 1", "read line; echo 'no such database' >&2; exit 1"] {
        let world = World::new().server("broken", script(text)).start();
        let answer = world.shim("broken").initialize();
        assert_eq!(refusal_of(&answer), "server_unavailable", "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("ended right after its start (it exited with code 1)"), "{message}");
        assert!(!message.contains("may or may not have run"), "{message}");
        let reference = message.split("under link=").nth(1).expect("a reference").to_owned();
        world.wait_until("the log has the server's stderr under the reference", || {
            let log = world.log();
            log.lines().any(|line| {
                line.contains(&format!("link={reference}")) && line.contains("stderr=no such database")
            })
        });
    }
}

#[test]
fn output_before_the_end_is_named_too() {
    let world =
        World::new().server("broken", script("echo 'Usage: server FILE'; read line; exit 64")).start();
    let answer = world.shim("broken").initialize();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("(it exited with code 64); it printed `Usage: server FILE` to stdout"),
        "{message}"
    );
}

#[test]
fn escape_sequences_of_a_server_are_escaped_in_the_log() {
    let text = r"printf 'a\033[2J\033]0;title\007b\rc\302\233d\342\200\256e\342\201\246f\342\200\250g\302\205h\177i\n' >&2; exec sleep 60";
    let world = World::new().server("hostile", script(text)).start();
    let mut shim = world.shim("hostile");
    shim.send_initialize();
    let escaped = r"a\u{1b}[2J\u{1b}]0;title\u{7}b\u{d}c\u{9b}d\u{202e}e\u{2066}f\u{2028}g\u{85}h\u{7f}i";
    world.wait_until("the line is in the log", || world.log().contains("]0;title"));
    let log = world.log();
    assert!(log.contains(&format!("stderr={escaped}\n")), "{log:?}");
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202e}'), "{log:?}");
}

#[test]
fn a_refused_start_names_the_secret_and_no_path_program_or_variable_of_the_host() {
    let world = World::new()
        .secret("in-file", "file = \"/srv/hidden-place/token.json\"")
        .secret("in-variable", "env = \"HIDDEN_VARIABLE\"")
        .secret_exec("in-command", &["/opt/hidden-program", "read"])
        .server("file", Server::fixture().env("HIDDEN_TARGET", "{in-file.value}"))
        .server("variable", Server::fixture().env("HIDDEN_TARGET", "{in-variable.value}"))
        .server("command", Server::fixture().env("HIDDEN_TARGET", "{in-command.value}"))
        .server("header", Server::http("http://127.0.0.1:9/").header("Authorization", "{in-file.value}"))
        .server("program", Server::command(["/opt/hidden-program"]))
        .start();
    for (server, named, logged) in [
        ("file", "the secret `in-file`", "/srv/hidden-place/token.json"),
        ("variable", "the secret `in-variable`", "HIDDEN_VARIABLE"),
        ("command", "the secret `in-command`", "/opt/hidden-program"),
        ("header", "the secret `in-file`", "/srv/hidden-place/token.json"),
        ("program", "the server `program` did not start", "/opt/hidden-program"),
    ] {
        let answer = world.shim(server).initialize();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(named), "{server}: {message}");
        assert!(!message.to_lowercase().contains("hidden"), "{server}: {message}");
        if server != "program" {
            assert_eq!(refusal_of(&answer), "credential_unavailable", "{server}: {message}");
            assert!(message.contains("then call again"), "{server} has no next step: {message}");
        }
        let reference = message.split("under link=").nth(1).unwrap_or_else(|| panic!("{server}: {message}"));
        let log = world.log();
        let line =
            log.lines().find(|line| line.contains(&format!("link={reference}")) && line.contains(logged));
        assert!(line.is_some(), "{server}: {logged} is not in the log under link={reference}: {log}");
    }
    assert_eq!(world.executions("file"), [], "{}", json!(world.audit()));
}
