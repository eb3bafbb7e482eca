//! `cofferdam demo` works with its built-in configuration, with the static shim and with itself as the shim.

use std::process::Output;

use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::tools::Tool;

#[test]
fn the_demo_runs_without_arguments() {
    assert_success(&demo(&[]));
}

#[test]
fn the_demo_runs_with_the_static_shim_and_prints_its_path() {
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim").display().to_string();
    let printed = assert_success(&demo(&["--shim", &shim]));
    assert!(printed.contains(&shim), "the path of the shim is not printed:\n{printed}");
}

/// The demo reads from `/proc` what the shim's process can see; without isolation these would be files of the host.
#[test]
fn the_demo_isolates_the_shim_with_bubblewrap_if_it_is_installed() {
    let Some(_) = Tool::Bubblewrap.path() else { return };
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim").display().to_string();
    let libraries = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
    for (arguments, libraries) in [(&[][..], &libraries[..]), (&["--shim", &shim], &[])] {
        let printed = assert_success(&demo(arguments));
        assert!(printed.contains("  isolation bubblewrap"), "{printed}");
        let mut files: Vec<&str> = value(&printed, "files").split(", ").collect();
        files.retain(|file| !libraries.contains(file));
        assert_eq!(files, ["/run/cofferdam/relay/relay.sock", "/shim"], "{printed}");
        assert_eq!(value(&printed, "network"), "none", "{printed}");
        assert_eq!(value(&printed, "variables"), "PWD", "{printed}");
    }
}

/// What the demo prints after this word, in the section about the shim's process.
#[track_caller]
fn value<'a>(printed: &'a str, word: &str) -> &'a str {
    let (_, section) =
        printed.split_once("What the shim's process can see").expect("the demo prints this section");
    let found = section.lines().find_map(|line| line.trim_start().strip_prefix(word));
    found.unwrap_or_else(|| panic!("no line {word}: {printed}")).trim_start()
}

/// Runs the demo in an empty home directory.
fn demo(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = command(built("COFFERDAM_BIN", "cofferdam"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home.path());
    command.current_dir(home.path()).arg("demo").args(arguments);
    let output = output_of(command, "cofferdam demo");
    let left: Vec<_> =
        std::fs::read_dir(home.path()).expect("it is there").flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "the demo left files behind: {left:?}");
    output
}

#[track_caller]
fn assert_success(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}\n{printed}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(printed.contains("[redacted:"), "{printed}");
    printed
}
