//! The help of every command ends with an example that the program accepts; the version names the commit where it is known.

use clap::{CommandFactory as _, Parser as _};

use super::arguments::Arguments;
use super::version_with;

/// Every command with its path, such as `audit verify`. clap's own command `help` is left out.
fn every_command(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
    found.push((path.to_owned(), command.clone()));
    for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
        every_command(child, format!("{path} {}", child.get_name()).trim(), found);
    }
}

#[test]
fn the_help_of_every_command_ends_with_an_example_that_is_accepted() {
    let mut root = Arguments::command();
    root.build();
    let mut commands = Vec::new();
    every_command(&root, "", &mut commands);
    assert!(commands.len() > 25, "{} commands were found", commands.len());
    for (path, mut command) in commands {
        let help = command.render_long_help().to_string();
        let last = help.trim_end().lines().last().unwrap_or_default();
        let example = last
            .strip_prefix("Example: ")
            .unwrap_or_else(|| panic!("{path}: no example at the end of {help}"));
        let words: Vec<&str> = example.split(' ').collect();
        assert!(
            example.starts_with(format!("cofferdam {path}").trim()),
            "{path}: {example} is of another command"
        );
        if let Err(error) = Arguments::try_parse_from(&words) {
            panic!("{path}: {example}: {error}");
        }
    }
}

#[test]
fn the_version_names_the_commit_if_the_build_knows_it() {
    assert!(version_with(Some("0123456789ab")).contains(" (commit 0123456789ab, relay protocol "));
    for unknown in [None, Some("")] {
        assert!(version_with(unknown).contains(" (relay protocol "), "{}", version_with(unknown));
    }
}
