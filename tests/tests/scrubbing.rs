//! No credential enters the sandbox, plain or encoded, in any message, log line or audit record.

use std::path::PathBuf;

use cofferdam_tests::encodings::LEAKED_AS;
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::process::keeper_of;
use cofferdam_tests::relay::RawRelay;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

/// Contains characters that the encodings treat differently.
const SECRET: &str = "s3cret/Value+with=signs&more \"quoted\" ü 9f";
const MARK: &str = "[redacted:local.value]";

#[test]
fn the_environment_of_server_everything_is_redacted() {
    let Some(server) = Server::everything() else { return };
    let world = leaky(server.env("API_TOKEN", "{local.value}").env("HEADER", "Bearer {local.value}"));
    let mut shim = world.connected("tools");
    let text = shim.call_text("get-env", json!({}));
    assert!(text.contains("API_TOKEN"), "the environment was not printed: {text}");
    assert!(text.contains(MARK) && text.contains(&format!("Bearer {MARK}")), "{text}");
    world.assert_secret_not_leaked(SECRET);
}

#[test]
fn a_leak_is_redacted_in_every_encoding() {
    let world = leaky(fixture());
    let mut shim = world.connected("tools");
    for encoding in LEAKED_AS {
        let text = shim.call_text("leak", json!({"as": encoding}));
        assert!(text.contains(MARK), "{encoding}: {text}");
    }
    world.assert_secret_not_leaked(SECRET);
}

#[test]
fn a_leak_is_redacted_wherever_it_is() {
    let world = leaky(fixture());
    let mut shim = world.connected("tools");
    for place in ["error", "error-data", "escapes", "key", "log", "stderr"] {
        shim.call("leak", json!({"in": place}));
    }
    let id = shim.send_request(
        "tools/call",
        json!({"name": "leak", "arguments": {"in": "progress"}, "_meta": {"progressToken": 5}}),
    );
    let progress = shim.message_with_method("notifications/progress");
    assert_eq!(progress["params"]["message"], MARK);
    shim.answer_to(&id);
    let structured = shim.call("structured", json!({}));
    assert_eq!(structured["result"]["structuredContent"]["secret"], MARK);
    assert!(shim.call_text("env", json!({})).contains(&format!("SECRET={MARK}")));
    world.wait_until("stderr reached the log, redacted", || {
        world.log().contains(&format!("using {MARK} now"))
    });
    world.assert_secret_not_leaked(SECRET);
    let redactions: u64 = world.outcomes().iter().filter_map(|outcome| outcome["redactions"].as_u64()).sum();
    assert!(redactions >= 6, "the audit records too few redactions: {redactions}");
}

#[test]
fn tool_names_and_descriptions_are_redacted() {
    let world = leaky(Server::fixture_that("leaks-in-list").env("SECRET", "{local.value}"));
    let mut shim = world.connected("tools");
    let list = shim.request("tools/list", json!({})).to_string();
    assert!(list.contains(&format!("tool_{MARK}")) && list.contains(&format!("uses {MARK}")), "{list}");
    world.assert_secret_not_leaked(SECRET);
}

#[test]
fn a_harness_that_repeats_a_secret_does_not_get_it_into_the_log() {
    let world = leaky(fixture());
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("echo", json!({ "text": SECRET })), MARK);
    shim.call(SECRET, json!({}));
    shim.request(SECRET, json!({}));
    world.assert_secret_not_leaked(SECRET);
}

/// The sidecar's own log lines are scrubbed as well: here a client requests a server whose name is the secret.
#[test]
fn the_sidecars_own_log_lines_are_redacted() {
    let secret = "value-that-is-a-name-88";
    let world = World::new().secret_file("local", secret).server("tools", fixture()).start();
    let _shim = world.connected("tools");
    RawRelay::refused(&world.layout().relay, secret);
    world.wait_until("the refusal is in the log", || world.log().contains("connection refused"));
    assert!(world.log().contains(MARK), "{}", world.log());
    world.assert_secret_not_leaked(secret);
}

#[test]
fn a_multi_line_secret_is_redacted_line_by_line() {
    let secret =
        "-----BEGIN KEY-----\nfirst-line-of-the-key-41\nsecond-line-of-the-key-42\n-----END KEY-----";
    let world = World::new()
        .secret_file("local", &json!({ "value": secret }).to_string())
        .server("tools", fixture())
        .capturing()
        .start();
    let mut shim = world.connected("tools");
    for encoding in ["plain", "lines"] {
        let text = shim.call_text("leak", json!({"as": encoding}));
        assert!(text.contains(MARK), "{encoding}: {text}");
    }
    shim.call("leak", json!({"in": "stderr"}));
    world.assert_secret_not_leaked("first-line-of-the-key-41");
    world.assert_secret_not_leaked("second-line-of-the-key-42");
}

