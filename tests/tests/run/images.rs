//! Images without a shell, `/tmp` or writable directories, images for other machines, and images that do not exist.

use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::output_of;
use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::sandboxes::PodmanEngine;

use super::kinds::assert_tools_work_and_nothing_is_left;
use super::sandbox_kind::import_image;
use super::{text, user};

/// A file with the header of a program for 64-bit ARM, and nothing more.
const ARM_PROGRAM: [u8; 64] = {
    let mut header = [0; 64];
    header[0] = 0x7f;
    header[1] = b'E';
    header[2] = b'L';
    header[3] = b'F';
    (header[4], header[5], header[6]) = (2, 1, 1);
    // An executable for machine 183.
    (header[16], header[18], header[20]) = (2, 183, 1);
    header
};

/// The image has neither a shell nor `/tmp`, and sets its own user and entry point.
#[test]
fn an_image_without_shell_and_tmp_and_with_another_user() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    let image = podman.empty_image();
    assert_tools_work_in_image(&user, &podman, &image);
}

/// No directory of the image is writable, not even for root, because `run` drops all capabilities.
#[test]
fn an_image_with_a_read_only_root() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    let image = image_of_one_program(&podman, "read-only", &[], &[]);
    assert_tools_work_in_image(&user, &podman, &image);
}

#[test]
fn a_warning_names_an_image_for_another_architecture() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    let image = image_of_one_program(&podman, "foreign", &ARM_PROGRAM, &["--arch", "arm64"]);
    let mut command = user.command(&["--sandbox", "podman", "--image", &image, "--", "/bin/tool"]);
    podman.configure(&mut command);
    let output = output_of(command, "cofferdam run");
    let stderr = text(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code != 0), "{stderr}");
    assert!(
        stderr.contains("is for arm64 and this machine is") && stderr.contains("need an emulator"),
        "{stderr}"
    );
    assert!(stderr.contains("exec format error"), "podman's error is missing: {stderr}");
    assert_eq!(podman.containers(), "");
    user.assert_nothing_left();
}

#[test]
fn an_error_explains_that_the_image_does_not_contain_the_command() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    let image = podman.empty_image();
    let mut command = user.command(&["--sandbox", "podman", "--image", &image, "--", "sh", "-c", "true"]);
    podman.configure(&mut command);
    let output = output_of(command, "cofferdam run");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(127), "{stderr}");
    assert!(stderr.contains("that it contains the command and its libraries"), "{stderr}");
    assert_eq!(podman.containers(), "");
    user.assert_nothing_left();
}

#[test]
fn an_error_explains_that_an_image_cannot_be_pulled() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    // Nothing listens there.
    let image = "localhost:1/absent";
    let mut command = user.command(&["--sandbox", "podman", "--image", image, "--", "true"]);
    podman.configure(&mut command);
    let output = output_of(command, "cofferdam run");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("pulling the image `localhost:1/absent`"), "{stderr}");
    assert!(
        stderr.contains("pull the image `localhost:1/absent`: ") && stderr.contains("hint: check the name"),
        "{stderr}"
    );
    user.assert_nothing_left();
}

#[track_caller]
fn assert_tools_work_in_image(user: &RunUser, podman: &PodmanEngine, image: &str) {
    let shim = ["cofferdam-shim", "--server", "tools"];
    let mut command = user.command(&[&["--sandbox", "podman", "--image", image, "--"][..], &shim].concat());
    podman.configure(&mut command);
    assert_tools_work_and_nothing_is_left(user, Harness::start(command, "cofferdam run"));
    assert_eq!(podman.containers(), "");
}

/// An image that holds `/bin/tool` with this content, in directories that not even their owner may write. `options` are those of `podman import`.
fn image_of_one_program(podman: &PodmanEngine, name: &str, content: &[u8], options: &[&str]) -> String {
    let tree = podman.directory().join(name);
    std::fs::create_dir_all(tree.join("bin")).expect("a temporary directory is writable");
    std::fs::write(tree.join("bin/tool"), content).expect("a temporary directory is writable");
    import_image(podman, &tree, name, options);
    format!("localhost/{name}")
}
