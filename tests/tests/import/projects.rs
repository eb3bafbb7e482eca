//! Servers whose files are in a project: a sandbox of that project could change them, so that `run` refuses it.

use cofferdam_tests::process::{built, output_of};
use serde_json::json;

use super::support::{Person, Run};

/// A person with a server that is a file of the project.
fn person(command: &serde_json::Value) -> Person {
    let person = Person::with(".mcp.json", &json!({"mcpServers": {"local": command}}).to_string());
    person.write("tools/server.js", "");
    person
}

/// `cofferdam run --dry-run` in the project.
#[track_caller]
fn run(person: &Person) -> Run {
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let mut run = person.command(&["run", "--dry-run", "--sandbox", "bwrap"]);
    run.arg("--shim").arg(shim).args(["--", "true"]);
    Run::of(&output_of(run, "cofferdam run"))
}

#[test]
fn import_says_that_run_will_refuse_the_project_and_how_to_go_on() {
    for command in [
        json!({"command": "node", "args": ["tools/server.js"]}),
        json!({"command": "./tools/server.js"}),
        json!({"command": "node", "args": ["server.js"], "cwd": "tools"}),
    ] {
        let person = person(&command);
        let project = person.project();
        let warning = format!(
            "WARNING: `cofferdam run` refuses to start a sandbox in `{}`, which could change what it starts on this host:",
            project.display()
        );
        let imported =
            person.cofferdam(&["import", ".mcp.json", "--yes"]).assert_code(0).assert_prints(&warning);
        assert!(imported.printed.contains("`servers.local."), "{}", imported.printed);
        assert!(imported.printed.contains("copy it to a directory outside"), "{}", imported.printed);
        assert!(!imported.printed.contains("cofferdam run -c"), "{}", imported.printed);
        run(&person).assert_code(78).assert_fails_with("is inside the mounted");
    }
}

#[test]
fn import_says_nothing_of_servers_outside_of_the_project() {
    let person = person(&json!({"command": "node", "args": ["/opt/tools/server.js"]}));
    let imported = person.cofferdam(&["import", ".mcp.json", "--yes"]).assert_code(0);
    assert!(!imported.printed.contains("WARNING"), "{}", imported.printed);
    assert!(imported.printed.contains("cofferdam run -c"), "{}", imported.printed);
    run(&person).assert_code(0);
}
