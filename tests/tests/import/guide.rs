//! packaging/guide/import.md: its commands, run as they are written.

use cofferdam_tests::installed_programs::InstalledPrograms;
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::process::{command, output_of};

use super::support::{CANARY, Person, Run, one_server};

const GUIDE: &str = include_str!("../../../packaging/guide/import.md");

#[test]
fn the_commands_of_the_guide_work_in_their_order() {
    let person = Person::with(".mcp.json", &one_server());
    // Without one, root's would be in /etc.
    person.write("../.config/cofferdam/cofferdam.toml", "");
    let programs = InstalledPrograms::new();
    let mut count = 0;
    for block in blocks(GUIDE, "sh") {
        count += 1;
        let mut shell = command("bash");
        shell.args(["-euo", "pipefail", "-c", &block]).current_dir(person.project()).env_clear();
        shell.env("HOME", person.home());
        shell.env(
            "PATH",
            format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap_or_default()),
        );
        let run = Run::of(&output_of(shell, &block)).assert_code(0);
        assert!(!run.printed.contains(CANARY) && !run.stderr.contains(CANARY), "{block}");
    }
    assert!(count >= 4, "{count}");
    assert!(!person.read(".mcp.json").contains(CANARY));
    let left = person.files_with_secrets();
    assert!(left.iter().all(|path| path.ends_with("secrets/github.json")), "{left:?}");
}
