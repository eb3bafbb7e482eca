//! Where secrets are during an import: every file that is created, and every program that is started, as strace sees them.

use std::path::{Path, PathBuf};

use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::tools::cannot_run;

use super::support::{CANARY, Person, mode, one_server};

/// strace with these options, which starts `cofferdam` with the arguments that are added. `None` if it cannot trace.
#[track_caller]
pub(crate) fn strace(person: &Person, options: &[&str], trace: &Path) -> Option<std::process::Command> {
    let works = command("strace")
        .args(["-o", "/dev/null", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        cannot_run("strace is not installed, or may not trace here");
        return None;
    }
    let mut strace = command("strace");
    strace.args(["-f", "-o"]).arg(trace).args(options).arg(built("COFFERDAM_BIN", "cofferdam"));
    let arguments = ["import", ".mcp.json", "--yes", "--rewrite"];
    Some(person.through(strace, &arguments))
}

#[test]
fn no_file_with_a_secret_is_readable_by_others_at_any_moment_and_no_argument_has_one() {
    let person = Person::with(".mcp.json", &one_server());
    let trace = person.home().join("trace");
    let options = ["-s", "4096", "-e", "trace=/open,creat,/chmod,/mkdir,execve,/link,/rename"];
    let Some(mut import) = strace(&person, &options, &trace) else { return };
    // Without a mask, a file has the mode that the program asks for.
    let mut shell = command("sh");
    shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(import.get_program()).args(import.get_args());
    shell.env_clear().envs(import.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(person.project());
    import = shell;
    let output = output_of(import, "an import under strace");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let traced = std::fs::read_to_string(&trace).unwrap();
    let calls =
        |name: &str| traced.lines().filter(|line| line.contains(name)).map(str::to_owned).collect::<Vec<_>>();
    let created: Vec<String> = calls("O_CREAT");
    assert!(created.len() >= 6, "{created:?}");
    for call in &created {
        assert!(call.contains(", 0600)"), "{call}");
    }
    let directories = calls("mkdir");
    assert!(
        directories.iter().filter(|call| call.contains("secrets")).all(|call| call.contains(", 0700)")),
        "{directories:?}"
    );
    // The one file that gets the mode of the old one is the new settings file, without a secret in it.
    assert_eq!(calls("chmod(").len(), 1, "{traced}");
    for line in calls("execve(") {
        assert!(!line.contains(CANARY), "{line}");
    }
    std::fs::remove_file(&trace).unwrap();
    let left = person.files_with_secrets();
    assert!(!left.is_empty());
    for path in left {
        assert!(path.starts_with(person.secrets()) && mode(&path) == 0o600, "{}", path.display());
    }
    let directories: [PathBuf; 2] = [person.secrets(), person.secrets().join("import")];
    assert!(directories.iter().all(|directory| mode(directory) == 0o700));
    assert_eq!(std::fs::read_to_string(person.secrets().join(".gitignore")).unwrap(), "*\n");
    assert!(!person.read(".mcp.json").contains(CANARY));
}

#[test]
fn a_secret_outside_of_the_entries_is_reported_with_its_line() {
    let settings = one_server().replacen("// of the team", &format!("// old: {}", super::support::TOKEN), 1);
    let person = Person::with(".mcp.json", &settings);
    person.import(".mcp.json").assert_prints("stays in line 2 of it, outside of the entries");
}

#[test]
fn the_rewritten_file_keeps_its_mode_and_a_dry_run_changes_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let person = Person::with(".mcp.json", &one_server());
    let path = person.project().join(".mcp.json");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = person.everything();
    person
        .cofferdam(&["import", ".mcp.json", "--dry-run", "--rewrite"])
        .assert_code(0)
        .assert_prints("ghp_… (39 characters)");
    assert_eq!(person.everything(), before);
    person.import(".mcp.json");
    assert_eq!(mode(&path), 0o640);
    let rewritten = person.read(".mcp.json");
    assert!(rewritten.contains("// of the team") && rewritten.contains("\"timeout\": 60000"), "{rewritten}");
}
