//! From a settings file with plaintext tokens to calls through the rewritten entries.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{built, output_of};
use cofferdam_tests::tools::Tool;
use serde_json::{Value, json};

use super::support::{CANARY, Person, Run, mode};

/// A configuration with comments, whose paths no other test uses.
fn existing_configuration(person: &Person) -> String {
    let root = person.home();
    let root = root.display();
    format!("# mine\nstate-dir = \"{root}/state\" # kept\n\n[admin]\nsocket = \"{root}/admin/admin.sock\"\n")
}

/// The rewritten entry's command, in a sandbox with its configuration, and a client on its stdio.
#[track_caller]
fn client_of_entry(person: &Person, name: &str) -> Harness {
    let settings: Value = serde_json::from_str(&person.read(".mcp.json")).expect("it is JSON");
    let entry = &settings["mcpServers"][name];
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let mut command = person.command(&["run", "--quiet"]);
    command.arg("--shim").arg(shim).arg("--").arg(entry["command"].as_str().expect("it has a command"));
    command.args(entry["args"].as_array().into_iter().flatten().filter_map(Value::as_str));
    Harness::start(command, "the entry of the settings").initialized()
}

#[test]
fn a_plaintext_token_moves_and_its_server_works_through_the_rewritten_entry() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let fixture = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
    let settings = json!({"mcpServers": {
        "Tools": {"command": fixture, "env": {"SECRET": "CANARY-of-the-variable"}, "timeout": 60000},
        "with-argument": {"command": "sh", "args": ["-c", "SECRET=$1 exec \"$2\"", "--token=CANARY-of-the-argument", "CANARY-of-the-argument", fixture]},
    }});
    let original = format!("{settings:#}\n");
    let person = Person::with(".mcp.json", &original);
    let before = existing_configuration(&person);
    std::fs::create_dir_all(person.configuration().parent().unwrap()).unwrap();
    std::fs::write(person.configuration(), &before).unwrap();
    person.import(".mcp.json").assert_prints("WARNING: other processes of the host can read arguments");
    let after = std::fs::read_to_string(person.configuration()).unwrap();
    assert!(after.starts_with(&before) && after.contains("argv-secrets = \"allow\""), "{after}");
    person.cofferdam(&["check"]).assert_code(0);
    assert!(!person.read(".mcp.json").contains(CANARY));

    for name in ["Tools", "with-argument"] {
        let mut client = client_of_entry(&person, name);
        assert_eq!(client.call_text("add", json!({"a": 20, "b": 22})), "42");
        // The server has the credential; what it reveals of it is redacted.
        let revealed = client.call("leak", json!({})).to_string();
        assert!(revealed.contains("[redacted:") && !revealed.contains(CANARY), "{revealed}");
    }
    person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(0).assert_prints("restored");
    assert_eq!(person.read(".mcp.json"), original);
    person.import(".mcp.json");
    person.cofferdam(&["import", "--forget", "--yes"]).assert_code(0).assert_prints("deleted: 1 backup");
    person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(66);
    let left = person.files_with_secrets();
    assert!(
        left.iter().all(|path| path.starts_with(person.secrets()) && path.extension().unwrap() == "json"),
        "{left:?}"
    );
}

