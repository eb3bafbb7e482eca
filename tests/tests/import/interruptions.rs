//! An import that is killed at any system call that changes something: nothing is lost, and the next run completes it.

use std::process::Command;

use cofferdam_tests::process::{command, output_of};

use super::secrecy::traced_import;
use super::support::{CANARY, Person, Run, one_server};

/// Every system call with which an import changes a file or directory.
const CALLS: &[&str] = &["mkdir", "rename", "linkat", "unlink", "fsync", "fchmod", "write", "flock"];
/// More than an import makes of any of them.
const MOST_CALLS: usize = 100;

/// An import that is killed before the call of this number. Returns whether it was killed.
fn is_killed_at(person: &Person, call: &str, number: usize) -> Option<bool> {
    let inject = format!("inject={call}:signal=SIGKILL:when={number}");
    let trace = person.home().join("trace");
    let import = traced_import(person, &["-e", &format!("trace={call}"), "-e", &inject], &trace)?;
    let run = Run::of(&output_of(import, "an import that is killed"));
    std::fs::remove_file(&trace).expect("strace has written it");
    assert!(!run.printed.contains(CANARY) && !run.stderr.contains(CANARY), "{}{}", run.printed, run.stderr);
    Some(run.code != Some(0))
}

#[test]
fn an_import_that_is_killed_at_any_step_loses_nothing_and_the_next_run_completes_it() {
    let original = one_server();
    let mut kills = 0;
    for call in CALLS {
        for number in 1..=MOST_CALLS {
            let person = Person::with(".mcp.json", &original);
            let Some(is_killed) = is_killed_at(&person, call, number) else { return };
            let what = format!("{call} number {number}");
            if !is_killed {
                break;
            }
            assert!(number < MOST_CALLS, "{what}");
            kills += 1;
            // Either the settings are as they were, or everything that they had is elsewhere.
            if person.read(".mcp.json") != original {
                person.cofferdam(&["check"]).assert_code(0);
                assert!(
                    std::fs::read_to_string(person.secrets().join("github.json")).unwrap().contains(CANARY),
                    "{what}"
                );
            }
            person.import(".mcp.json");
            person.cofferdam(&["check"]).assert_code(0);
            let left = person.files_with_secrets();
            assert!(left.iter().all(|path| path.starts_with(person.secrets())), "{what}: {left:?}");
            let configuration = std::fs::read_to_string(person.configuration()).unwrap();
            assert_eq!(configuration.matches("[servers.").count(), 1, "{what}: {configuration}");
            person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(0);
            assert_eq!(person.read(".mcp.json"), original, "{what}");
            let unfinished: Vec<_> = person
                .everything()
                .into_iter()
                .filter(|(path, _)| path.to_string_lossy().ends_with(".new"))
                .collect();
            assert!(
                unfinished.iter().all(|(path, bytes)| !path.starts_with(person.secrets())
                    && !String::from_utf8_lossy(bytes).contains(CANARY)),
                "{what}: {unfinished:?}"
            );
        }
    }
    assert!(kills >= 20, "only {kills} steps were interrupted");
}

#[test]
fn an_import_that_cannot_write_says_so_and_loses_nothing() {
    let original = one_server();
    for (call, number) in [("fsync", 1), ("fsync", 4), ("rename", 1), ("linkat", 1), ("linkat", 2)] {
        let person = Person::with(".mcp.json", &original);
        let inject = format!("inject={call}:error=ENOSPC:when={number}");
        let trace = person.home().join("trace");
        let Some(import) = traced_import(&person, &["-e", &format!("trace={call}"), "-e", &inject], &trace)
        else {
            return;
        };
        let run = Run::of(&output_of(import, "an import on a full disk")).assert_code(73);
        std::fs::remove_file(&trace).unwrap();
        run.assert_fails_with("No space left on device");
        assert_eq!(person.read(".mcp.json"), original);
        person.import(".mcp.json");
        person.cofferdam(&["check"]).assert_code(0);
    }
}

#[test]
fn a_lock_that_cannot_be_taken_is_told_from_one_that_another_import_holds() {
    let person = Person::with(".mcp.json", &one_server());
    let trace = person.home().join("trace");
    let options = ["-e", "trace=flock", "-e", "inject=flock:error=ENOLCK"];
    let Some(import) = traced_import(&person, &options, &trace) else { return };
    let run = Run::of(&output_of(import, "an import without locks")).assert_code(73);
    run.assert_fails_with("import/lock`").assert_fails_with("No locks available");
    let held = std::fs::File::open(person.secrets().join("import/lock")).unwrap();
    held.lock().unwrap();
    let run = person.cofferdam(&["import", ".mcp.json", "--yes", "--rewrite"]).assert_code(69);
    run.assert_fails_with("another import is running").assert_fails_with("wait until it has ended");
}

/// The command with these arguments, which is killed before the call of this number. `None` if it cannot be traced.
fn kill_at(person: &Person, arguments: &[&str], call: &str, number: usize) -> Option<bool> {
    let inject = format!("inject={call}:signal=SIGKILL:when={number}");
    let trace = person.home().join("trace");
    let mut traced = traced_import(person, &["-e", &format!("trace={call}"), "-e", &inject], &trace)?;
    traced = with_arguments(person, &traced, arguments);
    let run = Run::of(&output_of(traced, "a command that is killed"));
    std::fs::remove_file(&trace).expect("strace has written it");
    assert!(!run.printed.contains(CANARY) && !run.stderr.contains(CANARY), "{}{}", run.printed, run.stderr);
    Some(run.code != Some(0))
}

/// strace with other arguments for `cofferdam` than those of an import.
fn with_arguments(person: &Person, traced: &Command, arguments: &[&str]) -> Command {
    let own: Vec<_> = traced.get_args().take_while(|word| *word != "import").map(ToOwned::to_owned).collect();
    let mut strace = command(traced.get_program());
    strace.args(own);
    person.through(strace, arguments)
}

#[test]
fn undoing_two_files_and_forgetting_can_be_killed_at_any_step_and_repeated() {
    let original = one_server();
    let other = original.replace("github", "tracker");
    let undo = ["import", ".mcp.json", "other.json", "--undo"];
    for (arguments, forgets) in [(&undo[..], false), (&["import", "--forget", "--yes"], true)] {
        let mut kills = 0;
        for call in CALLS {
            for number in 1..=MOST_CALLS {
                let person = Person::with(".mcp.json", &original);
                person.write("other.json", &other);
                let both = ["import", ".mcp.json", "other.json", "--yes", "--rewrite"];
                person.cofferdam(&both).assert_code(0);
                let Some(is_killed) = kill_at(&person, arguments, call, number) else { return };
                let what = format!("{arguments:?}: {call} number {number}");
                if !is_killed {
                    break;
                }
                kills += 1;
                if forgets {
                    person.cofferdam(arguments).assert_code(0);
                    assert!(!person.read(".mcp.json").contains(CANARY), "{what}");
                    let left = person.files_with_secrets();
                    assert!(
                        left.iter().all(|path| path.extension().is_some_and(|end| end == "json")),
                        "{left:?}"
                    );
                } else {
                    for (file, text) in [(".mcp.json", &original), ("other.json", &other)] {
                        let undone = person.cofferdam(&["import", file, "--undo"]);
                        // What was undone before the kill is not recorded any more.
                        assert!(matches!(undone.code, Some(0 | 66)), "{what}: {}", undone.stderr);
                        assert_eq!(person.read(file), *text, "{what}");
                    }
                }
            }
        }
        assert!(kills >= 8, "only {kills} steps of {arguments:?} were interrupted");
    }
}