#[test]
fn every_source_is_scrubbed_under_its_own_name() {
    let world = World::new()
        .secret_env("from-env", "SIDECAR_SECRET", "value-from-the-environment-11")
        .secret_exec("from-exec", &["printf", "value-from-a-command-22"])
        .secret_file("from-file", r#"{"user": "someone-else-33", "password": "value-from-a-file-44"}"#)
        .server("tools", fixture_with("{from-env.value} {from-exec.value} {from-file.password}"))
        .capturing()
        .start();
    let text = world.connected("tools").call_text("leak", json!({}));
    assert_eq!(
        text,
        "the secret is <[redacted:from-env.value] [redacted:from-exec.value] [redacted:from-file.password]>"
    );
    for secret in ["value-from-the-environment-11", "value-from-a-command-22", "value-from-a-file-44"] {
        world.assert_secret_not_leaked(secret);
    }
}

#[test]
fn a_secret_of_another_server_is_redacted_without_its_name() {
    const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let directory = tempfile::tempdir().unwrap();
    let Some(files) = Server::filesystem(directory.path()) else { return };
    let world = World::new()
        .secret_file("github", TOKEN)
        .secret_file("pin", "73519824")
        .secret_file("codes", "46028135\n11827364\n90817263")
        .server("tools", fixture_with("{github.value} {pin.value}").env("CODES", "{codes.value}"))
        .server("files", files)
        .capturing()
        .start();
    let mut tools = world.connected("tools");
    let own = "the secret is <[redacted:github.value] [redacted:pin.value]>";
    assert_eq!(tools.call_text("leak", json!({})), own);
    let file = directory.path().join("notes.txt");
    std::fs::write(&file, format!("token {TOKEN}, invoices 73519824 and 11827364")).unwrap();
    let mut files = world.connected("files");
    let text = files.call_text("read_text_file", json!({"path": file}));
    // Eight digits could be found by guessing, so only their own server's answers are searched for them.
    assert_eq!(text, "token [redacted], invoices 73519824 and 11827364");
    assert_eq!(tools.call_text("echo", json!({"text": "11827364"})), "[redacted:codes.value]");
    let log = world.log();
    for (warning, secret) in [
        ("a secret value could be found by guessing; it is", "pin.value"),
        ("a line of a secret value could be found by guessing", "codes.value"),
    ] {
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains(warning)).collect();
        assert!(!warnings.is_empty() && warnings.iter().all(|line| line.contains(secret)), "{warnings:?}");
    }
    world.assert_secret_not_leaked(TOKEN);
}

#[test]
fn public_fields_are_left_alone() {
    let world = World::new()
        .secret_file_with(
            "local",
            r#"{"username": "bob", "password": "value-of-the-password-55"}"#,
            "public = [\"username\"]",
        )
        .server("tools", fixture_with("{local.username}:{local.password}"))
        .start();
    assert_eq!(
        world.connected("tools").call_text("leak", json!({})),
        "the secret is <bob:[redacted:local.password]>"
    );
}

#[test]
fn secrets_reach_files_that_only_their_server_can_read() {
    let server =
        Server::script("cat \"$KEY_FILE\" >&2; stat -c 'mode %a' \"$KEY_FILE\" >&2; exec \"$FIXTURE\"")
            .env("KEY_FILE", "{file:key.pem}")
            .file("key.pem", "begin {local.value} end\n");
    let world = leaky(server);
    let mut shim = world.connected("tools");
    world.wait_until("the server read its file", || world.log().contains(&format!("begin {MARK} end")));
    world.wait_until("only the owner can read the file", || world.log().contains("mode 600"));
    let environment = shim.call_text("env", json!({}));
    assert!(environment.contains("KEY_FILE=/"), "{environment}");
    world.assert_secret_not_leaked(SECRET);
}

#[test]
fn injected_files_are_gone_with_their_server() {
    let server = Server::fixture().env("KEY_FILE", "{file:key.pem}").file("key.pem", "{local.value}");
    let mut world = World::new().secret_file("local", SECRET).server("tools", server).start();
    let mut shim = world.connected("tools");
    let file = injected_file(&mut shim);
    assert!(file.exists(), "{}", file.display());
    shim.close_stdin();
    world.wait_until("the file was removed with its session", || !file.exists());

    // The next sidecar removes the files that a killed one left.
    let file = injected_file(&mut world.connected("tools"));
    world.kill9_sidecar();
    world.start_sidecar();
    assert!(!file.exists(), "{}", file.display());
}

#[test]
fn only_the_server_has_the_secret_in_its_environment_or_arguments() {
    let mut world = World::new()
        .secret_file("local", SECRET)
        .secret_env("own", "SIDECAR_SECRET", "value-of-the-sidecars-77")
        .server("tools", fixture_with("{local.value} {own.value}"))
        .start();
    let shim = world.connected("tools");
    let server = world.fixture_processes("tools")[0];
    let sidecar = world.sidecar().id();
    let keeper = keeper_of(server, sidecar).expect("a server has a keeper");
    assert!(environment_and_arguments(server).contains(SECRET), "the server does not have the secret");
    for process in [keeper, sidecar] {
        // Root can read their memory in any case; the core limit is set together with the protection against other
        // users.
        let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"]);
    }
    for (who, process) in [("shim", shim.id()), ("keeper", keeper), ("sidecar", sidecar)] {
        let shown = environment_and_arguments(process);
        assert!(!shown.contains(SECRET), "{who}: {shown}");
        // The sidecar has this secret from its environment.
        assert!(who == "sidecar" || !shown.contains("value-of-the-sidecars-77"), "{who}: {shown}");
    }
}

