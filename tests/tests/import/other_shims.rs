//! Entries that start the shim by a program with another name, such as `/opt/cs`: they are recognised as those for the shim.

use super::harness_entries::HARNESSES;
use super::support::{Person, TOKEN, one_server};

const OTHER: [&str; 2] = ["--shim", "/opt/cs"];

/// Settings files of each form with one server.
fn settings() -> [(&'static str, String); 5] {
    [
        (".mcp.json", one_server()),
        (".gemini/settings.json", one_server()),
        (".vscode/mcp.json", one_server().replace("mcpServers", "servers")),
        (
            "opencode.json",
            format!(
                "{{\"mcp\": {{\"github\": {{\"type\": \"local\", \"command\": [\"github-mcp-server\"], \"environment\": {{\"GITHUB_TOKEN\": \"{TOKEN}\"}}}}}}}}\n"
            ),
        ),
        (
            ".codex/config.toml",
            format!(
                "[mcp_servers.github]\ncommand = \"github-mcp-server\"\nenv = {{ GITHUB_TOKEN = \"{TOKEN}\" }}\n"
            ),
        ),
    ]
}

#[track_caller]
fn rewritten(file: &str, text: &str) -> Person {
    let person = Person::with(file, text);
    person
        .cofferdam(&[&["import", file, "--yes", "--rewrite"][..], &OTHER].concat())
        .assert_code(0)
        .assert_prints("rewritten:");
    assert!(person.read(file).contains("/opt/cs"), "{}", person.read(file));
    person
}

#[test]
fn a_second_import_does_not_import_the_shim() {
    for (file, text) in settings() {
        let person = rewritten(file, &text);
        let before = person.everything();
        // Whatever the record says: after `--forget` there is none.
        person
            .cofferdam(&["import", file, "--yes", "--rewrite"])
            .assert_code(0)
            .assert_prints("github: starts the shim already");
        assert_eq!(person.everything(), before, "{file}");
        person.cofferdam(&["import", "--forget", "--yes"]).assert_code(0);
        person
            .cofferdam(&["import", file, "--yes"])
            .assert_code(0)
            .assert_prints("github: starts the shim already");
    }
}

#[test]
fn entries_of_a_file_that_was_changed_since_are_restored() {
    for (file, text) in settings() {
        let person = rewritten(file, &text);
        let comment = if file.ends_with("toml") { "# added\n" } else { "// added\n" };
        person.write(file, &format!("{}{comment}", person.read(file)));
        person
            .cofferdam(&["import", file, "--undo"])
            .assert_code(0)
            .assert_prints("restored: the entries of");
        let restored = person.read(file);
        assert!(restored.contains(TOKEN) && restored.contains(comment), "{file}: {restored}");
        assert!(!restored.contains("/opt/cs"), "{file}: {restored}");
    }
}

#[test]
fn entries_are_written_once_changed_and_removed() {
    for (harness, file, original, _) in HARNESSES {
        let person = super::harness_entries::person();
        person.write(file, original);
        let write = ["harness", harness, "--write", "--file", file];
        let with_other = [&write[..], &OTHER].concat();
        person.cofferdam(&with_other).assert_code(0).assert_prints("changed:");
        person.cofferdam(&with_other).assert_code(0).assert_prints("as it should be");
        assert_eq!(person.read(file).matches("/opt/cs").count(), 2, "{harness}: {}", person.read(file));
        person.cofferdam(&write).assert_code(0).assert_prints("changed:");
        assert!(!person.read(file).contains("/opt/cs"), "{harness}: {}", person.read(file));
        person.cofferdam(&with_other).assert_code(0);
        person.cofferdam(&["harness", harness, "--remove", "--file", file]).assert_code(0);
        assert_eq!(person.read(file), *original, "{harness}");
    }
}

#[test]
fn a_server_with_such_arguments_that_the_configuration_does_not_have_is_imported() {
    let person = Person::with(
        ".mcp.json",
        "{\"mcpServers\": {\"proxy\": {\"command\": \"mcp-proxy\", \"args\": [\"--server\", \"docs\"]}}}",
    );
    person.cofferdam(&["import", ".mcp.json", "--yes"]).assert_code(0).assert_prints("proxy: mcp-proxy");
    let configuration = std::fs::read_to_string(person.configuration()).unwrap();
    assert!(configuration.contains("[servers.proxy]"), "{configuration}");
}
