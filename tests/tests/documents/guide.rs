//! packaging/guide and packaging/examples: the commands and files that they show work, and their lists are complete.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cofferdam_tests::markdown::{rows, spans};
use relay_proto::code::Code;
use serde_json::Value;

use super::{
    CONTRIBUTING, OPERATIONS, README, SANDBOXES, TOOLS, TROUBLESHOOTING, check, cofferdam, root, run_shim,
};

#[test]
fn every_example_is_a_valid_configuration() {
    let examples: Vec<PathBuf> = std::fs::read_dir(root().join("packaging/examples"))
        .expect("there are examples")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(examples.len() >= 3, "{examples:?}");
    for example in examples {
        // An example with more than one file has a folder.
        check(&if example.is_dir() { example.join("cofferdam.toml") } else { example });
    }
}

#[test]
fn the_full_example_leaves_out_no_limit() {
    let schema: Value = serde_json::from_str(include_str!("../../../sidecar/cofferdam.schema.json")).unwrap();
    let known = schema["$defs"]["Limits"]["properties"].as_object().expect("the schema has the limits");
    let full: toml::Table = include_str!("../../../packaging/examples/full.toml").parse().unwrap();
    let limits = full["limits"].as_table().unwrap();
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(limits.keys().collect()), names(known.keys().collect()));
}

#[test]
fn the_guide_lists_every_command_of_the_help() {
    let help = cofferdam(&["--help"]);
    let mut known = commands_in(&help);
    known.retain(|command| command != "help");
    let section = section(OPERATIONS, "## Commands");
    let shown: Vec<String> = rows(section).flat_map(|row| spans(&row[0]).next()).collect();
    let listed = shown.iter().filter_map(|line| line.strip_prefix("cofferdam ")?.split(' ').next());
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), known);
    let audit = shown.iter().find_map(|line| line.strip_prefix("cofferdam audit ")).expect("audit is listed");
    for command in audit.split('|') {
        assert!(commands_in(&cofferdam(&["audit", "--help"])).contains(command), "audit {command}");
    }
}

#[test]
fn the_guide_explains_every_code() {
    // A unit test of `cofferdam doctor` compares the codes of that section with those in the source.
    let (refusals, _) = TROUBLESHOOTING.split_once("## What `cofferdam doctor` finds").expect("it is there");
    let listed: BTreeSet<String> = rows(refusals).filter_map(|row| spans(&row[0]).next()).collect();
    assert_eq!(listed, Code::ALL.iter().map(|code| code.as_str().to_owned()).collect());
    for row in rows(refusals) {
        assert_eq!(row.len(), 4, "not four cells (code, what, why, what to do): {row:?}");
    }
    let may_have_run: BTreeSet<String> = rows(section(TROUBLESHOOTING, "## Unknown: the call may have run"))
        .filter_map(|row| spans(&row[0]).next())
        .collect();
    let codes = Code::ALL.into_iter().filter(|code| code.may_have_run());
    assert_eq!(may_have_run, codes.map(|code| code.as_str().to_owned()).collect());
}

#[test]
fn the_programs_accept_the_command_lines_that_the_documents_show() {
    let (mut host, mut guest) = (0, 0);
    // `--help` succeeds only if all arguments before it are valid.
    let help_after = |words: &[&str]| -> Vec<String> {
        words.iter().copied().chain(["--help"]).map(str::to_owned).collect()
    };
    let assert_accepted_by_shim = |words: &[&str]| {
        let words = help_after(words);
        let output = run_shim(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for span in [README, SANDBOXES, OPERATIONS, TROUBLESHOOTING].into_iter().flat_map(spans) {
        let words: Vec<&str> = span.split(' ').collect();
        match words[..] {
            ["cofferdam", "audit", _] => {}
            ["cofferdam", ref words @ ..] => {
                host += 1;
                let (words, command) = match words.iter().position(|word| *word == "--") {
                    Some(end) => (&words[..end], &words[end + 1..]),
                    None => (words, &[][..]),
                };
                let words = help_after(words);
                cofferdam(&words.iter().map(String::as_str).collect::<Vec<_>>());
                if let Some(shim) = command.iter().position(|word| *word == "cofferdam-shim") {
                    guest += 1;
                    assert_accepted_by_shim(&command[shim + 1..]);
                }
            }
            ["cofferdam-shim", ref words @ ..] => {
                guest += 1;
                assert_accepted_by_shim(words);
            }
            // The shim's stdin is empty, so it exits with success if it accepts the address.
            ["--relay", link] if link != "LINK" => {
                assert!(run_shim(&["--relay", link]).status.success(), "{link}");
            }
            _ => {}
        }
    }
    assert!(
        host >= 10 && guest >= 4,
        "only {host} command lines of `cofferdam` and {guest} of `cofferdam-shim`"
    );
}

#[test]
fn the_guide_lists_the_flags_of_the_shim_and_what_the_tests_install() {
    let help = String::from_utf8(run_shim(&["--help"]).stdout).unwrap();
    let (lists, words) = (rows(SANDBOXES).collect::<Vec<_>>(), spans(SANDBOXES).collect::<BTreeSet<_>>());
    let listed = lists.iter().filter_map(|row| row[0].strip_prefix('`')?.strip_suffix('`'));
    let listed: BTreeSet<&str> = listed.filter(|flag| flag.starts_with("--")).collect();
    let known = help.lines().filter_map(|line| line.strip_prefix("  --")).filter_map(|line| {
        let flag = line.split("  ").next()?;
        (!flag.starts_with("help") && !flag.starts_with("version")).then(|| format!("--{flag}"))
    });
    let known: BTreeSet<String> = known.collect();
    assert_eq!(listed, known.iter().map(String::as_str).collect());
    for variable in words.iter().filter(|word| word.starts_with("COFFERDAM_")) {
        assert!(help.contains(variable.as_str()), "the shim's help does not mention {variable}");
    }
    // Packages for the benchmark and for virtual machines are installed on request only.
    let words: BTreeSet<String> = spans(CONTRIBUTING).collect();
    let always = TOOLS.lines().filter_map(|line| line.strip_prefix("want "));
    for package in always.filter_map(|line| line.split(' ').nth(1)).chain(["python3-venv"]) {
        assert!(
            words.contains(package),
            "CONTRIBUTING.md does not name {package}, which tests/tools installs"
        );
    }
}

fn commands_in(help: &str) -> BTreeSet<String> {
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    commands.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// One section of a document, up to the next heading of the same level.
pub(super) fn section(document: &'static str, heading: &str) -> &'static str {
    let rest = document.split(heading).nth(1).unwrap_or_else(|| panic!("there is no section {heading}"));
    rest.split("\n## ").next().expect("a split has a first part")
}