/// The harness matches responses by id, so an id that happens to equal a secret must not be redacted.
#[test]
fn a_request_id_that_equals_a_secret_is_returned_unchanged() {
    const DIGITS: &str = "48151623421";
    let world =
        World::new().secret_file("local", DIGITS).server("tools", fixture().deny(&["write_*"])).start();
    let mut shim = world.connected("tools");
    for tool in ["leak", "write_file"] {
        for id in [DIGITS.to_owned(), format!("\"{DIGITS}\""), format!("\"before {DIGITS} after\"")] {
            let params = json!({"name": tool, "arguments": {}});
            let line = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{params}}}\n"
            );
            shim.send_raw(line.as_bytes());
            let answer = shim.answer_to(&serde_json::from_str(&id).expect("an id is JSON"));
            match tool {
                "leak" => assert_eq!(text_of(&answer), format!("the secret is <{MARK}>"), "{id}"),
                _ => assert_eq!(answer["error"]["code"], -32602, "{id}: {answer}"),
            }
        }
    }
}

/// A line of stderr is cut before it is logged; the cut must not leave half of a secret unrecognised.
#[test]
fn a_secret_on_stderr_is_redacted_across_reads() {
    let server = Server::script(
        "printf '%04000d' 0 >&2; for i in 1 2 3 4 5 6 7 8 9; do printf '%s' \"$SECRET\" >&2; done; echo >&2; exec \"$FIXTURE\"",
    )
    .env("SECRET", "{local.value}");
    let world = leaky(server);
    world.connected("tools");
    world.wait_until("stderr reached the log", || world.log().contains(&"0".repeat(4000)));
    assert!(world.log().contains("[redacted:"), "{}", world.log());
    assert!(!world.log().contains(&SECRET[..8]), "{}", world.log());
}

#[test]
fn the_command_of_a_secret_is_bounded() {
    let world = World::new()
        .limit("secret-exec-timeout = \"1s\"")
        .limit("secret-bytes = \"1KiB\"")
        .secret_exec("hangs", &["sleep", "300"])
        .secret_exec("floods", &["head", "-c", "2000", "/dev/zero"])
        .server("hangs", fixture_with("{hangs.value}"))
        .server("floods", fixture_with("{floods.value}"))
        .start();
    for (server, why) in [("hangs", "did not end within 1000 ms"), ("floods", "more than 1024 bytes")] {
        let answer = world.shim(server).initialize();
        assert_eq!(refusal_of(&answer), "credential_unavailable", "{server}");
        assert!(answer.to_string().contains(why), "{server}: {answer}");
        assert!(world.fixture_processes(server).is_empty(), "{server} was started");
    }
}

#[test]
fn an_unavailable_secret_refuses_its_server_only() {
    let world = World::new()
        .secret_exec("broken", &["false"])
        .secret_file("short", "tiny")
        .secret_file("fields", r#"{"token": "value-of-a-token-66"}"#)
        .server("broken", fixture_with("{broken.value}"))
        .server("short", fixture_with("{short.value}"))
        .server("missing", fixture_with("{fields.nothing}"))
        .server("sound", fixture_with("{fields.token}"))
        .start();
    for server in ["broken", "short", "missing"] {
        let mut shim = world.shim(server);
        let answer = shim.initialize();
        assert_eq!(refusal_of(&answer), "credential_unavailable", "{server}");
        assert!(world.fixture_processes(server).is_empty(), "{server} was started without its secret");
    }
    let mut shim = world.shim("sound");
    shim.initialize();
    assert_eq!(text_of(&shim.call("leak", json!({}))), "the secret is <[redacted:fields.token]>");
}

fn injected_file(harness: &mut Harness) -> PathBuf {
    let environment = harness.call_text("env", json!({}));
    let path = environment.lines().find_map(|line| line.strip_prefix("KEY_FILE="));
    path.expect("the server has the path").into()
}

/// The environment and arguments of a process from `/proc`; empty where the test lacks permission.
fn environment_and_arguments(process: u32) -> String {
    let read = |file: &str| std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&[read("environ"), read("cmdline")].concat()).into_owned()
}

fn fixture() -> Server {
    fixture_with("{local.value}")
}

fn fixture_with(template: &str) -> Server {
    Server::fixture().env("SECRET", template)
}

fn leaky(server: Server) -> World {
    World::new().secret_file("local", SECRET).server("tools", server).capturing().start()
}
