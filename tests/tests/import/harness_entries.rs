//! `cofferdam harness`: entries of the shim in the settings of each harness.

use std::process::Stdio;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::process::built;
use cofferdam_tests::strace::strace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::{Person, Run, TOKEN};

const CONFIGURATION: &str = "[servers.github]\ncommand = [\"github-mcp-server\"]\n[servers.db]\ncommand = [\"db\"]\n\
                             [grants.dev]\nservers = [\"github\"]\n";

/// Settings of Codex with an entry of the shim.
const WRITTEN: &str =
    "[mcp_servers.github]\ncommand = \"cofferdam-shim\"\nargs = [\"--server\", \"github\"]\n";

pub(super) fn person() -> Person {
    let person = Person::new();
    person.write_configuration(CONFIGURATION);
    person
}

/// A harness, a file of it with an entry of its own, and what the entry of the shim contains.
pub(super) const HARNESSES: &[(&str, &str, &str, &str)] = &[
    (
        "claude",
        ".mcp.json",
        "{\n  // mine\n  \"mcpServers\": {\n    \"own\": {\"command\": \"own\"}\n  }\n}\n",
        "\"type\": \"stdio\"",
    ),
    (
        "gemini",
        "settings.json",
        "{\"theme\": \"x\", \"mcpServers\": {\n\"own\": {\"command\": \"own\"}\n}}",
        "\"command\": \"cofferdam-shim\"",
    ),
    (
        "opencode",
        "opencode.jsonc",
        "{\r\n  \"mcp\": {\r\n    \"own\": {\"type\": \"local\", \"command\": [\"own\"]}, // mine\r\n  },\r\n}\r\n",
        "\"type\": \"local\"",
    ),
    (
        "vscode",
        "mcp.json",
        "\u{feff}{\n\t\"servers\": {\n\t\t\"own\": {\"command\": \"own\"},\n\t},\n}\n",
        "\"type\": \"stdio\"",
    ),
    (
        "codex",
        "config.toml",
        "# mine\nmodel = \"o\" # best\n\n[mcp_servers.own]\ncommand = \"own\"\n",
        "env_vars = [\"COFFERDAM_ENROLL\"",
    ),
];

#[test]
fn entries_are_added_once_and_removed_without_a_trace() {
    for (harness, file, original, part) in HARNESSES {
        let person = person();
        person.write(file, original);
        let write = ["harness", harness, "--write", "--file", file];
        person.cofferdam(&write).assert_code(0).assert_prints("changed:");
        let written = person.read(file);
        assert!(
            written.contains(part) && written.contains("own") && written.contains("github"),
            "{harness}: {written}"
        );
        person.cofferdam(&write).assert_code(0).assert_prints("as it should be");
        assert_eq!(person.read(file), written, "{harness}");
        // An import sees that they start the shim.
        person
            .cofferdam(&["import", file, "--dry-run"])
            .assert_code(0)
            .assert_prints("github: starts the shim already");
        person.cofferdam(&["harness", harness, "--remove", "--file", file]).assert_code(0);
        assert_eq!(person.read(file), *original, "{harness}");
    }
}

#[test]
fn entries_are_printed_with_the_link_and_for_the_servers_of_a_grant() {
    let person = person();
    let run = person
        .cofferdam(&["harness", "codex", "--grant", "dev", "--relay", "unix:/run/r.sock"])
        .assert_code(0);
    assert_eq!(
        run.printed,
        "[mcp_servers.github]\ncommand = \"cofferdam-shim\"\nargs = [\"--relay\", \"unix:/run/r.sock\", \"--server\", \"github\"]\n"
    );
    assert!(run.stderr.contains("required = true"), "{}", run.stderr);
    let run = person.cofferdam(&["harness", "claude"]).assert_code(0);
    let entries: serde_json::Value = serde_json::from_str(&run.printed).expect("it is JSON");
    assert_eq!(entries["mcpServers"]["db"]["args"], serde_json::json!(["--server", "db"]));
    assert!(run.stderr.contains("approval"), "{}", run.stderr);
    person.cofferdam(&["harness", "claude", "--grant", "none"]).assert_code(64);
}

/// Codex gives servers few variables, so the entry says where a socket is that the shim would not look for.
#[test]
fn entries_of_codex_name_a_socket_that_the_shim_does_not_look_for() {
    let relay = |socket: &str| {
        let person = person();
        person.write_configuration(&format!(
            "[relay]\nunix = {socket:?}\nunix-grant = \"dev\"\n{CONFIGURATION}"
        ));
        person
    };
    let person = relay("relay/relay.sock");
    let link = format!("unix:{}", person.configuration().with_file_name("relay/relay.sock").display());
    let arguments = format!("args = [\"--relay\", \"{link}\", \"--server\", \"github\"]\n");
    let run = person.cofferdam(&["harness", "codex", "--grant", "dev"]).assert_code(0);
    assert!(run.printed.contains(&arguments) && !run.printed.contains("env_vars"), "{}", run.printed);
    assert!(run.stderr.contains("--relay LINK"), "{}", run.stderr);
    // Where the sandbox has it, if that is said.
    let usual = "unix:/run/cofferdam/relay/relay.sock";
    let run = person.cofferdam(&["harness", "codex", "--relay", usual]).assert_code(0);
    assert!(run.printed.contains(usual) && !run.printed.contains(&link), "{}", run.printed);
    // Other harnesses give servers their variables.
    let run = person.cofferdam(&["harness", "claude"]).assert_code(0);
    assert!(!run.printed.contains("--relay"), "{}", run.printed);
    // What was written is recognised, and removed without a trace.
    person.write("config.toml", "model = \"o\"\n");
    let change = |option: &str| {
        person.cofferdam(&["harness", "codex", option, "--file", "config.toml"]).assert_code(0);
        person.read("config.toml")
    };
    assert!(change("--write").contains(&arguments));
    assert_eq!(change("--remove"), "model = \"o\"\n");
    let own = format!("/tmp/cofferdam-{}/relay.sock", nix::unistd::geteuid());
    for found in ["/run/cofferdam/relay/relay.sock", &own] {
        let run = relay(found).cofferdam(&["harness", "codex"]).assert_code(0);
        assert!(run.printed.contains("env_vars") && !run.printed.contains("--relay"), "{}", run.printed);
    }
}