#[test]
fn what_the_settings_say_that_a_server_needs_is_written_into_its_profile() {
    let person = Person::with(".mcp.json", "{}");
    let documents = person.home().join("documents");
    std::fs::create_dir(&documents).expect("the home is writable");
    let npm =
        "registry=https://packages.example.com/npm/\n//packages.example.com/npm/:_authToken=CANARY-of-npm\n";
    std::fs::write(person.home().join(".npmrc"), npm).expect("the home is writable");
    let settings = json!({"mcpServers": {
        "api": {"command": "sh", "env": {"API": "https://api.example.com/v1"}},
        "files": {"command": "sh", "args": [documents]},
        "fetched": {"command": "npx", "args": ["-y", "some-package"]},
        "no-registry": {"command": "uvx", "args": ["some-package"]},
        "container": {"command": "docker", "args": ["run", "-i", "some-image"]},
    }});
    std::fs::write(person.project().join(".mcp.json"), settings.to_string()).expect("it is writable");
    let lines = [
        "confine = { hosts = [\"api.example.com:443\"] }".to_owned(),
        format!("confine = {{ write = [{documents:?}] }}"),
        "confine = { hosts = [\"packages.example.com:443\"], home = \"keep\" }".to_owned(),
        "confine = { home = \"keep\" }".to_owned(),
        "confine = \"off\"".to_owned(),
    ];
    let shown = person.cofferdam(&["import", ".mcp.json", "--dry-run"]);
    let shown = shown.assert_code(0).assert_prints("no registry is known");
    lines.iter().fold(shown, |shown, line| shown.assert_prints(line));
    assert!(!person.configuration().exists());
    person.cofferdam(&["import", ".mcp.json", "--yes"]).assert_code(0);
    let written = std::fs::read_to_string(person.configuration()).expect("the import wrote it");
    assert!(lines.iter().all(|line| written.contains(line)), "{written}");
    assert!(!written.contains(CANARY), "{written}");
}

#[test]
fn the_default_registry_of_npm_is_written_where_no_settings_name_one() {
    let settings = json!({"mcpServers": {"fetched": {"command": "npx", "args": ["-y", "some-package"]}}});
    let person = Person::with(".mcp.json", &settings.to_string());
    let programs = person.home().join("programs");
    std::fs::create_dir(&programs).expect("the home is writable");
    let npm = programs.join("npm");
    let script =
        "#!/bin/sh\ntest \"$1 $2 $3\" = 'config get registry' && echo https://default.example.com/\n";
    std::fs::write(&npm, script).expect("the home is writable");
    std::fs::set_permissions(&npm, Permissions::from_mode(0o755)).expect("it was just written");
    let mut dry_run = person.command(&["import", ".mcp.json", "--dry-run"]);
    let path = std::env::var("PATH").expect("PATH is set");
    dry_run.env("PATH", format!("{}:{path}", programs.display()));
    let shown = Run::of(&output_of(dry_run, "cofferdam import")).assert_code(0);
    shown.assert_prints("confine = { hosts = [\"default.example.com:443\"], home = \"keep\" }");
}

fn corpus() -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sidecar/import/tests/corpus");
    let mut cases: Vec<PathBuf> =
        std::fs::read_dir(corpus).expect("there is a corpus").flatten().map(|entry| entry.path()).collect();
    cases.sort();
    cases
}

#[test]
fn every_file_of_the_corpus_gives_a_valid_configuration_and_can_be_restored() {
    let cases = corpus();
    assert!(cases.len() >= 40, "{}", cases.len());
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let expected: Value =
            serde_json::from_slice(&std::fs::read(case.join("expected.json")).unwrap()).unwrap();
        let file = expected["settings"].as_str().unwrap();
        let original = std::fs::read_to_string(case.join(file)).unwrap();
        let person = Person::with(file, &original);
        let is_empty = expected["imported"].as_object().unwrap().is_empty();
        person.import(file);
        if is_empty {
            assert!(!person.configuration().exists(), "{name}");
            continue;
        }
        person.cofferdam(&["check"]).assert_code(0);
        let kept = expected["kept"] == true || expected["rewritten"] == false;
        for path in person.files_with_secrets() {
            let is_settings = path == person.project().join(file);
            assert!(path.starts_with(person.secrets()) || is_settings && kept, "{name}: {}", path.display());
            assert!(is_settings || mode(&path) == 0o600, "{name}: {}", path.display());
        }
        person.cofferdam(&["import", file, "--yes", "--rewrite"]).assert_code(0);
        if expected["rewritten"] != false {
            person.cofferdam(&["import", file, "--undo"]).assert_code(0);
        }
        assert_eq!(person.read(file), original, "{name}");
    }
}
