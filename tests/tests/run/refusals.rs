//! Runs that are refused, with the reason, a hint and the exit code.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use cofferdam_tests::process::output_of;
use cofferdam_tests::run_user::RunUser;

use super::{text, user};

#[track_caller]
fn assert_refused(user: &RunUser, output: &Output, code: i32, expected: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for text in expected.iter().chain(&["hint: "]) {
        assert!(stderr.contains(text), "`{text}` is missing in:\n{stderr}");
    }
    user.assert_nothing_left();
}

#[test]
fn the_home_directory_is_not_mounted() {
    let user = user();
    for directory in [user.home(), "/".into()] {
        let mut command = user.command(&["--", "true"]);
        command.current_dir(directory);
        assert_refused(
            &user,
            &output_of(command, "cofferdam run"),
            64,
            &["is your home directory, or contains it"],
        );
    }
    let mount = format!("{}:/data", user.home().display());
    assert_refused(&user, &user.output(&["--mount", &mount, "--", "true"]), 64, &["is your home directory"]);
}

#[test]
fn a_program_grant_or_mount_that_does_not_exist_is_named() {
    let user = user();
    assert_refused(
        &user,
        &user.output(&["--", "no-such-program"]),
        66,
        &["the program `no-such-program` was not found"],
    );
    assert_refused(
        &user,
        &user.output(&["--grant", "other", "--", "true"]),
        64,
        &["no grant `other`", "`dev`"],
    );
    assert_refused(&user, &user.output(&["--mount", "absent", "--", "true"]), 66, &["absent"]);
    assert_refused(&user, &user.output(&["--mount", "a:b:c:d", "--", "true"]), 64, &["SRC:DST"]);
    assert_refused(&user, &user.output(&["--env", "A=b", "--", "true"]), 64, &["not the name of a variable"]);
    assert_refused(
        &user,
        &user.output(&["--sandbox", "docker", "--", "true"]),
        64,
        &["docker needs an image"],
    );
    assert_refused(&user, &user.output(&["--image", "x", "--", "true"]), 64, &["only podman and docker"]);
}

#[test]
fn an_image_needs_the_static_shim_and_the_hint_says_how_to_build_it() {
    let user = user();
    let dynamic = "/bin/sh";
    let mut command = user.command_without_shim();
    command.args(["--shim", dynamic, "--sandbox", "podman", "--image", "x", "--", "true"]);
    let expected = ["needs the libraries of this machine", "just shim"];
    assert_refused(&user, &output_of(command, "cofferdam run"), 66, &expected);
}

#[test]
fn files_of_the_sidecar_are_not_mounted() {
    let user = user();
    for path in [&user.world.layout().state, &user.world.layout().root().join("secrets")] {
        let output = user.output(&["--mount", &format!("{}:/data:ro", path.display()), "--", "true"]);
        assert_refused(&user, &output, 78, &["must not be accessible in the sandbox"]);
    }
}

/// The sandbox could change what the sidecar then runs on the host, with credentials.
#[test]
fn programs_of_servers_and_secrets_in_a_writable_directory_are_refused() {
    let user = user();
    let (script, package) = (user.write("project/get.sh", "echo token"), user.project().join("server"));
    std::fs::create_dir(&package).expect("the project is writable");
    let config = std::fs::read_to_string(&user.world.layout().config).expect("it was written");
    for added in [
        format!("[secrets.other]\nexec = [\"sh\", \"{}\"]", script.display()),
        format!("[servers.other]\ncommand = [\"node\", \"{}\"]", package.display()),
        format!("[servers.other]\ncommand = [\"npx\", \"a-server\"]\ncwd = \"{}\"", user.project().display()),
        format!("[servers.other]\ncommand = [\"uv\", \"run\", \"--script={}\"]", script.display()),
    ] {
        std::fs::write(&user.world.layout().config, format!("{config}\n{added}\n")).expect("it is writable");
        assert_refused(&user, &user.output(&["--", "true"]), 78, &["must not be accessible in the sandbox"]);
    }
    // A directory that a server works on is not a program.
    let added = format!("[servers.other]\ncommand = [\"files-server\", \"{}\"]", user.project().display());
    std::fs::write(&user.world.layout().config, format!("{config}\n{added}\n")).expect("it is writable");
    let output = user.output(&["--dry-run", "--", "true"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// An earlier run could have changed the program, so its symbolic links must not decide what is mounted.
#[test]
fn a_program_in_a_writable_directory_mounts_nothing() {
    let user = user();
    let private = user.write("private/bin/tool", "#!/bin/sh\n");
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o755)).expect("it was just written");
    std::os::unix::fs::symlink(&private, user.project().join("agent")).expect("the project is writable");
    let output = user.output(&["--dry-run", "--", "./agent"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).contains("/private"), "{}", text(&output.stdout));
    let output = user.output(&["--dry-run", "--", &private.display().to_string()]);
    assert!(
        text(&output.stdout).contains("/private"),
        "the installation of a program outside is not mounted"
    );
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named() {
    let user = user();
    let state = &user.world.layout().state;
    std::fs::remove_dir_all(state).expect("it is empty");
    std::fs::write(state, "a file").expect("a temporary directory is writable");
    assert_refused(&user, &user.output(&["--", "true"]), 73, &["set `state-dir`"]);
}

#[test]
fn a_sidecar_that_does_not_start_is_explained_by_its_log() {
    let user = user();
    let relay = user.world.layout().relay.clone();
    std::fs::write(&relay, "not a socket").expect("a temporary directory is writable");
    assert_refused(&user, &user.output(&["--", "true"]), 69, &["the sidecar did not start", "not a socket"]);
}
