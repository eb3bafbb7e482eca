//! `cofferdam harness`: entries of the shim in the settings of each harness.

use super::support::{Person, TOKEN};

const CONFIGURATION: &str = "[servers.github]\ncommand = [\"github-mcp-server\"]\n[servers.db]\ncommand = [\"db\"]\n\
                             [grants.dev]\nservers = [\"github\"]\n";

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
