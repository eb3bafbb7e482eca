//! Completions and manual pages, as a shell and `man` take them.

use std::path::Path;
use std::process::Output;

use cofferdam_tests::process::{built, command, output_of};

#[track_caller]
fn cofferdam(arguments: &[&str]) -> Output {
    let mut command = command(built("COFFERDAM_BIN", "cofferdam"));
    command.args(arguments);
    output_of(command, &format!("cofferdam {arguments:?}"))
}

/// What bash offers after these words, the last of which is incomplete.
#[track_caller]
fn offered_by_bash(script: &Path, words: &[&str]) -> Vec<String> {
    let mut bash = command("bash");
    let completed = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                     _cofferdam cofferdam \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    bash.args(["--norc", "-c", completed, "bash"]).arg(script).args(words);
    let output = output_of(bash, "bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let script = directory.path().join("cofferdam");
    let printed = cofferdam(&["completions", "bash"]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    std::fs::write(&script, printed.stdout).expect("a temporary directory is writable");
    assert_eq!(offered_by_bash(&script, &["cofferdam", "enrolm"]), ["enrolments"]);
    assert_eq!(offered_by_bash(&script, &["cofferdam", "audit", "ver"]), ["verify"]);
    assert_eq!(offered_by_bash(&script, &["cofferdam", "serve", "--conf"]), ["--config"]);
}

#[test]
fn completions_are_printed_for_zsh_and_fish_and_other_shells_are_refused() {
    for (shell, begin) in [("zsh", "#compdef cofferdam\n"), ("fish", "# Print an optspec for argparse")] {
        let printed = cofferdam(&["completions", shell]);
        let text = String::from_utf8_lossy(&printed.stdout);
        assert!(text.starts_with(begin), "{shell}: {}", text.lines().next().unwrap_or_default());
        assert!(text.contains("enrolments"), "{shell}: {text}");
    }
    let refused = cofferdam(&["completions", "csh"]);
    assert_eq!(refused.status.code(), Some(64), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn every_command_that_the_help_lists_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().to_str().expect("temporary paths are UTF-8");
    let written = cofferdam(&["man-pages", path]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let help = cofferdam(&["--help"]);
    let help = String::from_utf8_lossy(&help.stdout);
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() > 15 && names.contains(&"serve"), "{names:?}");
    for name in names {
        let page = directory.path().join(format!("cofferdam-{name}.1"));
        let text =
            std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains("Example: cofferdam"), "{text}");
    }
    assert!(
        directory.path().join("cofferdam-audit-verify.1").exists(),
        "a command below another has no page"
    );

    let refused = cofferdam(&["man-pages", "/no/such/directory"]);
    assert_eq!(refused.status.code(), Some(73), "{}", String::from_utf8_lossy(&refused.stderr));
}
