//! Where the chosen kind of sandbox does not work, `run` names another kind that works: it has really started one.

use std::path::PathBuf;
use std::process::Output;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::other_user::USER;
use cofferdam_tests::process::{Running, children_of, output_of};
use cofferdam_tests::run_user::{RunUser, contents};
use cofferdam_tests::sandboxes::RootlessPodman;
use cofferdam_tests::tools::Tool;

use super::interruptions::assert_interrupt_ends;
use super::sandbox_kind::SandboxKind;
use super::unprivileged::Unprivileged;
use super::{text, user};

/// A directory for the PATH with `true` and these programs.
fn search_path_with(user: &RunUser, programs: &[PathBuf]) -> PathBuf {
    let directory = user.home().join("programs");
    std::fs::create_dir_all(&directory).expect("the home is writable");
    for program in programs.iter().chain([&PathBuf::from("/bin/true")]) {
        let name = program.file_name().expect("it is a file");
        std::os::unix::fs::symlink(program, directory.join(name)).expect("it is new");
    }
    directory
}

/// `cofferdam run -- true` of bubblewrap, with only these programs on the PATH.
fn run_without_bubblewrap(user: &RunUser, programs: &[PathBuf]) -> Output {
    let mut command = user.command(&["--", "true"]);
    command.env("PATH", search_path_with(user, programs));
    output_of(command, "cofferdam run")
}

#[track_caller]
fn assert_hint(user: &RunUser, output: &Output, expected: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    let hint = stderr.split("hint: ").nth(1).unwrap_or_default();
    assert!(hint.contains(expected), "`{expected}` is missing in:\n{stderr}");
    user.assert_nothing_left();
}

#[test]
fn without_bubblewrap_and_other_kinds_the_hint_says_so() {
    let user = user();
    let output = run_without_bubblewrap(&user, &[]);
    assert_hint(&user, &output, "install `bubblewrap`; no other kind of sandbox works here either");
    assert!(text(&output.stderr).contains("`bwrap` is not on the PATH"), "{}", text(&output.stderr));
}

#[test]
fn without_bubblewrap_the_hint_names_gvisor_where_it_works() {
    let Some(runsc) = Tool::Runsc.path() else { return };
    let user = user();
    let output = run_without_bubblewrap(&user, &[runsc]);
    assert_hint(&user, &output, "or use `--sandbox gvisor`, which works here");
}

/// The kind that the hint names then works.
#[test]
fn without_bubblewrap_the_hint_names_podman_where_it_works() {
    let (Some(kind), Some(podman)) = (SandboxKind::podman(), Tool::Podman.path()) else { return };
    let user = user();
    let directory = search_path_with(&user, &[podman]);
    for (options, code) in [(&[][..], 69), (&["--sandbox", "podman"][..], 0)] {
        let mut command = user.command(&[options, &["--", "true"]].concat());
        kind.configure(&user, &mut command);
        command.env("PATH", &directory);
        let output = output_of(command, "cofferdam run");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(code == 0 || stderr.contains("or use `--sandbox podman`, which works here"), "{stderr}");
        kind.assert_nothing_left(&user);
    }
}

/// The trial leaves none of podman's files in the home, and not the process with which podman keeps its user namespace.
#[test]
fn without_bubblewrap_the_hint_names_podman_without_root_where_it_works() {
    let (Some(unprivileged), Some(podman)) = (Unprivileged::new(), RootlessPodman::open(USER)) else {
        return;
    };
    let before = contents(&unprivileged.user.home());
    let mut run = unprivileged.command_of_any_user(&["--", "true"]);
    let programs = ["podman", "mount", "umount", "setpriv", "sh", "true"];
    run.env("PATH", unprivileged.search_path_with(&programs));
    let mut command = podman.command_of(&run);
    command.env_remove("XDG_RUNTIME_DIR");
    let output = output_of(command, "cofferdam run");
    assert_hint(&unprivileged.user, &output, "or use `--sandbox podman`, which works here");
    unprivileged.assert_no_process_left();
    assert_eq!(contents(&unprivileged.user.home()), before, "podman has written to the home");
}

/// A program that is installed and starts, but cannot start this sandbox, is not recommended.
#[test]
fn a_kind_that_is_installed_and_does_not_work_is_not_named() {
    let Some(runsc) = Tool::Runsc.path() else { return };
    let user = user();
    // This `runsc` answers `--version`, and refuses to run a bundle, as where the kernel forbids what it needs.
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' run '*) exec {runsc:?} run;; *) exec {runsc:?} \"$@\";; esac\n"
    );
    user.program("runsc", &script);
    let output = run_without_bubblewrap(&user, &["/bin/sh".into()]);
    assert_hint(&user, &output, "no other kind of sandbox works here either");
}

/// Srt itself uses bubblewrap, here one that is too old for an option of `run`.
#[test]
fn where_only_the_sandbox_of_bubblewrap_fails_the_hint_names_srt() {
    let (Some(kind), Some(bubblewrap)) = (SandboxKind::srt(), Tool::Bubblewrap.path()) else { return };
    let tools = [Tool::Socat.path(), Tool::Ripgrep.path()];
    let user = user();
    let old = format!(
        "#!/bin/sh\ncase \" $* \" in *' --hostname '*) echo 'bwrap: Unknown option --hostname' >&2; exit 1;; esac\n\
         exec {bubblewrap:?} \"$@\"\n"
    );
    user.program("bwrap", &old);
    let mut command = user.command(&["--", "true"]);
    kind.configure(&user, &mut command);
    let programs =
        ["sh", "bash", "which", "env", "cat", "mkdir", "rm", "ls"].map(|name| format!("/bin/{name}").into());
    let programs: Vec<PathBuf> = programs.into_iter().chain(tools.into_iter().flatten()).collect();
    command.env("PATH", search_path_with(&user, &programs));
    let output = output_of(command, "cofferdam run");
    assert_hint(&user, &output, "or use `--sandbox srt`, which works here");
    let message = "bubblewrap cannot create this sandbox on this machine: bwrap: Unknown option --hostname";
    assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
}

/// This podman never ends.
fn user_with_hanging_podman() -> (RunUser, PathBuf) {
    let user = user();
    user.program("podman", "#!/bin/sh\nexec /bin/sleep 1000\n");
    let programs = Tool::Runsc.path();
    let directory = search_path_with(&user, programs.as_slice());
    (user, directory)
}

#[test]
fn the_trial_of_another_kind_is_limited_in_time() {
    if Tool::Runsc.path().is_none() {
        return;
    }
    let (user, directory) = user_with_hanging_podman();
    let mut command = user.command(&["--", "true"]);
    command.env("PATH", directory);
    assert_hint(&user, &output_of(command, "cofferdam run"), "or use `--sandbox gvisor`, which works here");
}

#[test]
fn an_interrupt_during_the_trial_of_another_kind_leaves_nothing() {
    let (user, directory) = user_with_hanging_podman();
    let mut command = user.command(&["--", "true"]);
    command.env("PATH", directory);
    let mut run = Running::spawn(command, "cofferdam run");
    wait_until("podman is tried", || !children_of(run.id()).is_empty());
    assert_interrupt_ends(&mut run, "during a trial");
    user.assert_nothing_left();
}