/// What `--write` and `--remove` refuse: the file stays as it is, the exit code and the message say why.
#[test]
fn a_file_that_cannot_be_changed_is_left_as_it_is_and_the_reason_is_said() {
    struct Refusal {
        what: &'static str,
        options: &'static [&'static str],
        /// The text of `config.toml`, of which `make` makes what is refused.
        text: &'static str,
        make: fn(&Person),
        code: i32,
        said: &'static [&'static str],
    }
    const BOTH: &[&str] = &["--write", "--remove"];
    let nothing: fn(&Person) = |_| {};
    let refusals = [
        Refusal {
            what: "a symbolic link",
            options: BOTH,
            text: "model = \"o\"\n",
            make: |person| {
                let path = person.project().join("config.toml");
                std::fs::rename(&path, person.project().join("real.toml")).unwrap();
                std::os::unix::fs::symlink("real.toml", path).unwrap();
            },
            code: 65,
            said: &["it is a symbolic link to `real.toml`", "name that file with --file FILE"],
        },
        Refusal {
            what: "a syntax error",
            options: BOTH,
            text: "model = \"o\"\n[mcp_servers\n",
            make: nothing,
            code: 65,
            said: &["was not changed", "line 2", "correct it, or add the entries by hand"],
        },
        Refusal {
            what: "a character that TOML does not allow",
            options: BOTH,
            text: "model = \"\u{0}\"\n",
            make: nothing,
            code: 65,
            said: &["was not changed", "correct it"],
        },
        Refusal {
            what: "servers that are no table",
            options: &["--write"],
            text: "mcp_servers = 1\n",
            make: nothing,
            code: 65,
            said: &["was not changed", "mcp_servers"],
        },
        Refusal {
            what: "a directory",
            options: BOTH,
            text: "",
            make: |person| {
                std::fs::remove_file(person.project().join("config.toml")).unwrap();
                std::fs::create_dir(person.project().join("config.toml")).unwrap();
            },
            code: 66,
            said: &["it is not a regular file"],
        },
    ];
    for Refusal { what, options, text, make, code, said } in refusals {
        for option in options {
            let person = person();
            person.write("config.toml", text);
            make(&person);
            let before = person.everything();
            let run = person.cofferdam(&["harness", "codex", option, "--file", "config.toml"]);
            assert_eq!(run.code, Some(code), "{what}, {option}: {}", run.stderr);
            for part in said {
                assert!(run.stderr.contains(part), "{what}, {option}: `{part}` is not in {}", run.stderr);
            }
            assert_eq!(person.everything(), before, "{what}, {option}");
        }
    }
}

/// The file changes after it was read and before it is replaced: strace stops the command at the sync of the new file.
#[test]
fn a_file_that_another_program_changes_meanwhile_is_left_as_it_is() {
    for (option, text) in [("--write", "model = \"o\"\n"), ("--remove", WRITTEN)] {
        let person = person();
        let settings = person.write("config.toml", text);
        let trace = person.home().join("trace");
        let Some(mut strace) = strace() else { return };
        strace.args(["-f", "-e", "trace=fsync", "-e", "inject=fsync:signal=SIGSTOP:when=1", "-o"]);
        strace.arg(&trace).arg(built("COFFERDAM_BIN", "cofferdam"));
        let mut harness = person.through(strace, &["harness", "codex", option, "--file", "config.toml"]);
        let harness = harness.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stopped = None;
        wait_until("the command is stopped", || {
            let trace = std::fs::read_to_string(&trace).unwrap_or_default();
            let line = trace.lines().find(|line| line.contains("stopped by SIGSTOP"));
            stopped = line.and_then(|line| line.split(' ').next()?.parse().ok()).map(Pid::from_raw);
            stopped.is_some()
        });
        let changed = format!("{text}# of another program\n");
        std::fs::write(&settings, &changed).unwrap();
        kill(stopped.expect("it was found"), Signal::SIGCONT).unwrap();
        Run::of(&harness.wait_with_output().unwrap())
            .assert_code(69)
            .assert_fails_with("another program has changed it meanwhile")
            .assert_fails_with("run this again");
        assert_eq!(person.read("config.toml"), changed, "{option}");
        let files = std::fs::read_dir(person.project()).unwrap().count();
        assert_eq!(files, 1, "a temporary file is left");
    }
}

#[test]
fn a_missing_file_is_created_and_an_entry_of_another_program_is_left_alone() {
    let person = person();
    person.cofferdam(&["harness", "claude", "--write"]).assert_code(0);
    let created = std::fs::read_to_string(person.home().join(".claude.json")).unwrap();
    assert!(created.contains("cofferdam-shim"), "{created}");
    let taken = format!(
        "{{\"mcpServers\": {{\"github\": {{\"command\": \"gh\", \"env\": {{\"T\": \"{TOKEN}\"}}}}}}}}"
    );
    person.write(".mcp.json", &taken);
    person
        .cofferdam(&["harness", "claude", "--write", "--file", ".mcp.json"])
        .assert_code(65)
        .assert_fails_with("start other programs");
    person.cofferdam(&["harness", "claude", "--remove", "--file", ".mcp.json"]).assert_code(65);
    assert!(person.read(".mcp.json").contains(TOKEN));
}
