//! What a run prints while it starts: to stderr only, a spinner on a terminal, lines in a pipe, nothing with `--quiet`.

use cofferdam_tests::process::output_of;
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;

use super::terminal::Terminal;
use super::{text, user};

#[test]
fn steps_are_lines_in_a_pipe() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let output = user.output(&["--", "echo", "output"]);
    assert_eq!(text(&output.stdout), "output\n");
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches("cofferdam: starting the sidecar\n").count(), 1, "{stderr}");
    assert!(!stderr.contains('\x1b'), "control sequences in a pipe: {stderr:?}");
}

#[test]
fn a_quiet_run_prints_only_what_the_command_prints() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let output = user.output(&["--quiet", "--", "sh", "-c", "echo output; echo error >&2"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("output\n".to_owned(), "error\n".to_owned()));
}

/// The line of the spinner is erased before the command writes its first byte.
#[test]
fn on_a_terminal_the_progress_is_erased_when_the_command_starts() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let mut terminal = Terminal::of(user.command(&["--", "sh", "-c", "echo begin; sleep 1; echo end"]));
    terminal.wait_for("end");
    let shown = terminal.shown();
    let (before, after) = shown.split_once("begin").expect("it was shown");
    let drawn = before.rfind("starting the sidecar").expect("it was shown");
    assert!(before[drawn..].contains("\x1b[2K"), "the line is not erased: {shown:?}");
    assert!(!after.contains("starting") && !after.contains("\x1b[2K"), "{shown:?}");
    assert_eq!(terminal.exit_code(), Some(0));
}

/// Instead of using a registry, `podman pull` loads an archive.
#[test]
fn a_missing_image_is_pulled_before_the_command_starts() {
    let (Some(podman), Some(program)) = (PodmanEngine::open(), Tool::Podman.path()) else { return };
    let user = user();
    let image = podman.empty_image();
    let archive = podman.directory().join("image.tar");
    for arguments in [vec!["save", "--output", &archive.display().to_string(), &image], vec!["rmi", &image]] {
        let mut step = podman.command();
        step.args(&arguments);
        let output = output_of(step, "podman");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let pull = format!("if [ \"$1\" = pull ]; then shift; exec {program:?} load --input {archive:?}; fi");
    user.program("podman", &format!("#!/bin/sh\n{pull}\nexec {program:?} \"$@\"\n"));
    let arguments = ["--sandbox", "podman", "--image", &image, "--", "cofferdam-shim", "--version"];
    for pulls in [1, 0] {
        let mut command = user.command(&arguments);
        podman.configure(&mut command);
        command.env("PATH", user.search_path());
        let output = output_of(command, "cofferdam run");
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(text(&output.stdout).starts_with("cofferdam-shim "), "{}", text(&output.stdout));
        assert_eq!(stderr.matches(&format!("pulling the image `{image}`")).count(), pulls, "{stderr}");
    }
    assert_eq!(podman.containers(), "");
    user.assert_nothing_left();
}
