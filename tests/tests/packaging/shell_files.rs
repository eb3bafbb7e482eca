//! Completions and manual pages, as a shell and `man` take them.

use std::path::{Path, PathBuf};
use std::process::Output;

use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::tools::Tool;

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

/// A file with the completions for this shell, in a new directory.
#[track_caller]
fn completions(shell: &str, name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let script = directory.path().join(name);
    let printed = cofferdam(&["completions", shell]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    std::fs::write(&script, printed.stdout).expect("a temporary directory is writable");
    (directory, script)
}

/// The tab key completes a command, as it does for a person.
#[test]
fn zsh_accepts_its_completions_and_completes_a_command() {
    let Some(zsh) = Tool::Zsh.path() else { return };
    let (directory, script) = completions("zsh", "_cofferdam");
    let mut check = command(&zsh);
    check.args(["-f", "-n"]).arg(&script);
    let output = output_of(check, "zsh -n");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let root = zsh.parent().and_then(Path::parent).expect("it is in bin");
    let environment = format!(
        "module_path=({root}/usr/lib/*-linux-gnu/zsh/*(/))\nfpath=({directory} {root}/usr/share/zsh/functions/**/*(/))\n",
        root = root.display(),
        directory = directory.path().display()
    );
    std::fs::write(directory.path().join(".zshenv"), environment).expect("it is writable");
    let interactive =
        "PROMPT='prompt: '\nautoload -Uz compinit\ncompinit -u -D\ncofferdam() { print -r -- \"ran: $*\" }\n";
    std::fs::write(directory.path().join(".zshrc"), interactive).expect("it is writable");
    let mut shell = command(&zsh);
    shell.args(["-i", "-o", "no_global_rcs"]).env("ZDOTDIR", directory.path()).env("HOME", directory.path());
    let mut terminal = Terminal::of(shell);
    terminal.wait_for("prompt: ");
    terminal.type_in("cofferdam enrolm\t\r");
    terminal.wait_for("ran: enrolments");
    terminal.type_in("cofferdam audit ver\t--hea\t\r");
    terminal.wait_for("ran: audit verify --head");
}

#[test]
fn fish_accepts_its_completions_and_completes_a_command() {
    let Some(fish) = Tool::Fish.path() else { return };
    let (directory, script) = completions("fish", "cofferdam.fish");
    let run = |arguments: &[&str]| {
        let mut shell = command(&fish);
        let libraries = fish.parent().and_then(Path::parent).expect("it is in usr/bin");
        let libraries = libraries.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
        shell.env("LD_LIBRARY_PATH", libraries).env("HOME", directory.path()).args(arguments).arg(&script);
        let output = output_of(shell, "fish");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(run(&["--no-execute"]), "");
    let offered = |line: &str| run(&["-c", &format!("source $argv[1]; complete -C '{line}'")]);
    assert_eq!(offered("cofferdam enrolm").split('\t').next(), Some("enrolments"));
    assert_eq!(offered("cofferdam audit ver").split('\t').next(), Some("verify"));
}

#[test]
fn other_shells_are_refused() {
    let refused = cofferdam(&["completions", "csh"]);
    assert_eq!(refused.status.code(), Some(64), "{}", String::from_utf8_lossy(&refused.stderr));
}

/// The commands that this command's help lists, each with its path, and all below them.
fn every_command(path: &[String], found: &mut Vec<Vec<String>>) {
    let mut arguments: Vec<&str> = path.iter().map(String::as_str).collect();
    arguments.push("--help");
    let help = cofferdam(&arguments);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help");
    for name in names {
        let mut child = path.to_vec();
        child.push(name.to_owned());
        found.push(child.clone());
        every_command(&child, found);
    }
}

#[test]
fn every_command_that_the_help_lists_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().to_str().expect("temporary paths are UTF-8");
    let written = cofferdam(&["man-pages", path]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let mut commands = vec![Vec::new()];
    every_command(&[], &mut commands);
    assert!(commands.len() > 30, "{commands:?}");
    assert!(commands.contains(&vec!["vault".to_owned(), "setup".to_owned()]), "{commands:?}");
    let pages = commands.iter().map(|path| [&["cofferdam".to_owned()], path.as_slice()].concat().join("-"));
    let shim = ["", "-call", "-doctor", "-hub", "-servers", "-status", "-tools"];
    for name in pages.chain(shim.map(|command| format!("cofferdam-shim{command}"))) {
        let page = directory.path().join(format!("{name}.1"));
        let text =
            std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        let text = text.replace('\\', "");
        assert!(text.contains(&format!("Example: {}", name.split('-').next().unwrap())), "{name}: {text}");
    }

    let refused = cofferdam(&["man-pages", "/no/such/directory"]);
    assert_eq!(refused.status.code(), Some(73), "{}", String::from_utf8_lossy(&refused.stderr));
}
